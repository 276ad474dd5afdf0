"""Which worker of a pool runs a job, and for which job a pool starts one more worker.

`ThreadPoolExecutor` starts a worker if none is idle, and the first free worker takes the next job. Both depend on
timing, and both decide the contents of `threading.local` in a job, such as a connection or a client. A recording keeps
both (`worker_book.py`); a replay starts the same workers and gives each job to the one that ran it
(`replayer/schedule/pool_workers.py`).
"""

from __future__ import annotations

import concurrent.futures.thread
import threading
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.lanes import Lane, submitted_lane
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.run import Run, active_run

WORKER: Final = "_spanreplay_worker"
"""Attribute of a pool's thread: its `Worker`."""
_CODE: Final = getattr(concurrent.futures.thread, "_worker", None)


class Worker:
    """One thread of a pool."""

    __slots__ = ("number", "queue")

    def __init__(self, number: int, queue: Any) -> None:
        self.number = number
        """Its number within its pool, from 0."""
        self.queue = queue


def calling_worker() -> Worker | None:
    """The calling thread's `Worker`, of any pool; None if it is not a pool's thread."""
    return vars(threading.current_thread()).get(WORKER)


def begin_job(lane: Lane) -> None:
    """Note that the calling worker begins a job."""
    worker, run = calling_worker(), active_run()
    if worker is not None and run is not None:
        guard.guarded("the worker of a job", run.lock_order.workers.begun, lane, worker.number)


def begin_borrowed(run: Run, lane: Lane) -> None:
    """Note that the calling thread, one of an event loop's own worker threads, begins a job."""
    guard.guarded("the worker of a job", run.lock_order.workers.borrowed, lane, threading.current_thread())


def _start(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
    """Number a pool's thread before it runs; a pool starts its threads one after the other."""
    if getattr(thread, "_target", None) is _CODE and _CODE is not None:
        guard.guarded("a worker of a pool", _number, thread)
    return wrapped(*args, **kwargs)


def _number(thread: Any) -> None:
    pool = thread._args[0]()
    if pool is None:
        return
    number, lane, run = len(pool._threads), submitted_lane(), active_run()
    vars(thread)[WORKER] = Worker(number, pool._work_queue)
    if number and lane is not None and run is not None:
        run.lock_order.workers.started(lane, number + 1)


def install(patches: Patches) -> None:
    """Patch the start of threads, those of pools among them."""
    require(concurrent.futures.ThreadPoolExecutor(1), "_threads", "_work_queue")
    require(threading.Thread(name="spanreplay"), "_target", "_args")  # an unnamed one would be counted
    if _CODE is None:
        raise AttributeError("concurrent.futures.thread has no '_worker'", obj=concurrent.futures.thread)
    patches.wrap(threading.Thread, "start", _start)
