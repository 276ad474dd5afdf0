"""What is common to asyncpg's requests: each is one call, and says whether its connection is in a transaction then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.lanes import current_lane, is_plumbing_here
from spanreplay.seams.machine.databases.asyncpg_client import stand_ins
from spanreplay.seams.machine.databases.asyncpg_client.values import hold, hold_argument, release
from spanreplay.seams.machine.databases.postgres import cap_rows, describe_statement

__all__ = [
    "ONE",
    "PLAIN",
    "ROWS",
    "VALUE",
    "Shape",
    "ask",
    "ask_now",
    "ask_sync",
    "describe",
    "describe_sql",
    "is_first",
]

_STATE: Final = "_spanreplay_state"
"""Attribute of an error while it is recorded or served: the state in which it has left the connection."""
_OPEN, _CLOSED = "in_transaction", "closed"
_IDS: Final = re.compile(r"__asyncpg_[a-z]+_[0-9a-f]+__")
_named: Final[WeakKeyDictionary[Any, dict[str, str]]] = WeakKeyDictionary()
"""Connection → names that asyncpg has given to savepoints, and those under which they are recorded."""


class Shape(NamedTuple):
    """How a result becomes a recorded value and back."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any, Any], Any]
    """Of the value and the class of records."""


def _pack_rows(rows: Any) -> Any:
    record: Any = import_module("asyncpg").Record
    kept = cap_rows(rows)
    columns = list(record.keys(kept[0])) if kept else []
    return {"columns": columns, "rows": [list(map(hold, record.values(row))) for row in kept]}


def _unpack_rows(value: Any, record_class: Any) -> list[Any]:
    rows = [[release(each, stand_ins.make_records) for each in row] for row in value["rows"]]
    return stand_ins.make_records(value["columns"], rows, record_class)


ROWS: Final = Shape(_pack_rows, _unpack_rows)
ONE: Final = Shape(
    lambda row: _pack_rows([] if row is None else [row]),
    lambda value, record_class: next(iter(_unpack_rows(value, record_class)), None),
)
VALUE: Final = Shape(hold, lambda value, _: release(value, stand_ins.make_records))
PLAIN: Final = Shape(lambda value: value, lambda value, _: value)


def is_first(told: WeakKeyDictionary[Any, set[Any]], run: Any, what: Any) -> bool:
    """Whether a run has not recorded something yet; in a replay, whether its start or this unit has not."""
    known = told.setdefault(run, set())
    here = current_lane(run.root_lane).path.partition("/")[0], what
    if here in known:
        return False
    known.add(here)
    return True


def describe(name: str, arguments: Mapping[str, Any], effect: Effect = Effect.READ) -> FunctionCall:
    """Describe a request that is no statement; equal arguments would be taken for the same call under another name."""
    return FunctionCall(Kind.TOOL.value, f"asyncpg.{name}", effect.value, arguments or {"operation": name})


def describe_sql(connection: Any, name: str, sql: Any, parameters: Any, **more: Any) -> FunctionCall:
    """Describe a statement; ids that asyncpg counts for the whole process are numbered by transaction instead."""
    text = sql if isinstance(sql, str) else str(sql)
    if "__asyncpg_" in text:
        names = _named.setdefault(connection, {})
        text = _IDS.sub(lambda found: names.setdefault(found[0], f"savepoint_{len(names) + 1}"), text)
    elif text.startswith("BEGIN"):
        _named.pop(connection, None)
    described = describe_statement(f"asyncpg.{name}", text, hold_argument(parameters), connection)
    return described._replace(arguments={**described.arguments, **more}) if more else described


def _state_of(connection: Any) -> dict[str, bool]:
    is_closed = connection.is_closed()
    is_open = not is_closed and connection._protocol.is_in_transaction()
    return {name: True for name, holds in ((_OPEN, is_open), (_CLOSED, is_closed)) if holds}


def _apply(connection: Any, state: Mapping[str, Any]) -> bool:
    """Bring a stand-in into the recorded state; whether somebody is told that it is lost."""
    if not stand_ins.is_stand_in(connection):
        return False
    stand_ins.note_transaction(connection, is_open=bool(state.get(_OPEN)))
    if not state.get(_CLOSED) or connection.is_closed():
        return False
    has_listeners = bool(connection._termination_listeners)
    connection.terminate()
    return has_listeners


def _refuse(name: str) -> Exception:
    error: Exception = import_module("asyncpg").InterfaceError(
        f"this connection is replayed: {name} can't run live on it"
    )
    return error


async def ask(
    connection: Any,
    description: Callable[[], FunctionCall],
    live: Callable[[], Awaitable[Any]],
    shape: Shape = PLAIN,
    *,
    record_class: Any = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
    more: Callable[[], Mapping[str, Any]] = dict,
) -> Any:
    """Make a request of a connection a call. `more` is recorded with its value, and `keep` gets it in a replay."""
    is_replayed = stand_ins.is_stand_in(connection)
    if is_plumbing_here.get() or recorded_run() is None:
        if is_replayed and not is_plumbing_here.get():
            raise _refuse(description().name)
        return None if is_replayed else await live()
    given: list[Any] = []

    async def run_live() -> dict[str, Any]:
        if is_replayed:
            raise _refuse(description().name)
        try:
            given.append(await live())
        except Exception as exc:
            vars(exc)[_STATE] = _state_of(connection)
            raise
        return {"value": shape.pack(given[0]), **_state_of(connection), **more()}

    try:
        value = await call_async(description, run_live)
    except Exception as exc:
        if _apply(connection, vars(exc).pop(_STATE, None) or {}):
            await asyncio.sleep(0)  # a lost connection tells its listeners before whoever waits for an answer
        raise
    if given:
        return given[0]
    _apply(connection, value)
    if keep is not None:
        keep(value)
    default = None if connection.is_closed() else connection._protocol.get_record_class()
    return shape.unpack(value["value"], record_class or default)


def ask_sync(connection: Any, description: Callable[[], FunctionCall], live: Callable[[], Any]) -> None:
    """As `ask`, for code of a greenlet that waits for the answer; without a value."""
    is_replayed = stand_ins.is_stand_in(connection)
    if is_plumbing_here.get() or recorded_run() is None:
        if not is_replayed:
            live()
        return

    def run_live() -> dict[str, Any]:
        if is_replayed:
            raise _refuse(description().name)
        try:
            live()
        except Exception as exc:
            vars(exc)[_STATE] = _state_of(connection)
            raise
        return {"value": None, **_state_of(connection)}

    try:
        _apply(connection, call_sync(description, run_live))
    except Exception as exc:
        _apply(connection, vars(exc).pop(_STATE, None) or {})
        raise


def ask_now(
    description: Callable[[], FunctionCall],
    live: Callable[[], Any],
    flat: Callable[[Any], Any],
    rebuild: Callable[[Any], Any],
) -> Any:
    """Make something that a connection knows a call: its server may not be met in a replay."""
    if is_plumbing_here.get() or recorded_run() is None:
        return live()
    given: list[Any] = []

    def run_live() -> Any:
        given.append(live())
        return flat(given[0])

    value = call_sync(description, run_live)
    return given[0] if given else rebuild(value)
