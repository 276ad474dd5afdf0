"""Shortens tracebacks of exceptions that end a replay's agent: only its own frames, or nothing if the verdict says it.

`SPANREPLAY_DEBUG=true` shows everything.
"""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import Any, Final

from spanreplay.model.config import read_flag
from spanreplay.model.errors import ReplayMiss
from spanreplay.model.here import PACKAGE
from spanreplay.runtime.patches import Patches

__all__ = ["install"]

EXCEPTIONS_MAX: Final = 100
FRAMES_MAX: Final = 10_000


def install(patches: Patches) -> None:
    """Put our hooks in front of `sys.excepthook` and `threading.excepthook`."""
    if read_flag("SPANREPLAY_DEBUG", os.environ):
        return
    pid = os.getpid()

    def of_process(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        # A forked child has no verdict that reports it
        return (_of_process if os.getpid() == pid else _plainly)(wrapped, instance, args, kwargs)

    patches.wrap(sys, "excepthook", of_process)
    patches.wrap(threading, "excepthook", _of_thread)


def _plainly(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs)


def _of_process(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    exception = args[1] if len(args) > 1 else None
    if isinstance(exception, BaseException):
        if _is_told(exception):
            return None
        _strip_chain(exception)
        args = (args[0], exception, exception.__traceback__)
    return wrapped(*args, **kwargs)


def _of_thread(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    exception = getattr(args[0], "exc_value", None) if args else None
    if isinstance(exception, BaseException):
        if _is_told(exception):
            return None
        _strip_chain(exception)
        fields = (args[0].exc_type, exception, exception.__traceback__, args[0].thread)
        args = (threading.ExceptHookArgs(fields),)
    return wrapped(*args, **kwargs)


def _is_told(exception: BaseException) -> bool:
    """Whether the verdict reports the exception fully: a call without an answer, alone or in a group of such calls."""
    inner = getattr(exception, "exceptions", None)
    if isinstance(inner, tuple) and inner:
        return all(isinstance(each, ReplayMiss) for each in inner)
    return isinstance(exception, ReplayMiss)


def _strip_chain(exception: BaseException) -> None:
    waiting: list[BaseException | None] = [exception]
    seen: set[int] = set()
    while waiting and len(seen) < EXCEPTIONS_MAX:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _strip(each.__traceback__)
        waiting += [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())]


def _strip(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without frames of this package."""
    kept: list[TracebackType] = []
    while traceback is not None and len(kept) < FRAMES_MAX:
        if not traceback.tb_frame.f_code.co_filename.startswith(PACKAGE):
            kept.append(traceback)
        traceback = traceback.tb_next
    found: TracebackType | None = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found
