"""What a recording states of the unit that it is: of which process, and where the start of that process ends."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model.attributes import UNIT, UNITS_BEFORE
from spanreplay.runtime.lanes import UNIT_LANE as LANE

__all__ = ["GIVEN", "LANE", "PROCESS", "READS", "UNIT", "WORKER", "Start", "find_unit"]

PROCESS: Final = "process"
"""Member of `UNIT` and of the manifest: the id of the process's run."""
START: Final = "start"
"""Member of `UNIT`: the process's clock at the end of its start; what happened until then belongs to every unit."""
CALLS: Final = "calls"
"""Member of `UNIT`: how many calls the start has."""
ROOT: Final = "root"
"""Member of `UNIT`: the root lane of the process, which may be one of several workers of the run."""
WORKER: Final = "worker"
"""Member of `UNIT`: the run of the forked process that did the work; the start is that of the process it came from."""
READS: Final = "reads"
"""Member of `UNIT`: by lane of the process and source, how many reads no call carried yet when the unit began."""
GIVEN: Final = "compute:input"
"""The first call of a unit that is a job, a message or a block of the program."""
MAIN: Final = "main"
"""The root lane of a process that is a run by itself."""
_RUN_ID: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Start:
    """The start of a process, as its units state it."""

    process: str
    clock: int
    calls: int
    root: str = MAIN
    holes: Sequence[str] = ()
    """Why the start can't be replayed whole."""

    def to_environment(self, before: int) -> dict[str, Any]:
        """As the environment of a root has it; `before`: how many units the process had begun before."""
        started = {PROCESS: self.process, START: self.clock, CALLS: self.calls, ROOT: self.root}
        return {**started, UNITS_BEFORE: before}


def find_unit(environment: Mapping[str, Any]) -> Start | None:
    """What the environment of a root says of its unit; None for a run that is no unit, or says nothing readable."""
    found = environment.get(UNIT)
    if not isinstance(found, Mapping):
        return None
    process, clock, calls, root = (found.get(name) for name in (PROCESS, START, CALLS, ROOT))
    if not (isinstance(process, str) and _RUN_ID.fullmatch(process)):  # it becomes the name of a file
        return None
    if isinstance(clock, int) and isinstance(calls, int) and isinstance(root, str):
        return Start(process, clock, calls, root)
    return None
