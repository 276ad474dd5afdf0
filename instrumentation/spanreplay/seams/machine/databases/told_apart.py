"""Which of several connections of a script a request is made on: all but the first one of a lane say so.

A unit of a server may use a connection that another one has made, and a library's pool gives out whichever is free:
there the number says nothing, and none is told.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.process.noted_effects import TOLD_APART
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.databases.dbapi_setup import CONNECTION, find_callers

__all__ = ["count_made", "is_of_script", "mark", "note_made"]

_MAIN: Final = "main"
"""The first part of a lane that is no unit's."""
_labels: Final[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()
_made: Final[WeakKeyDictionary[Run, dict[tuple[str, str], int]]] = WeakKeyDictionary()
"""Run → driver and lane → how many connections the script itself has made there."""


def is_of_script() -> bool:
    """Whether the caller is no unit of a server or worker."""
    run = recorded_run()
    return run is not None and current_lane(run.root_lane).path.partition("/")[0] == _MAIN


def count_made(driver: str) -> int:
    """Return which of a driver's connections a lane of the script has made now; 1 outside of a script."""
    run = recorded_run()
    if run is None or not is_of_script():
        return 1
    made, place = _made.setdefault(run, {}), (driver, current_lane(run.root_lane).path)
    made[place] = made.get(place, 0) + 1
    return made[place]


def note_made(connection: Any, driver: str, own: tuple[str, ...] = ()) -> Any:
    """Number a connection that has just been made, if the agent itself has made it; return it.

    `own`: ends of the paths of the driver's own files, between the agent and the caller.
    """
    run = recorded_run()
    if run is not None and run.resolver.has(TOLD_APART):
        others = [code for _, code in find_callers() if not (own and code.co_filename.endswith(own))]
        if not others:
            _labels[connection] = count_made(driver)
    return connection


def mark(connection: Any) -> dict[str, Any]:
    """Return what a request says of the connection that it is made on."""
    label = 1 if connection is None else _labels.get(connection, 1)
    return {CONNECTION: label} if label > 1 and is_of_script() else {}
