"""Seam: the agent's code polls whether another thread is done, without waiting for it.

The answers of `Future.done` and `Thread.is_alive` depend on timing, so each is a read, like one of the clock. A replay
gives the recorded answer, after waiting for the thread if it was over when recorded. Only polls of the agent's own code
are reads: how often a library polls depends on timing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import _base as base
from typing import Any, Final

from spanreplay.model import guard, ids
from spanreplay.runtime.lanes import current_crossing, current_lane
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Source, source
from spanreplay.runtime.run import active_run

_getframe: Final = sys._getframe
DONE: Final = source("thread", "Future.done", is_loose=True)
ALIVE: Final = source("thread", "Thread.is_alive", is_loose=True)


def _poll(real: Callable[[Any], bool], shown: Source, instance: Any, *, over: bool) -> bool:
    """The answer that the agent is given; `over` is the final answer."""
    run = active_run()
    if run is None or run.reads is None or current_crossing(run.root_lane) is not None:
        return real(instance)
    found = guard.guarded(
        "a look at a thread", run.reads.read, current_lane(run.root_lane), shown, lambda: real(instance)
    )
    if found is over:
        run.order.await_seen(lambda: real(instance) is over)
    return real(instance) if found is None else bool(found)


def install_look(patches: Patches, owner: Any, name: str, shown: Source, *, over: bool) -> None:
    """Patch one way to poll; `over` is the final answer."""
    real = getattr(owner, name)

    def look(self: Any) -> bool:
        if not ids.is_agent_file(_getframe(1).f_code.co_filename):
            return bool(real(self))
        return _poll(real, shown, self, over=over)

    look.__name__, look.__qualname__, look.__doc__ = name, f"{owner.__name__}.{name}", real.__doc__
    patches.replace(owner, name, look)


def install(patches: Patches) -> None:
    """Patch the two ways to poll."""
    install_look(patches, base.Future, "done", DONE, over=True)
    install_look(patches, threading.Thread, "is_alive", ALIVE, over=False)
