"""The facts about a unit in its recording: its process, and where the start of that process ends."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.attributes import UNIT, UNITS_BEFORE
from spanreplay.model.lane_names import UNIT_LANE as LANE

if TYPE_CHECKING:
    from spanreplay.model.call import Recording

__all__ = [
    "GIVEN",
    "LANE",
    "MESSAGES",
    "PROCESS",
    "READS",
    "UNIT",
    "WORKER",
    "Start",
    "count_before",
    "find_unit",
    "is_before",
]

PROCESS: Final = "process"
"""Member of `UNIT` and of the manifest: the id of the process's run."""
START: Final = "start"
"""Member of `UNIT`: the process's clock at the end of its start; everything up to that tick belongs to every unit."""
CALLS: Final = "calls"
"""Member of `UNIT`: the number of calls in the start."""
ROOT: Final = "root"
"""Member of `UNIT`: the root lane of the process, which may be one of several workers of the run."""
ORIGIN: Final = "origin"
"""Member of `UNIT`: the run of the process that forked the unit's, if that had made calls or drawn values before."""
WORKER: Final = "worker"
"""Member of `UNIT`: the run of the forked process that did the work; the start is its parent's."""
READS: Final = "reads"
"""Member of `UNIT`: reads that no call carried yet when the unit began, counted by process lane and source."""
MESSAGES: Final = "messages"
"""Member of the environment of a process and its units: whether each message that a loop takes is a unit."""
GIVEN: Final = "compute:input"
"""The first call of a unit that is a job, a message or a `with` block."""
MAIN: Final = "main"
"""The root lane of a process with a run of its own."""
_RUN_ID: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Start:
    """The start of a process, as recorded in its units."""

    process: str
    clock: int
    calls: int
    root: str = MAIN
    holes: Sequence[str] = ()
    """Reasons why the start can't be replayed completely."""
    origin: str = ""
    """The run of the process that forked this one, if a replay needs what it did before; '' if not."""

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs that a replay needs, besides the unit's own."""
        return (self.process, self.origin) if self.origin else (self.process,)

    def to_environment(self, before: int) -> dict[str, Any]:
        """Return the member for a root's environment; `before`: how many units the process had begun before."""
        started: dict[str, Any] = {PROCESS: self.process, START: self.clock, CALLS: self.calls, ROOT: self.root}
        return {**started, UNITS_BEFORE: before, **({ORIGIN: self.origin} if self.origin else {})}


def find_unit(environment: Mapping[str, Any]) -> Start | None:
    """Read a unit's start from the environment of its root; None if the run is not a unit, or it can't be read."""
    found = environment.get(UNIT)
    if not isinstance(found, Mapping):
        return None
    process, clock, calls, root = (found.get(name) for name in (PROCESS, START, CALLS, ROOT))
    if not (isinstance(process, str) and _RUN_ID.fullmatch(process)):  # it becomes the name of a file
        return None
    origin = found.get(ORIGIN)
    stated = origin if isinstance(origin, str) and _RUN_ID.fullmatch(origin) else ""
    if isinstance(clock, int) and isinstance(calls, int) and isinstance(root, str):
        return Start(process, clock, calls, root, origin=stated)
    return None


def count_before(unit: Recording) -> int:
    """Return how many units its process had begun before this one."""
    before = unit.root.env.get(UNIT, {}).get(UNITS_BEFORE)
    return before if isinstance(before, int) else 0


def is_before(other: Recording, unit: Recording) -> bool:
    """Whether another run is an earlier unit of the same process."""
    theirs, ours = find_unit(other.root.env), find_unit(unit.root.env)
    if theirs is None or ours is None or (theirs.process, theirs.root) != (ours.process, ours.root):
        return False
    if other.root.env[UNIT].get(WORKER) != unit.root.env[UNIT].get(WORKER):  # each fork counts its own units
        return False
    return other.run_id != unit.run_id and count_before(other) < count_before(unit)
