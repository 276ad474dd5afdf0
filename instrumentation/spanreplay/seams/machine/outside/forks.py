"""The effect of a fork on its run: the child is either a process of its own or a program being started.

A `subprocess` in Python code (gevent's, or a library's own) forks and calls `exec`: the child lives for a moment, in
which it does nothing for the agent. It is a program that was started, not part of a run.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from spanreplay.model import ids
from spanreplay.runtime.process.outside_io import is_harmless_spawn, starts_program
from spanreplay.seams.machine.outside import leaks

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

__all__ = ["note_fork"]


def note_fork(run: Run) -> None:
    """Note that the running code has forked; called in the parent. A program is a leak, any other child a hole."""
    frame = sys._getframe(1)
    if not starts_program(frame):
        run.forks += 1
        run.hole(f"the process forked at {ids.find_caller(3)}: calls of the child are not in this run")
        leaks.note("fork", "os.fork", "", is_hole=False)
    elif run.resolver.connects:
        leaks.note("process", "os.fork", "a program")
    elif not is_harmless_spawn(frame):
        from spanreplay.replayer.resolve.session import Session
        from spanreplay.replayer.sandbox import hermetic

        session = run.resolver.answers
        if isinstance(session, Session):
            hermetic.block(session, run, "process:start", "starting a program with os.fork")
