"""Effects that belong to the run whoever begins them: programs that are started, databases that are opened.

A library that does not count as the agent's may start one for it. Excluded is code that reports about the agent, runs
its tests, serves it, carries the traffic of another boundary, or only identifies the machine.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

from spanreplay.model import distributions, ids, owners
from spanreplay.runtime.agent_patches import asks, recorded_run
from spanreplay.runtime.caller.caller import FRAMES_MAX, is_among, is_ours
from spanreplay.runtime.calls.open_call import is_plumbing
from spanreplay.runtime.process.outside_io import is_harmless_spawn, is_telemetry_stack, is_unwatched
from spanreplay.runtime.processes import starting

_ASIDE: Final = (owners.RUNNERS, owners.SERVERS)


def is_of_run(frame: FrameType) -> bool:
    """Whether a program or a database that is begun in this frame belongs to the run."""
    if asks(frame):
        return True
    run = recorded_run()
    if run is None or is_unwatched() or starting.is_now or is_plumbing(run):
        return False
    if run.written is not None and run.written.is_outside():
        return False
    below = sys._getframe(1).f_code  # the patch, which a reporting tool may have wrapped
    return not (_is_aside(frame) or is_telemetry_stack(frame, below) or is_harmless_spawn(frame))


def _is_aside(frame: FrameType | None) -> bool:
    """Whether a server, a test runner, a framework's bookkeeping, Python or spanreplay begins it on its own account."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return True
        name = frame.f_code.co_filename
        if is_ours(name) or is_among(name, _ASIDE):
            return True
        below = distributions.split_site(name)[1]
        if below:
            return below.startswith(owners.BOOKKEEPING)
        if not (name.startswith("<frozen") or ids.is_stdlib_file(name)):
            return False
        frame = frame.f_back
    return True
