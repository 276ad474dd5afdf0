"""Measures the time of a call on its device: the median of calls, each starting with a flushed L2 cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

__all__ = ["SHORT_US", "TOGETHER", "Clock", "Timing", "ratios"]

_FLUSH_BYTES = 256 * 2**20
"""Several times the L2 cache of any supported GPU."""
_COPY_BYTES = 2**30
_WARM_UP = 3
SHORT_US: Final = 50.0
"""Below this, launching a graph affects the measured time: `TOGETHER` calls are timed in one graph."""
TOGETHER: Final = 20
RATIO_DIGITS: Final = 3
Call = Callable[[], object]


class Timing(NamedTuple):
    """One measurement."""

    microseconds: float
    """The median time of one call."""
    spread: float
    """The interquartile range, as a fraction of the median."""
    how: str
    """`graph`: a CUDA graph of the call, without launch overhead; `eager`: launched from Python; `cpu`. With `of 20`:
    that many calls on different, uncached operands, divided by their number."""


def ratios(times: dict[str, Timing]) -> dict[str, float]:
    """Return each other call's time divided by ours, for those that were timed the same way.

    A call launched from Python waits for Python, so comparing it with a graph says nothing about the kernels.
    """
    if "ours" not in times:
        return {}
    ours = times["ours"]
    return {
        name: round(each.microseconds / ours.microseconds, RATIO_DIGITS)
        for name, each in times.items()
        if name != "ours" and each.how == ours.how
    }


class Clock:
    """Measures on one device; not to be shared between threads."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device = device
        self.repeats = repeats
        self.is_cuda = device.type == "cuda"
        self._flush = torch.empty(_FLUSH_BYTES if self.is_cuda else 1, dtype=torch.int8, device=device)

    def measure(self, *calls: Call) -> Timing:
        """Return the median of `repeats` rounds over the calls, after a warm-up, divided by the number of calls.

        Calls that can't be captured in a graph are timed as launched from Python.
        Raises: any exception of a call.
        """
        for _ in range(_WARM_UP):
            for call in calls:
                call()
        together = "" if len(calls) == 1 else f" of {len(calls)}"
        if not self.is_cuda:
            return self._on_cpu(calls, f"cpu{together}")
        torch.cuda.synchronize()
        graph = self._capture(calls)
        if graph is None:
            return self._on_gpu(lambda: [call() for call in calls], len(calls), f"eager{together}")
        return self._on_gpu(graph.replay, len(calls), f"graph{together}")

    def copy_gb_s(self) -> float:
        """Return the copy bandwidth (bytes read and written) beyond cache size, by the faster of two ways.

        In a graph, a copy uses the copy engine, which on an H200 takes 1.5 times as long as a kernel that multiplies
        by 1.
        """
        source = torch.ones((_COPY_BYTES if self.is_cuda else 2**24) // 4, device=self.device)
        target = torch.empty_like(source)
        ways = (partial(target.copy_, source), partial(torch.mul, source, 1.0, out=target))
        moved: int = 2 * source.numel() * source.element_size()
        return moved / min(self.measure(way).microseconds for way in ways) / 1e3

    def is_lost(self) -> bool:
        """Whether a kernel's error has made the GPU unusable for this process."""
        if not self.is_cuda:
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def _capture(self, calls: Sequence[Call]) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for call in calls:
                    call()
            graph.replay()
            torch.cuda.synchronize()
        except Exception:  # noqa: BLE001 -- calls that can't be captured are timed without a graph
            torch.cuda.synchronize()
            return None
        return graph

    def _on_gpu(self, call: Call, count: int, how: str) -> Timing:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(self.repeats)]
        for before, after in events:
            self._flush.zero_()
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        return _summary([before.elapsed_time(after) * 1e3 / count for before, after in events], how)

    def _on_cpu(self, calls: Sequence[Call], how: str) -> Timing:
        taken = []
        for _ in range(self.repeats):
            started = time.perf_counter()
            for call in calls:
                call()
            taken.append((time.perf_counter() - started) * 1e6 / len(calls))
        return _summary(taken, how)


def _summary(taken: list[float], how: str) -> Timing:
    ordered = sorted(taken)
    median = statistics.median(ordered)
    quarter = len(ordered) // 4
    return Timing(round(median, 3), round((ordered[-1 - quarter] - ordered[quarter]) / median, 3), how)
