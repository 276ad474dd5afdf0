"""An event loop that goes on in a fork of its process, in the middle of a step.

What the loop waits with belongs to both processes after a fork: the kernel's list of descriptors, and the pair of
sockets that wakes it. The child makes its own, and takes the place of the running loop again, which asyncio forgets.
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
    """Why the loop of this thread can't go on in a fork; empty if it can, or if there is none."""
    loop = running_loop()
    if loop is None or _is_known(loop):
        return ""
    return f"its event loop ({type(loop).__module__}.{type(loop).__qualname__}) can't go on in a fork"


def _is_known(loop: Any) -> bool:
    is_selector = isinstance(loop, asyncio.SelectorEventLoop)
    return is_selector and isinstance(getattr(loop, "_selector", None), getattr(selectors, "EpollSelector", ()))


def renew(loop: Any) -> None:
    """Go on with the loop that ran here when this process was forked; None: there was none."""
    if loop is None:
        return
    asyncio._set_running_loop(loop)
    asyncio.set_event_loop(loop)
    selector = loop._selector
    shared, selector._selector = selector._selector, select.epoll()
    shared.close()  # this process's descriptor: the parent's list stays what it is
    for key in selector.get_map().values():
        reads, writes = key.events & selectors.EVENT_READ, key.events & selectors.EVENT_WRITE
        selector._selector.register(key.fd, (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if writes else 0))
    loop._close_self_pipe()
    loop._make_self_pipe()
    if getattr(loop, "_signal_handlers", None):
        signal.set_wakeup_fd(loop._csock.fileno())
