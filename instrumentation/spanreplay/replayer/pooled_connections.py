"""Connections that a process keeps in a pool: which of its units opens one depends on the load.

A request that was served beside others opened its own connection, and finds a free one when replayed alone; or it used
one that an earlier request had left, and now there is none. Its database queries are still compared.

What a pool asks a new connection of a driver (PEP 249) before it hands it out has names of its own (`pymysql.setup.…`).
A unit that uses a connection of another one has a call that tells how that was set up (`pymysql.kept`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model.call import Kind, Outcome

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.calls.open_call import Crossing

__all__ = ["open_instead", "set_up", "without_opened"]

_NOTHING: Final = '{"value":{"value":null}}'
_ANSWERS: Final = {
    "connect": '{"value":null}',
    "create_function": '{"value":{"total_changes":0,"in_transaction":false}}',
    **dict.fromkeys(
        ("init", "set_type_codec", "reset_type_codec", "set_builtin_type_codec", "ping", "close"), _NOTHING
    ),
    "prepare": "",
}
"""The calls on a new connection before its first statement, on one that is taken again, and at its end → their results;
'' for the recorded one.
"""
_OF_DRIVERS: Final = ("connect", "kept", "setup")
"""The same of drivers whose requests name a driver: connecting, using another unit's connection, setting one up."""
_places: Final[WeakKeyDictionary[SharedState, dict[str, int]]] = WeakKeyDictionary()
_HARMLESS: Final = ("ping", "close")
"""What may be asked of a connection although nobody had asked it when recorded."""
_PONG: Final = '{"value":{"value":["data",null]}}'
_LIBRARIES: Final = frozenset({"sqlite3", "psycopg", "psycopg2", "asyncpg"})
"""Libraries whose connections are recorded as calls; in a replay none of them reaches a database."""
_UNNAMED: Final = frozenset({"asyncpg"})
"""Those whose statements don't name their database, and which often keep connections: any statement shows one."""
_POOL: Final = "pool"
"""In the meta of a call: that a pool connects, so that any statement of its library shows a connection."""


def set_up(session: SharedState, crossing: Crossing) -> bool:
    """Answer a call that sets up a connection, if its place in the recording is another one or, for drivers, none."""
    spec = crossing.spec
    is_of_driver = bool(_of_driver(spec.name, spec.request)[1])
    if not is_of_driver and not _opening(spec.kind, spec.name):
        return False
    slot, index = (crossing.lane.path, crossing.boundary, crossing.index), session.index
    if index.find_exact(slot, crossing.key_hex, "") is not None:
        return False
    moved = index.find_moved(slot, crossing.key_hex)
    if moved is None:
        return is_of_driver and open_instead(session, crossing)
    index.take(moved.call)
    _serve(session, crossing, moved.call, moved.call.response)
    return True


def open_instead(session: SharedState, crossing: Crossing) -> bool:
    """Answer a unit that opens a connection which existed already when recorded; return whether it does."""
    spec = crossing.spec
    calls = session.recording.calls
    places = _places.setdefault(session, {})
    answer = answer_of_driver(calls, spec.name, spec.request, places) if spec.kind == Kind.TOOL.value else None
    if answer is not None:
        _serve(session, crossing, *answer)
        return True
    verb = _opening(spec.kind, spec.name)
    is_pool = bool(spec.meta.get(_POOL))
    alike = next(_alike(calls, spec.name, spec.request, crossing.key_hex, is_pool=is_pool), None) if verb else None
    if alike is None:
        return False
    _serve(session, crossing, alike, _ANSWERS[verb] or alike.response)
    return True


def _serve(session: SharedState, crossing: Crossing, alike: CallRecord, response: str) -> None:
    crossing.served = crossing.paired = replace(
        alike,
        name=crossing.spec.name,
        request=crossing.spec.request,
        response=response,
        outcome=(Outcome.ERROR if response.startswith('{"error"') else Outcome.OK).value,
        meta={},
        reads="",
        clocks=(),
        end_seq=-1,
        joint=-1,
    )
    session.counts["beside"] = session.counts.get("beside", 0) + 1


def answer_of_driver(
    calls: Iterable[CallRecord], name: str, request: str, places: dict[str, int]
) -> tuple[CallRecord, str] | None:
    """Return the answer to a call that a driver's pool makes only now, with the call that contains it.

    `places`: driver → the place of its next question; it asks in the recorded order.
    """
    driver, verb = _of_driver(name, request)
    if not verb:
        return None
    for call in calls:
        if _of_driver(call.name, call.request) not in ((driver, "connect"), (driver, "kept")):
            continue
        value = _read(call.response).get("value")
        if not isinstance(value, dict):
            continue
        if verb != "setup":
            places[driver] = 0
            return call, json.dumps({"value": {**value, "class": value.get("class", ""), "setup": []}})
        asked = list(value.get("setup") or ())
        arguments, first = _read(request).get("arguments"), places.get(driver, 0)
        for at in (*range(first, len(asked)), *range(min(first, len(asked)))):
            if asked[at].get("name") == name and asked[at].get("arguments") == arguments:
                places[driver] = at + 1
                return call, json.dumps({key: asked[at][key] for key in ("error", "value") if key in asked[at]})
        if name.removeprefix(f"{driver}.setup.") in _HARMLESS:
            return call, _PONG
    return None


def _of_driver(name: str, request: str) -> tuple[str, str]:
    """Return the driver that a call's request names, and what the call does with a new connection; else ''."""
    if '"driver":' not in request:
        return "", ""
    driver = str(_read(request).get("driver", ""))
    verb = name[len(driver) + 1 :].partition(".")[0] if driver and name.startswith(f"{driver}.") else ""
    return (driver, verb) if verb in _OF_DRIVERS else ("", "")


def without_opened(missing: list[CallRecord], calls: Iterable[CallRecord], used: set[int]) -> list[CallRecord]:
    """Return the missing calls, except those that opened a connection if the unit has now used another one."""
    missing = _without_drivers(missing, calls, used)
    if not any(_opening(call.kind, call.name) for call in missing):
        return missing
    made = [call for call in calls if call.seq in used]
    return [
        call
        for call in missing
        if not _opening(call.kind, call.name)
        or not any(_alike(made, call.name, call.request, call.key, is_pool=bool(call.meta.get(_POOL))))
    ]


def _without_drivers(missing: list[CallRecord], calls: Iterable[CallRecord], used: set[int]) -> list[CallRecord]:
    found = [(call, *_of_driver(call.name, call.request)) for call in missing]
    if not any(verb for _, _, verb in found):
        return missing
    opened = {_of_driver(call.name, call.request) for call in calls if call.seq in used}
    has = {driver for driver, verb in opened if verb in ("connect", "kept")}
    has |= {driver for _, driver, verb in found if verb == "kept"}  # it has made one instead
    return [call for call, driver, verb in found if verb != "kept" and not (verb and driver in has)]


def _opening(kind: str, name: str) -> str:
    """Return the operation on a new connection; '' for any other call."""
    library, _, verb = name.rpartition(".")
    return verb if kind == Kind.TOOL.value and library in _LIBRARIES and verb in _ANSWERS else ""


def _alike(calls: Iterable[CallRecord], name: str, request: str, key: str, *, is_pool: bool) -> Iterator[CallRecord]:
    """Yield the calls that prove a connection to the same database: an equal one, or a statement that names it."""
    library, _, verb = name.rpartition(".")
    database = _database(request)
    is_unnamed = is_pool or (library in _UNNAMED and bool(_ANSWERS.get(verb)))
    for call in calls:
        is_statement = call.name.startswith(f"{library}.") and not _opening(call.kind, call.name)
        is_same = database == _database(call.request) if database else is_unnamed
        if (is_statement and is_same) or (call.name == name and call.key == key):
            yield call


def _database(request: str) -> str:
    """Return the database that a request names; '' if its statements name none."""
    arguments = _read(request).get("arguments")
    return str(arguments.get("database", "")) if isinstance(arguments, dict) else ""


def _read(text: str) -> dict[str, Any]:
    """Return a request or response; empty if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
