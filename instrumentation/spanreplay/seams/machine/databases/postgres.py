"""Common parts of the psycopg seams: a statement as a call, and its result as a value.

A statement of the agent's code is one call with its rows; connections and transactions are in `transactions.py`. In a
replay there is no server: rows, counts and errors come from the recording, and the agent's own row factories run on
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from spanreplay.model import config
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases.parameters import describe_parameter
from spanreplay.seams.machine.databases.told_apart import mark

_READS: Final = ("select", "show", "explain", "values", "table")
COMMAND_OK, TUPLES_OK = 1, 2
SERVER_VERSION: Final = 150000
"""The version that a stand-in reports; drivers check whether a server is newer than those they know."""


def describe_statement(name: str, sql: str, parameters: Any, connection: Any = None) -> FunctionCall:
    """Describe one statement on a connection as a call."""
    words = sql.lstrip(" \t\r\n(;").split(None, 1)
    effect = Effect.READ if words and words[0].lower() in _READS else Effect.IRREVERSIBLE
    arguments = {"sql": sql, "parameters": describe_parameter(parameters), **mark(connection)}
    return FunctionCall(Kind.TOOL.value, name, effect.value, arguments)


def build_value(rows: Iterable[Any], columns: list[list[Any]] | None, rowcount: int, status: str) -> dict[str, Any]:
    """Return a statement's result as it is recorded; `columns` are pairs of name and type number."""
    kept = cap_rows([list(row) for row in rows])
    return {"rows": kept, "columns": columns, "rowcount": rowcount, "status": status}


def cap_rows(rows: list[Any]) -> list[Any]:
    """Return the rows that are recorded; more of them make the run incomplete."""
    if len(rows) <= config.ROWS_MAX:
        return rows
    run = active_run()
    if run is not None:
        run.hole(f"a query gave more than {config.ROWS_MAX} rows: those beyond are not recorded")
    return rows[: config.ROWS_MAX]


def is_replayed_here() -> bool:
    """Whether a connection made here must not be real: in a replay, outside live calls."""
    run = active_run()
    if run is None or run.resolver.connects:
        return False
    from spanreplay.replayer.sandbox.going_live import is_live

    return not is_live(run)


def note_unrecorded(what: str) -> None:
    """Note a feature of a driver that is not recorded: the run is incomplete, and its replay ends there.

    Raises: ReplayMiss in a replay.
    """
    run = recorded_run()
    if run is None:
        return
    run.resolver.leave_out(f"{what} of PostgreSQL was used: its data is not recorded")


class Served:
    """A recorded statement's result, while the agent reads it."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.columns: list[list[Any]] | None = value["columns"]
        self.rows: deque[tuple[Any, ...]] = deque(tuple(row) for row in value["rows"])
        self.rowcount: int = value["rowcount"]
        self.statusmessage: str | None = value["status"] or None
        self.taken = 0

    # As a libpq result, for psycopg's row factories
    @property
    def nfields(self) -> int:
        """The number of columns."""
        return len(self.columns or ())

    @property
    def status(self) -> int:
        """Whether the result has rows at all."""
        return COMMAND_OK if self.columns is None else TUPLES_OK

    def fname(self, column: int) -> bytes:
        """Return the name of a column."""
        return str((self.columns or [])[column][0]).encode()

    def take(self) -> tuple[Any, ...] | None:
        """Return the next row; None at the end."""
        if not self.rows:
            return None
        self.taken += 1
        return self.rows.popleft()


class Column(tuple[Any, ...]):
    """One column of `description`: name and type, as a sequence of seven and as attributes."""

    __slots__ = ()

    def __new__(cls, name: str, type_code: Any) -> Column:
        return super().__new__(cls, (name, type_code, None, None, None, None, None))

    @property
    def name(self) -> str:
        """The column's name."""
        return str(self[0])

    @property
    def type_code(self) -> Any:
        """The number of the column's type."""
        return self[1]
