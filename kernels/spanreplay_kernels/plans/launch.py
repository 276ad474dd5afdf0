"""The one place where a kernel is started, so that what would be started can also be listed, counted and compiled."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Launch", "captured", "launch", "programs"]


class Launch(NamedTuple):
    """One start of a kernel, with all that decides how it is compiled."""

    kernel: Any
    """A function under `triton.jit`."""
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]
    """Compile-time constants, `num_warps` and `num_stages`."""


_sink: contextvars.ContextVar[Callable[[Launch], None] | None] = contextvars.ContextVar("sink", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Start a kernel over a grid; within `captured` it is listed instead. An empty grid starts nothing."""
    if 0 in grid:
        return
    sink = _sink.get()
    if sink is not None:
        sink(Launch(kernel, grid, args, options))
    else:
        kernel[grid](*args, **options)


@contextmanager
def captured() -> Iterator[list[Launch]]:
    """Within it nothing is started: the list fills with what would be. Works on tensors of device `meta`."""
    found: list[Launch] = []
    token = _sink.set(found.append)
    try:
        yield found
    finally:
        _sink.reset(token)


def programs(x: Tensor) -> int:
    """Blocks of a persistent launch: one for each multiprocessor; four where nothing but one thread interprets them."""
    if x.device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(x.device).multi_processor_count)
