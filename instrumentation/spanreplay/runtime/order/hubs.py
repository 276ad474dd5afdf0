"""Greenlets: which hub switches between those of the calling thread, and what of ours belongs to each of them.

gevent is asked only where the agent has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

from spanreplay.runtime.caller.caller import handed
from spanreplay.runtime.lanes import thread_state
from spanreplay.runtime.order.counted import counted
from spanreplay.runtime.order.wait_ends import wait_state

T = TypeVar("T")
_HUBS: Final = "gevent._hub_local"
_OF_THREAD: Final = (thread_state, handed, wait_state, counted)
"""What is kept for each thread, and belongs to the greenlet that runs in it."""


def running_hub() -> Any:
    """The hub that the running greenlet may give way to; None without gevent, and in the hub itself."""
    module = sys.modules.get(_HUBS)
    hub = None if module is None else getattr(module, "get_hub_if_exists", _no_hub)()
    return None if hub is None or sys.modules["greenlet"].getcurrent() is hub else hub


def _no_hub() -> None:
    """What a module gives that is still being imported."""


def call_hub(wait: Callable[[], T]) -> T:
    """Give way to the hub: whatever runs until then finds the thread as new, and the running greenlet as it left it."""
    states = [vars(local) for local in _OF_THREAD]
    kept = [state.copy() for state in states]
    for state in states:
        state.clear()
    try:
        return wait()
    finally:
        for state, before in zip(states, kept, strict=True):
            state.clear()
            state.update(before)
