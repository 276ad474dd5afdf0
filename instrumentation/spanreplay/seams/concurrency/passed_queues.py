"""Seam: queues into which a tool's body puts what other code of the agent reads while the tool works.

Records no calls; the items are kept with the call that put them (`runtime/calls/passed.py`).
"""

from __future__ import annotations

import asyncio
import functools
import sys
from types import ModuleType
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.calls import passed
from spanreplay.runtime.lanes import is_in_call
from spanreplay.runtime.patches import Patches

_getframe: Final = sys._getframe
_PUT_NOWAIT: Final = "put_nowait"


def install(module: ModuleType, patches: Patches) -> None:
    """Patch the queues of `asyncio`, `queue` and LangGraph, and what hands items to an event loop."""
    if module.__name__ == "uvloop":
        _install_soon(patches, module.Loop)
        return
    if module is asyncio:
        _install_queue(patches, asyncio.Queue, _PUT_NOWAIT, "get_nowait")
        _install_soon(patches, asyncio.BaseEventLoop)
        return
    for name in ("Queue", "SyncQueue"):
        kind = vars(module).get(name)
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            _install_queue(patches, kind, "put", "get")


def _install_queue(patches: Patches, kind: Any, put_name: str, get_name: str) -> None:
    real_init, real_put, real_get = kind.__init__, getattr(kind, put_name), getattr(kind, get_name)

    @functools.wraps(real_init)
    def init(queue: Any, *args: Any, **kwargs: Any) -> None:
        real_init(queue, *args, **kwargs)
        guard.guarded("naming a queue", passed.name_queue, queue, _getframe(1))

    @functools.wraps(real_put)
    def put(queue: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
        if is_in_call():
            guard.guarded("keeping what a call passes on", passed.note, queue, item)
        return real_put(queue, item, *args, **kwargs)

    @functools.wraps(real_get)
    def get(queue: Any, *args: Any, **kwargs: Any) -> Any:
        if is_in_call():
            passed.note_taken(queue)
        return real_get(queue, *args, **kwargs)

    patches.replace(kind, "__init__", init)
    patches.replace(kind, put_name, put)
    patches.replace(kind, get_name, get)


def _install_soon(patches: Patches, loop_type: Any) -> None:
    real = loop_type.call_soon_threadsafe

    @functools.wraps(real)
    def call_soon_threadsafe(loop: Any, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None and len(args) == 1 and is_in_call() and getattr(callback, "__name__", "") == _PUT_NOWAIT:
            queue = getattr(callback, "__self__", None)
            if guard.guarded("keeping what a call passes on", passed.note, queue, args[0], passed.SOON):
                context = passed.was_noted(args[0])
        return real(loop, callback, *args, context=context)

    patches.replace(loop_type, "call_soon_threadsafe", call_soon_threadsafe)
