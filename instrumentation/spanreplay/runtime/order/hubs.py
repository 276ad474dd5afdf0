"""Greenlets: which gevent hub switches between those of the calling thread, and which of our state belongs to each.

gevent is used only if the agent has imported it.
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
"""State kept per thread that belongs to the greenlet running in it."""


def running_hub() -> Any:
    """The hub that the running greenlet may switch to; None without gevent, and in the hub itself."""
    module = sys.modules.get(_HUBS)
    hub = None if module is None else getattr(module, "get_hub_if_exists", _no_hub)()
    return None if hub is None or sys.modules["greenlet"].getcurrent() is hub else hub


def _no_hub() -> None:
    """Stand-in while the module is still being imported."""


def call_hub(wait: Callable[[], T]) -> T:
    """Switch to the hub. Other greenlets find fresh thread state; the running greenlet gets its own back afterwards."""
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
