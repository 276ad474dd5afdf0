"""Seam: gevent. Records nothing by itself; names the lane of each greenlet.

A greenlet starts in an empty context: it belongs to the run of the code that spawned it, in a lane below that code's.
The recorder's state per thread belongs to one greenlet, and is exchanged when a hub switches to another.

A replay lets calls end in their recorded order, and switches to the hub meanwhile. Other waits of greenlets are not
ordered: a hub's own primitives expect that a greenlet which they wake goes on immediately.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from spanreplay.model import guard
from spanreplay.runtime.caller import caller
from spanreplay.runtime.caller.running import RUN
from spanreplay.runtime.lanes import (
    current_crossing,
    current_lane,
    enter_contexts,
    has_lane,
    inside_thread,
    label_of,
    peel,
)
from spanreplay.runtime.order.hubs import call_hub
from spanreplay.runtime.order.wait_ends import unwatched
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.concurrency.carried import carried


def install(module: Any, patches: Patches) -> None:
    """Patch `gevent.hub`; register for new greenlets with `gevent`."""
    if module.__name__ == "gevent.hub":
        patches.wrap(module.Hub, "switch", _switch)
        patches.wrap(module.Hub, "wait", _wait)
        patches.wrap(module, "spawn_raw", _spawn_raw)
    else:
        module.Greenlet.add_spawn_callback(_spawned)


# ── lanes ───────────────────────────────────────────────────────────────────────────────────────────
def _is_of_run() -> bool:
    """Whether the running greenlet is the agent's: not a hub, and not one that a server uses for its connections."""
    return has_lane() or RUN.get() is not None or getcurrent().parent is None


def _spawned(greenlet: Any) -> None:
    """Called by gevent when a greenlet is about to be started."""
    guard.guarded("the lane of a greenlet", _follow, greenlet)


def _follow(greenlet: Any) -> None:
    run = active_run()
    work = getattr(greenlet, "_run", None)
    if run is None or run.is_ended or work is None or not _is_of_run():
        return
    if isinstance(getattr(work, "__self__", None), threading.Thread):
        return  # its lane is that of the thread
    greenlet._run = _Work(run, work, greenlet.args, sys._getframe(2))


def _spawn_raw(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or run.is_ended or not args or not _is_of_run():
        return wrapped(*args, **kwargs)
    made = guard.guarded("the lane of a greenlet", _Work, run, args[0], args[1:], sys._getframe(1))
    return wrapped(made or args[0], *args[1:], **kwargs)


class _Work:
    """The function that a greenlet runs, in a lane of its own."""

    def __init__(self, run: Run, function: Callable[..., Any], args: tuple[Any, ...], frame: Any) -> None:
        functools.update_wrapper(self, function)
        work, contexts = peel(function, args)
        self._parent = current_lane(run.root_lane)
        self._lane = self._parent.child(label_of("g", work), current_crossing(run.root_lane))
        enter_contexts(contexts, self._lane)
        self._function = function
        self._by, self._is_background = caller.who_hands(frame), caller.handed.is_background
        self._carried = carried(self._lane)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        by, is_background = self._by, self._is_background
        with inside_thread(self._parent, self._lane, by=by, is_background=is_background), self._carried:
            return self._function(*args, **kwargs)


caller.enters_thread(_Work.__call__.__code__)


# ── waits ───────────────────────────────────────────────────────────────────────────────────────────
def _switch(wrapped: Any, hub: Any, args: Any, kwargs: Any) -> Any:
    """Exchange the per-thread state when a greenlet switches to the hub."""
    if getcurrent() is hub or active_run() is None:
        return wrapped(*args, **kwargs)
    return call_hub(lambda: wrapped(*args, **kwargs))


def _wait(wrapped: Any, hub: Any, args: Any, kwargs: Any) -> Any:
    """Wait for a watcher of the loop (a timer or a descriptor); waits inside are not the agent's."""
    with unwatched():
        return wrapped(*args, **kwargs)
