"""The single place where kernels are launched, so that launches can also be listed, counted and compiled."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Launch", "captured", "launch", "programs"]


class Launch(NamedTuple):
    """One launch of a kernel, with everything that decides how it is compiled."""

    kernel: Any
    """A function under `triton.jit`."""
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]
    """Compile-time constants, `num_warps` and `num_stages`."""


_sink: contextvars.ContextVar[Callable[[Launch], None] | None] = contextvars.ContextVar("sink", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a kernel over a grid, or only list the launch within `captured`. An empty grid launches nothing."""
    if 0 in grid:
        return
    sink = _sink.get()
    if sink is not None:
        sink(Launch(kernel, grid, args, options))
    else:
        kernel[grid](*args, **options)


@contextmanager
def captured() -> Iterator[list[Launch]]:
    """Collect launches in a list instead of starting them. Works with tensors of device `meta`."""
    found: list[Launch] = []
    token = _sink.set(found.append)
    try:
        yield found
    finally:
        _sink.reset(token)


def programs(x: Tensor) -> int:
    """Return the programs of a persistent launch: one per multiprocessor; four if they are interpreted on the CPU."""
    if x.device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(x.device).multi_processor_count)
