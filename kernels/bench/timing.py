"""How long a call takes on its device: the median of calls that each find an empty L2 cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["Clock", "Timing"]

_FLUSH_BYTES = 256 * 2**20
"""Several times the L2 cache of any GPU in reach."""
_COPY_BYTES = 2**30
_WARM_UP = 3


class Timing(NamedTuple):
    """One measurement."""

    microseconds: float
    """Median."""
    spread: float
    """From the first to the third quartile, as a part of the median."""
    how: str
    """`graph`: a CUDA graph of the call, no launch overhead; `eager`: as Python starts it; `cpu`."""


class Clock:
    """Measures on one device; not to be shared between threads."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device = device
        self.repeats = repeats
        self.is_cuda = device.type == "cuda"
        self._flush = torch.empty(_FLUSH_BYTES if self.is_cuda else 1, dtype=torch.int8, device=device)

    def measure(self, call: Callable[[], object]) -> Timing:
        """The median of `repeats` calls, after some that are not counted.

        Raises: what the call raises; a graph that cannot be captured is not an error, it is timed as Python starts it.
        """
        for _ in range(_WARM_UP):
            call()
        if not self.is_cuda:
            return self._on_cpu(call)
        torch.cuda.synchronize()
        graph = self._capture(call)
        if graph is None:
            return self._on_gpu(call, "eager")
        return self._on_gpu(graph.replay, "graph")

    def copy_gb_s(self) -> float:
        """Bytes read and written a second by a copy that fits into no cache."""
        source = torch.empty(_COPY_BYTES if self.is_cuda else 2**24, dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        timing = self.measure(lambda: target.copy_(source))
        moved: int = 2 * source.numel()
        return moved / timing.microseconds / 1e3

    def _capture(self, call: Callable[[], object]) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
            graph.replay()
            torch.cuda.synchronize()
        except Exception:  # noqa: BLE001 -- whatever cannot be captured is timed without
            torch.cuda.synchronize()
            return None
        return graph

    def _on_gpu(self, call: Callable[[], object], how: str) -> Timing:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(self.repeats)]
        for before, after in events:
            self._flush.zero_()
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        return _summary([before.elapsed_time(after) * 1e3 for before, after in events], how)

    def _on_cpu(self, call: Callable[[], object]) -> Timing:
        taken = []
        for _ in range(self.repeats):
            started = time.perf_counter()
            call()
            taken.append((time.perf_counter() - started) * 1e6)
        return _summary(taken, "cpu")


def _summary(taken: list[float], how: str) -> Timing:
    ordered = sorted(taken)
    median = statistics.median(ordered)
    quarter = len(ordered) // 4
    return Timing(round(median, 3), round((ordered[-1 - quarter] - ordered[quarter]) / median, 3), how)
