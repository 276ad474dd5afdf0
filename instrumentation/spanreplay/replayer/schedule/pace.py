"""Where completions came when recorded: between which callbacks of a loop, and from which thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spanreplay.model.call import CallRecord

_THREADS: Final = ("x:", "th:", "p:", "px:")
"""Prefixes of the labels of lanes that have their own thread or process."""


@dataclass(frozen=True)
class Steps:
    """The recorded callbacks of the event loops; empty if the recording has none."""

    following: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Clock of a completion → an earlier one on its loop, and how many callbacks ran in between."""
    at_once: frozenset[int] = frozenset()
    """Clocks of coroutine calls that completed synchronously."""

    pauses: frozenset[int] = frozenset()
    """Clocks of callbacks before which completions of other threads came; a subset of `following`."""
    behind: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Clock of a completion → the later ones in their order, each with the number of callbacks in between."""

    @classmethod
    def read(cls, manifest: Mapping[str, Any]) -> Steps:
        """Read the callbacks from a manifest."""
        steps, at_once = manifest.get("steps"), manifest.get("at_once")
        flat = steps if isinstance(steps, list) else []
        following = {clock: (first, count) for clock, first, count in zip(*[iter(flat)] * 3, strict=False)}
        behind: dict[int, list[tuple[int, int]]] = {}
        for clock, (first, count) in sorted(following.items()):
            behind.setdefault(first, []).append((clock, count))
        pauses = manifest.get("pauses")
        paused = frozenset(pauses if isinstance(pauses, list) else ()) & following.keys()
        return cls(following, frozenset(at_once if isinstance(at_once, list) else ()), paused, behind)


def thread_of(lane: str) -> str:
    """Return the lane of the thread or process that a lane lies in; '' for the main thread's."""
    labels = lane.split("/")
    inner = next((n for n in range(len(labels), 0, -1) if labels[n - 1].startswith(_THREADS)), 0)
    return "/".join(labels[:inner])


def find_threads(
    calls: Iterable[CallRecord], lane_ends: Mapping[str, int], timers: Mapping[str, int]
) -> dict[int, str]:
    """Map the clock of each completion outside the main thread to the thread that brings it."""
    found = {clock: call.lane for call in calls for clock in (call.seq, *call.clocks, call.end_seq)}
    found.update({clock: lane for lane, clock in lane_ends.items()})
    found.update({clock: name.partition("|")[0] for name, clock in timers.items()})
    threads = {lane: thread_of(lane) for lane in set(found.values())}
    return {clock: threads[lane] for clock, lane in found.items() if threads[lane]}
