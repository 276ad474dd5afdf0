"""Callbacks of ours around the program's own, which event loops' messages show as the program's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_SHOWN: Final = frozenset({"__name__", "__qualname__", "__self__"})
"""What asyncio and uvloop read of a callback to show it."""


class CallbackProxy:
    """A callback that a loop is given in place of the program's."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[..., Any]) -> None:
        self._callback = callback

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The program's callback, whose source asyncio shows."""
        return self._callback

    def __getattr__(self, name: str) -> Any:
        if name in _SHOWN:
            return getattr(self._callback, name)
        raise AttributeError(name)

    def __repr__(self) -> str:
        return repr(self._callback)
