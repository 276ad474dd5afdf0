"""Continues an event loop in a fork of its process, in the middle of a callback.

After a fork both processes share what the loop waits on: the kernel's epoll list, and the socket pair that wakes it.
The child creates its own, and sets the running loop again, because asyncio forgets it in a fork.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import signal
from typing import Any

from spanreplay.runtime.order.loops import running_loop

__all__ = ["find_obstacle", "renew"]


def find_obstacle() -> str:
    """Return why this thread's loop can't continue in a fork; empty if it can, or if there is no loop."""
    loop = running_loop()
    if loop is None or _is_known(loop):
        return ""
    return f"its event loop ({type(loop).__module__}.{type(loop).__qualname__}) can't go on in a fork"


def _is_known(loop: Any) -> bool:
    is_selector = isinstance(loop, asyncio.SelectorEventLoop)
    return is_selector and isinstance(getattr(loop, "_selector", None), getattr(selectors, "EpollSelector", ()))


def renew(loop: Any) -> None:
    """Continue the loop that was running when this process was forked; None: there was none."""
    if loop is None:
        return
    asyncio._set_running_loop(loop)
    asyncio.set_event_loop(loop)
    selector = loop._selector
    shared, selector._selector = selector._selector, select.epoll()
    shared.close()  # closes only this process's descriptor: the parent's epoll list is unchanged
    for key in selector.get_map().values():
        reads, writes = key.events & selectors.EVENT_READ, key.events & selectors.EVENT_WRITE
        selector._selector.register(key.fd, (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if writes else 0))
    loop._close_self_pipe()
    loop._make_self_pipe()
    if getattr(loop, "_signal_handlers", None):
        signal.set_wakeup_fd(loop._csock.fileno())
