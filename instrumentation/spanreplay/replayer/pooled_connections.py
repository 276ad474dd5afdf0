"""Connections that a process keeps in a pool: which of its units opens one depends on the load.

A request that was served beside others opened its own connection, and finds a free one when replayed alone; or it used
one that an earlier request had left, and now there is none. Its database queries are still compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spanreplay.model.call import Kind, Outcome

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.calls.open_call import Crossing

__all__ = ["open_instead", "without_opened"]

_ANSWERS: Final = {
    "connect": '{"value":null}',
    "create_function": '{"value":{"total_changes":0,"in_transaction":false}}',
}
"""The calls on a new connection before its first statement, and their results."""
_LIBRARIES: Final = frozenset({"sqlite3", "psycopg", "psycopg2"})
"""Libraries whose connections are recorded as calls; in a replay none of them reaches a database."""


def open_instead(session: SharedState, crossing: Crossing) -> bool:
    """Answer a unit that opens a connection which existed already when recorded; return whether it does."""
    spec = crossing.spec
    verb = _opening(spec.kind, spec.name)
    alike = next(_alike(session.recording.calls, spec.name, spec.request, crossing.key_hex), None) if verb else None
    if alike is None:
        return False
    crossing.served = crossing.paired = replace(
        alike,
        name=spec.name,
        request=spec.request,
        response=_ANSWERS[verb],
        outcome=Outcome.OK.value,
        meta={},
        reads="",
        clocks=(),
        end_seq=-1,
        joint=-1,
    )
    session.counts["beside"] = session.counts.get("beside", 0) + 1
    return True


def without_opened(missing: list[CallRecord], calls: Iterable[CallRecord], used: set[int]) -> list[CallRecord]:
    """Return the missing calls, except those that opened a connection if the unit has now used another one."""
    if not any(_opening(call.kind, call.name) for call in missing):
        return missing
    made = [call for call in calls if call.seq in used]
    return [
        call
        for call in missing
        if not _opening(call.kind, call.name) or not any(_alike(made, call.name, call.request, call.key))
    ]


def _opening(kind: str, name: str) -> str:
    """Return the operation on a new connection; '' for any other call."""
    library, _, verb = name.rpartition(".")
    return verb if kind == Kind.TOOL.value and library in _LIBRARIES and verb in _ANSWERS else ""


def _alike(calls: Iterable[CallRecord], name: str, request: str, key: str) -> Iterator[CallRecord]:
    """Yield the calls that prove a connection to the same database: an equal one, or a statement that names it."""
    library, database = name.rpartition(".")[0], _database(request)
    for call in calls:
        is_statement = call.name.startswith(f"{library}.") and not _opening(call.kind, call.name)
        is_same = bool(database) and is_statement and _database(call.request) == database
        if is_same or (call.name == name and call.key == key):
            yield call


def _database(request: str) -> str:
    """Return the database that a request names; '' if its statements name none."""
    try:
        arguments = json.loads(request)["arguments"]
        return str(arguments.get("database", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
