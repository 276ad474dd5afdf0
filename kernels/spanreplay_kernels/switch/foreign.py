"""Detects other libraries' Triton kernels: they bypass torch's dispatcher, so the audit has to watch for them.

Quantised layers, and layers that the `kernels` library loads from a hub, launch kernels from Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from spanreplay_kernels.switch.nesting import shared

__all__ = ["told_of_foreign_kernels"]

Note = Callable[[str, list[Tensor]], None]
_OURS: Final = __name__.partition(".")[0]
_STARTERS: Final[tuple[Any, ...]] = (JITFunction, InterpretedFunction)


class _Notes(threading.local):
    def __init__(self) -> None:
        self.stack: list[Note] = []


_notes = _Notes()


@contextmanager
def told_of_foreign_kernels(note: Note) -> Iterator[None]:
    """Call `note` with the name and tensors of each foreign Triton kernel before this thread launches it.

    If `note` raises, the kernel is not launched.
    """
    with _starts_are_watched():
        _notes.stack.append(note)
        try:
            yield
        finally:
            _notes.stack.pop()


@shared
@contextmanager
def _starts_are_watched() -> Iterator[None]:
    originals = {cls: cls.run for cls in _STARTERS}
    for cls, run in originals.items():
        cls.run = _watched(run)
    try:
        yield
    finally:
        for cls, run in originals.items():
            cls.run = run


def _watched(run: Callable[..., Any]) -> Callable[..., Any]:
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = str(getattr(self.fn, "__module__", ""))
        if _notes.stack and not kwargs.get("warmup") and module.partition(".")[0] != _OURS:
            _notes.stack[-1](str(self.fn.__name__), [each for each in args if isinstance(each, Tensor)])
        return run(self, *args, **kwargs)

    return watched
