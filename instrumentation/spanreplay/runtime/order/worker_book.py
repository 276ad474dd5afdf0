"""Which worker of a pool runs each job of a run, as a manifest states it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config

if TYPE_CHECKING:
    from spanreplay.runtime.lanes import Lane

MEMBER: Final = "workers"
_KNOWN: Final = "_spanreplay_borrowed"
"""Attribute of a thread: the book that knows it, and its number there."""
_PARTS: Final = ("numbers", "counts", "threads", "processes", "ended")


class WorkerBook:
    """Which worker runs which job of one run while it is recorded. Thread-safe.

    Most jobs of an executor are left out: those run by the first worker of their pool that start a worker only if there
    is none.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._threads: dict[str, int] = {}
        self._processes: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._thread_numbers = itertools.count()
        self._is_used = self._is_full = False

    def started(self, lane: Lane, count: int) -> None:
        """Note that a pool has started a worker, not its first, for a job, and has `count` workers now."""
        self._keep(self._counts, lane, count)

    def begun(self, lane: Lane, number: int) -> None:
        """Note that a worker begins a job."""
        self._is_used = True
        if number != 0:
            self._keep(self._numbers, lane, number)

    def borrowed(self, lane: Lane, thread: threading.Thread) -> None:
        """Note that an event loop's own worker thread begins a job; such threads are numbered by their first jobs."""
        self._is_used = True
        known = vars(thread).get(_KNOWN)
        if known is None or known[0] is not self:
            known = vars(thread)[_KNOWN] = (self, next(self._thread_numbers))
        self._keep(self._threads, lane, known[1])

    def begun_in_process(self, lane: Lane, number: int) -> None:
        """Note that a worker process of a pool begins a job."""
        self._is_used = True
        self._keep(self._processes, lane, number)

    def ended(self, lane: str) -> None:
        """Note that a pool ends one of its worker processes, given by its own lane."""
        self._is_used = True
        self._ended[lane] = 1

    def _keep(self, kept: dict[str, int], lane: Lane, number: int) -> None:
        if len(kept) < config.WORKER_JOBS_MAX:
            kept[lane.path] = number
        else:
            self._is_full = True

    def describe(self) -> dict[str, Any]:
        """Members for the manifest."""
        if not self._is_used:
            return {}
        kept = (self._numbers, self._counts, self._threads, self._processes, self._ended)
        stated: dict[str, Any] = {name: dict(each) for name, each in zip(_PARTS, kept, strict=True) if each}
        return {MEMBER: {**stated, "is_full": True} if self._is_full else stated}


class RecordedWorkers:
    """The workers of a recorded run, read from its manifest."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        stated = manifest.get(MEMBER)
        self.is_known = isinstance(stated, dict)
        """Whether the recording says anything about workers."""
        self._numbers, self._counts, self._threads, self._processes, ended = (_read(stated, name) for name in _PARTS)
        self.ended = tuple(ended)
        """The own lanes of worker processes that their pool ended."""
        self.threads: dict[int, Any] = {}
        """The threads of event loops' own pools that stand for the recorded ones, by their number."""
        self._is_full = isinstance(stated, dict) and bool(stated.get("is_full"))

    def number_of(self, lane: str) -> int:
        """The worker that ran a job; -1 if the recording does not say."""
        return self._numbers.get(lane, -1 if self._is_full else 0)

    def count_behind(self, lane: str) -> int:
        """How many workers the pool had at least, after it had taken a job."""
        return max(self._counts.get(lane, 1), self.number_of(lane) + 1)

    def thread_of(self, lane: str) -> int | None:
        """The event loop's own worker thread that ran a job; None if the recording does not say."""
        return self._threads.get(lane)

    @property
    def names_processes(self) -> bool:
        """Whether the recording says which worker process ran a job."""
        return bool(self._processes)

    def may_have_run(self, lane: str) -> bool:
        """Whether a worker process ran a job, or the recording does not say."""
        return self._is_full or lane in self._processes

    def process_of(self, lane: str) -> int | None:
        """The worker process that ran a job; None if the recording does not say."""
        return self._processes.get(lane)


def _read(stated: Any, name: str) -> dict[str, int]:
    found = stated.get(name) if isinstance(stated, dict) else None
    if not isinstance(found, dict):
        return {}
    return {str(lane): number for lane, number in found.items() if type(number) is int and number >= 0}


def merge(manifest: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add the statements of another process of the run."""
    stated = part.get(MEMBER)
    if isinstance(stated, dict):
        before = manifest.get(MEMBER, {})
        both = {name: {**_read(before, name), **_read(stated, name)} for name in _PARTS}
        merged: dict[str, Any] = {name: each for name, each in both.items() if each}
        is_full = bool(before.get("is_full") or stated.get("is_full"))
        manifest[MEMBER] = {**merged, "is_full": True} if is_full else merged
