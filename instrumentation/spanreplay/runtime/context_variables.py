"""Setting context variables where the garbage collector may be at work.

Before Python 3.12 a collection may come in the midst of `ContextVar.set`, whoever calls it. What it finalizes (a client
of an SDK that closes itself, a generator that was left) may come to us; and whatever changes the very Context that is
being set leaves it torn: the process crashes, or reads variables that are none. So what a collection runs sets nothing
in the current Context, and no collection comes while we set.
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
    """Whether this thread collects garbage now.

    The collector reads the attribute of the phase's name, and that sets it, without a line of Python: a signal's
    exception that is raised in a callback of the collector is lost, such as the KeyboardInterrupt of Ctrl-C.
    """

    is_on = False
    start = property(methodcaller("__setattr__", "is_on", True))
    stop = property(methodcaller("__setattr__", "is_on", False))


_collecting: Final = _Collecting()
_setting: Final[list[None]] = []
"""One entry for each variable that is being set while no garbage is collected; a list's ends are changed at once."""


def is_collecting() -> bool:
    """Whether the calling code is run by a collection, where nothing may be set in the current Context."""
    return _collecting.is_on


def call_in_own_context(function: Callable[..., _R], *args: Any) -> _R:
    """What a collection runs, in a copy of the current Context, where it may set what it wants."""
    before, _collecting.is_on = _collecting.is_on, False
    try:
        return contextvars.copy_context().run(function, *args)
    finally:
        _collecting.is_on = before


def _set_without_collecting(variable: contextvars.ContextVar[_T], value: _T) -> contextvars.Token[_T] | None:
    if _collecting.is_on:
        return None
    if not _setting and not gc.isenabled():
        return variable.set(value)
    try:  # as below, without its call: this is done several times for each call that is recorded
        _setting.append(None)
        gc.disable()
        return variable.set(value)
    finally:
        if _setting:
            _setting.pop()
        if not _setting:
            gc.enable()


def _set_in_own_without_collecting(variable: contextvars.ContextVar[_T], value: _T) -> contextvars.Token[_T]:
    # No other thread comes between a look at the list and the call after it: they take turns after calls
    if not _setting and not gc.isenabled():
        return variable.set(value)  # the user's own choice
    try:
        _setting.append(None)  # in the block: after an interrupt here the collector is not left switched off
        gc.disable()
        return variable.set(value)
    finally:
        if _setting:
            _setting.pop()
        if not _setting:
            gc.enable()


def _reset_without_collecting(variable: contextvars.ContextVar[_T], token: contextvars.Token[_T] | None) -> None:
    if token is None or _collecting.is_on:
        return
    if not _setting and not gc.isenabled():
        _reset_plainly(variable, token)
        return
    try:
        _setting.append(None)
        gc.disable()
        _reset_plainly(variable, token)
    finally:
        if _setting:
            _setting.pop()
        if not _setting:
            gc.enable()


def _set_plainly(variable: contextvars.ContextVar[_T], value: _T) -> contextvars.Token[_T]:
    return variable.set(value)


def _reset_plainly(variable: contextvars.ContextVar[_T], token: contextvars.Token[_T] | None) -> None:
    if token is not None:
        kept: Any = variable.get(None)  # freed when all is done: what its end runs may set variables too
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
    """A process was forked while another thread, which is not there, had switched the collector off."""
    if _setting:
        _setting.clear()
        gc.enable()


if sys.version_info < (3, 12):
    gc.callbacks.append(functools.partial(getattr, _collecting))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_enable_in_child)
    set_variable, reset_variable = _set_without_collecting, _reset_without_collecting
    set_in_own_context = _set_in_own_without_collecting
else:
    set_variable, reset_variable, set_in_own_context = _set_plainly, _reset_plainly, _set_plainly
