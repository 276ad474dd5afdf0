"""How long a call takes on its device: the median of calls that each find an empty L2 cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

__all__ = ["SHORT_US", "TOGETHER", "Clock", "Timing", "ratios"]

_FLUSH_BYTES = 256 * 2**20
"""Several times the L2 cache of any GPU in reach."""
_COPY_BYTES = 2**30
_WARM_UP = 3
SHORT_US: Final = 50.0
"""Below, the start of a graph is part of what two events measure: calls are timed `TOGETHER` in one."""
TOGETHER: Final = 20
RATIO_DIGITS: Final = 3
Call = Callable[[], object]


class Timing(NamedTuple):
    """One measurement."""

    microseconds: float
    """Median, of one call."""
    spread: float
    """From the first to the third quartile, as a part of the median."""
    how: str
    """`graph`: a CUDA graph of the call, no launch overhead; `eager`: as Python starts it; `cpu`. With `of 20`: so many
    calls, each on operands of its own that no cache holds, divided by their number."""


def ratios(times: dict[str, Timing]) -> dict[str, float]:
    """How often as long as ours each other takes, of those that were timed as ours were.

    A call that Python starts waits for Python: its time beside a graph's says nothing of the kernels.
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
        """The median of `repeats` rounds over the calls, after some that are not counted, divided by their number.

        Raises: what a call raises; a graph that cannot be captured is not an error, it is timed as Python starts it.
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
        """Bytes read and written a second where nothing fits into a cache: by the fastest of two ways.

        In a graph a copy is the copy engine's, on an H200 half as long again as a kernel that multiplies by 1.
        """
        source = torch.ones((_COPY_BYTES if self.is_cuda else 2**24) // 4, device=self.device)
        target = torch.empty_like(source)
        ways = (partial(target.copy_, source), partial(torch.mul, source, 1.0, out=target))
        moved: int = 2 * source.numel() * source.element_size()
        return moved / min(self.measure(way).microseconds for way in ways) / 1e3

    def is_lost(self) -> bool:
        """Whether an error of a kernel has ended all work of this process on its GPU."""
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
        except Exception:  # noqa: BLE001 -- whatever cannot be captured is timed without
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
