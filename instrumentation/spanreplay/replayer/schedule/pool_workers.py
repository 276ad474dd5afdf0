"""Gives each job of a pool the worker that it had when the run was recorded, and starts the same workers."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import weakref
from _queue import SimpleQueue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.replayer.schedule.routed_queue import JOB, RoutedQueue
from spanreplay.replayer.schedule.worker_watch import watch
from spanreplay.runtime.lanes import submitted_lane
from spanreplay.runtime.order.wait_ends import unwatched
from spanreplay.runtime.order.worker_book import RecordedWorkers
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

_known: Final[weakref.WeakKeyDictionary[Run, RecordedWorkers]] = weakref.WeakKeyDictionary()


def recorded_workers(run: Run) -> RecordedWorkers | None:
    """Return what the recording of a replay says about workers; None if it says nothing."""
    if run.session is None:
        return None
    found = _known.get(run)
    if found is None:
        found = _known[run] = RecordedWorkers(run.session.recording.root.manifest)
    return found if found.is_known and not run.session.gate.is_open else None


class _Decided:
    """Stands in for the count of a pool's idle workers: whether one is idle was decided when the run was recorded."""

    def __init__(self, idle: Any) -> None:
        self._idle = idle

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Return False, so that the pool starts another worker."""
        return False

    def release(self, n: int = 1) -> None:
        """Count one more idle worker."""
        self._idle.release(n)


def _describe_job(wrapped: Any, item: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    lane = submitted_lane()
    if lane is not None:
        vars(item)[JOB] = lane.path


def _make(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    run = active_run()
    if run is not None:
        _route(run, pool)


def _adjust(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> None:
    run, lane = active_run(), submitted_lane()
    if run is None or lane is None:
        wrapped(*args, **kwargs)
    else:
        _adjust_as_recorded(run, pool, lane.path, lambda: wrapped(*args, **kwargs))


def install(patches: Patches) -> None:
    """Patch how thread pools create jobs and start workers."""
    patches.wrap(concurrent.futures.thread._WorkItem, "__init__", _describe_job)
    patches.wrap(concurrent.futures.ThreadPoolExecutor, "__init__", _make)
    patches.wrap(concurrent.futures.ThreadPoolExecutor, "_adjust_thread_count", _adjust)


def _adjust_as_recorded(run: Run, pool: Any, lane: str, adjust: Callable[[], Any]) -> None:
    """Start workers until there are as many as after this job when recorded, at least its own.

    Several may be missing, if jobs inside a served call started them: those jobs don't run here.
    """
    workers = recorded_workers(run)
    if workers is None or not _is_routed(pool) or workers.number_of(lane) < 0:
        adjust()
        return
    idle = pool._idle_semaphore
    with unwatched():
        idle.acquire(timeout=0)  # for jobs that the recording doesn't contain
    pool._idle_semaphore = _Decided(idle)
    try:
        for _ in range(len(pool._threads), min(workers.count_behind(lane), pool._max_workers)):
            adjust()
    finally:
        pool._idle_semaphore = idle


def _is_routed(pool: Any) -> bool:
    return type(pool._work_queue) is RoutedQueue and not pool._work_queue.is_given_up


def _route(run: Run, pool: Any) -> None:
    """Give a new pool a queue in which each worker finds its own jobs, unless the agent replaced the queue."""
    workers = recorded_workers(run)
    if workers is None or run.session is None or type(pool._work_queue) is not SimpleQueue:
        return
    gate = run.session.gate
    pool._work_queue = RoutedQueue(workers.number_of, gate, pool._max_workers)
    watch(pool, gate)


def is_held(pool: Any, future: Any) -> bool:
    """Whether no worker takes a job because it was cancelled before it began."""
    end = getattr(future, "_spanreplay_lane", None)
    return end is not None and _is_routed(pool) and pool._work_queue.is_held(end.lane)


def worker_of(pool: Any, future: Any) -> int | None:
    """Return the worker that a job has to wait for; None if any will do. Call once, when the pool has the job."""
    end = getattr(future, "_spanreplay_lane", None)
    if end is None or not _is_routed(pool):
        return None
    workers = recorded_workers(end.run)
    number = -1 if workers is None else workers.number_of(end.lane)
    if not 0 <= number < pool._max_workers:
        return None
    if number >= len(pool._threads) and pool._work_queue.free(future, len(pool._threads)):
        return None  # the pool starts its threads in another way
    return number


def when_given_up(pool: Any, call: Callable[[], None]) -> None:
    """Call this once any worker of a pool may take any job."""
    pool._work_queue.when_given_up.append(call)
