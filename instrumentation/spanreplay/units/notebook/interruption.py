"""Interrupts a replayed cell after its last call, if a person interrupted it without cancelling any of its calls."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import posix
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from spanreplay.model.call import Kind
from spanreplay.runtime.run import active_run
from spanreplay.units.notebook.cell import BETWEEN

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Answers
    from spanreplay.runtime.run import Run

__all__ = ["await_calls", "has_call", "interrupting"]

_LOOK_S: Final = 0.05
_GRACE_S: Final = 0.5
"""How long a cell may run after its last call, in real time."""


async def await_calls(lane: str, name: str) -> None:
    """Wait until the unit's calls recorded before this one have begun."""
    run = active_run()
    if run is None or run.resolver.keeps:
        return
    session = run.resolver.answers
    then = session.index.at(lane, f"{Kind.COMPUTE.value}:{name}", 0)
    while then is not None:
        left = session.index.find_left(lane)
        if left is None or left.seq >= then.seq or session.is_stopped:
            return
        await asyncio.sleep(_LOOK_S)


def has_call(run: Run, lane: str, name: str) -> bool:
    """Whether the unit with this root lane has a recorded call of this name."""
    return run.resolver.answers.index.at(lane, f"{Kind.COMPUTE.value}:{name}", 0) is not None


@contextlib.contextmanager
def interrupting(run: Run, lane: str) -> Iterator[None]:
    """A block that is interrupted after the unit's last call, if it was interrupted between calls when recorded."""
    if not has_call(run, lane, BETWEEN):
        yield
        return
    over: list[None] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    _thread.start_new_thread(_interrupt, (run.resolver.answers, lane, over))
    try:
        yield
    finally:
        over.append(None)
        signal.signal(signal.SIGINT, before)


def _interrupt(session: Answers, lane: str, over: list[None]) -> None:
    never = _thread.allocate_lock()
    never.acquire()
    while not over:
        left = session.index.find_left(lane)
        is_due = left is None or left.name == BETWEEN
        never.acquire(timeout=_GRACE_S if is_due else _LOOK_S)
        if is_due and not over:
            posix.kill(posix.getpid(), signal.SIGINT)
            return
