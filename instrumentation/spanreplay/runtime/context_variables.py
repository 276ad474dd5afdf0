"""Setting context variables where the garbage collector may be at work.

Before Python 3.12 a collection may come in the midst of `ContextVar.set`, whoever calls it. What it finalizes (a client
of an SDK that closes itself, a generator that was left) may come to us; and whatever changes the very Context that is
being set leaves it torn: the process crashes, or reads variables that are none. So what a collection runs sets nothing
in the current Context, and no collection comes while we set.
"""

from __future__ import annotations

import contextvars
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")
_collector = [0]
"""The thread that collects garbage now; 0: none does. There is one collection at a time."""
_setting: Final[list[None]] = []
"""One entry for each variable that is being set while no garbage is collected; a list's ends are changed at once."""


def _note_collection(phase: str, _: dict[str, int]) -> None:
    _collector[0] = get_ident() if phase == "start" else 0


def is_collecting() -> bool:
    """Whether the calling code is run by a collection, where nothing may be set in the current Context."""
    return _collector[0] != 0 and _collector[0] == get_ident()


def call_in_own_context(function: Callable[..., _R], *args: Any) -> _R:
    """What a collection runs, in a copy of the current Context, where it may set what it wants."""
    collector, _collector[0] = _collector[0], 0
    try:
        return contextvars.copy_context().run(function, *args)
    finally:
        _collector[0] = collector


def _set_without_collecting(variable: contextvars.ContextVar[_T], value: _T) -> contextvars.Token[_T] | None:
    return None if is_collecting() else _set_in_own_without_collecting(variable, value)


def _set_in_own_without_collecting(variable: contextvars.ContextVar[_T], value: _T) -> contextvars.Token[_T]:
    # No other thread comes between a look at the list and the call after it: they take turns after calls
    if not _setting and not gc.isenabled():
        return variable.set(value)  # the user's own choice
    _setting.append(None)
    gc.disable()
    try:
        return variable.set(value)
    finally:
        _setting.pop()
        if not _setting:
            gc.enable()


def _reset_without_collecting(variable: contextvars.ContextVar[_T], token: contextvars.Token[_T] | None) -> None:
    if token is None or is_collecting():
        return
    if not _setting and not gc.isenabled():
        _reset_plainly(variable, token)
        return
    _setting.append(None)
    gc.disable()
    try:
        _reset_plainly(variable, token)
    finally:
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


@contextmanager
def holding(variable: contextvars.ContextVar[_T], value: _T) -> Iterator[None]:
    """A block, and tasks started in it, in which a variable has this value."""
    token = set_variable(variable, value)
    try:
        yield
    finally:
        reset_variable(variable, token)


def _enable_in_child() -> None:
    """A process was forked while another thread, which is not there, had switched the collector off."""
    if _setting:
        _setting.clear()
        gc.enable()


if sys.version_info < (3, 12):
    gc.callbacks.append(_note_collection)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_enable_in_child)
    set_variable, reset_variable = _set_without_collecting, _reset_without_collecting
    set_in_own_context = _set_in_own_without_collecting
else:
    set_variable, reset_variable, set_in_own_context = _set_plainly, _reset_plainly, _set_plainly
