"""The run that the calling code belongs to, if it is not the run of the process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

from spanreplay.runtime.context_variables import holding, reset_variable, set_variable

__all__ = ["IN_UNIT", "RUN", "entered", "is_between_units", "is_off", "set_serving", "within_unit"]

RUN: Final[ContextVar[Any]] = ContextVar("spanreplay_run", default=None)
"""The run of the calling code; None if that is the run of the process, or none."""

IN_UNIT: Final[ContextVar[bool]] = ContextVar("spanreplay_in_unit", default=False)
"""Whether the calling code works on the unit that a replay gives to it, in the run of the whole process."""


class _Serving:
    is_now = False


_serving: Final = _Serving()


def set_serving(is_serving: bool) -> None:
    """Note whether this process, and those that it forks, work on units."""
    _serving.is_now = is_serving


def is_between_units() -> bool:
    """Whether the calling code belongs to none of the units that this process works on."""
    return _serving.is_now and RUN.get() is None and not IN_UNIT.get()


def is_off() -> bool:
    """Whether the calling code works for a unit that is not recorded."""
    run = RUN.get()
    return run is not None and bool(run.is_off)


def within_unit() -> AbstractContextManager[None]:
    """A block whose tasks work on a replayed unit: a library's actions there belong to the unit, in any thread."""
    return holding(IN_UNIT, True)


class entered:  # noqa: N801 -- reads as a statement: `with entered(run):`
    """Make a run the active one of this context."""

    __slots__ = ("_run", "_token")

    def __init__(self, run: Any) -> None:
        self._run = run

    def __enter__(self) -> Any:
        self._run.is_entered = True
        self._token = set_variable(RUN, self._run)
        return self._run

    def __exit__(self, *exc_info: object) -> None:
        reset_variable(RUN, self._token)
