"""Sets context variables safely while the garbage collector may run.

Before Python 3.12 a collection may start in the middle of any `ContextVar.set`. The finalizers that it runs (of an SDK
client that closes itself, of an abandoned generator) may call us; and anything that then changes the Context being set
corrupts it: the process crashes, or reads objects that are not variables. So code run by a collection sets nothing in
the current Context, and no collection runs while we set.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable
from operator import methodcaller
from typing import Any, Final, Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


class _Collecting(threading.local):
    """Whether this thread is collecting garbage.

    The collector reads the attribute named after its phase, which sets the flag without any Python code: a signal's
    exception raised in a Python callback of the collector, such as the KeyboardInterrupt of Ctrl-C, would be lost.
    """

    is_on = False
    start = property(methodcaller("__setattr__", "is_on", True))
    stop = property(methodcaller("__setattr__", "is_on", False))


_collecting: Final = _Collecting()
_setting: Final[list[None]] = []
"""One entry for each variable that is being set with collection disabled; list appends and pops are atomic."""
_is_off = False
"""Whether we have disabled collection, not the user: until we enable it, also when the last entry is gone already."""


def is_collecting() -> bool:
    """Whether the calling code is run by a collection, where nothing may be set in the current Context."""
    return _collecting.is_on


def call_in_own_context(function: Callable[..., _R], *args: Any) -> _R:
    """Run code called by a collection in a copy of the current Context, where it may set variables."""
    before, _collecting.is_on = _collecting.is_on, False
    try:
        return contextvars.copy_context().run(function, *args)
    finally:
        _collecting.is_on = before


def _set_without_collecting(variable: contextvars.ContextVar[_T], value: _T) -> contextvars.Token[_T] | None:
    if _collecting.is_on:
        return None
    global _is_off
    if not _setting and not _is_off and not gc.isenabled():
        return variable.set(value)
    try:  # as below, inlined: this runs several times for each recorded call
        _setting.append(None)
        _is_off = True
        gc.disable()
        return variable.set(value)
    finally:
        if _setting:
            _setting.pop()
        if not _setting:
            _is_off = False
            gc.enable()


def _set_in_own_without_collecting(variable: contextvars.ContextVar[_T], value: _T) -> contextvars.Token[_T]:
    # No other thread runs between a check of the list and the call after it: threads switch after calls
    global _is_off
    if not _setting and not _is_off and not gc.isenabled():
        return variable.set(value)  # the user has disabled collection
    try:
        _setting.append(None)  # inside the block, so that an interrupt here does not leave the collector disabled
        _is_off = True
        gc.disable()
        return variable.set(value)
    finally:
        if _setting:
            _setting.pop()
        if not _setting:
            _is_off = False
            gc.enable()


def _reset_without_collecting(variable: contextvars.ContextVar[_T], token: contextvars.Token[_T] | None) -> None:
    if token is None or _collecting.is_on:
        return
    global _is_off
    if not _setting and not _is_off and not gc.isenabled():
        _reset_plainly(variable, token)
        return
    try:
        _setting.append(None)
        _is_off = True
        gc.disable()
        _reset_plainly(variable, token)
    finally:
        if _setting:
            _setting.pop()
        if not _setting:
            _is_off = False
            gc.enable()


def _set_plainly(variable: contextvars.ContextVar[_T], value: _T) -> contextvars.Token[_T]:
    return variable.set(value)


def _reset_plainly(variable: contextvars.ContextVar[_T], token: contextvars.Token[_T] | None) -> None:
    if token is not None:
        kept: Any = variable.get(None)  # freed at the very end: its finalizer may set variables too
        variable.reset(token)
        del kept


class holding(Generic[_T]):  # noqa: N801 -- reads as a statement: `with holding(variable, value):`
    """A block, and tasks started in it, in which a variable has this value."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: contextvars.ContextVar[_T], value: _T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = set_variable(self._variable, self._value)

    def __exit__(self, *exc_info: object) -> None:
        reset_variable(self._variable, self._token)


def _enable_in_child() -> None:
    """Enable collection in a forked child if another thread, which does not exist there, had disabled it."""
    global _is_off
    if _setting or _is_off:
        _setting.clear()
        _is_off = False
        gc.enable()


if sys.version_info < (3, 12):
    gc.callbacks.append(functools.partial(getattr, _collecting))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_enable_in_child)
    set_variable, reset_variable = _set_without_collecting, _reset_without_collecting
    set_in_own_context = _set_in_own_without_collecting
else:
    set_variable, reset_variable, set_in_own_context = _set_plainly, _reset_plainly, _set_plainly
