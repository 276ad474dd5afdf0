"""Seam: shared places of processes: the locks and queues of `multiprocessing`.

Who takes a lock that processes share decides which of them gets an item of a queue, and in which order items arrive
there: everything is built on one kind of lock. Each acquisition takes a value of the run's Lamport clock, and so does
each failed attempt and each poll that found nothing. A pool has an order of its own (`process_pools.py`); its internal
acquisitions are left out.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.ids import is_stdlib_file
from spanreplay.runtime.caller import caller as origin
from spanreplay.runtime.lanes import Lane, current_place, has_lane, is_plumbing_here
from spanreplay.runtime.order.wait_ends import DONE, name_meeting
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run

_FOLDER: Final = os.path.join(os.path.dirname(multiprocessing.__file__), "")  # noqa: PTH118, PTH120 -- light
_POOLS: Final = frozenset(
    (
        f"{_FOLDER}pool.py",
        os.path.join(os.path.dirname(concurrent.futures.__file__), "process.py"),  # noqa: PTH118, PTH120 -- light
    )
)
_LIMITLESS: Final = 1 << 24
"""A semaphore that can be acquired this many more times is never waited for: it belongs to a queue without a limit."""
_FEEDS: Final = "_spanreplay_feeds"
"""Attribute of a thread that sends the agent's items in a queue."""


def install(module: Any, patches: Patches) -> None:
    """Patch `multiprocessing.synchronize`, `multiprocessing.queues` or `multiprocessing.connection`."""
    if module.__name__ == "multiprocessing.synchronize":
        patches.wrap(module.SemLock, "_make_methods", _make_lock)
        patches.wrap(module.SemLock, "__enter__", _enter_lock)
        return
    if module.__name__ == "multiprocessing.queues":
        patches.wrap(module.Queue, "_start_thread", _start_feeder)
        patches.wrap(module.JoinableQueue, "put", _put)
        return
    for name in ("recv", "recv_bytes"):
        patches.wrap(module._ConnectionBase, name, receive)
    patches.wrap(module._ConnectionBase, "poll", _poll)
    patches.wrap(module, "wait", _wait_for_any)


# ── whose it is ─────────────────────────────────────────────────────────────────────────────────────
def _ordered_run() -> Run | None:
    """The run whose order is recorded, at this level, or replayed.

    Also while it has one process: a queue may still be filled when the next one starts.
    """
    run = active_run()
    return None if run is None or run.is_ended or not run.order.has_meetings else run


def _lane_here(run: Run, frame: FrameType | None, limit: float | None) -> Lane | None:
    """The lane of the calling thread; None if its action in this frame is not part of the run's order."""
    lane, crossing = current_place(run.root_lane)
    thread = threading.current_thread()
    if crossing is not None or is_plumbing_here.get():
        return None
    if not has_lane() and thread is not threading.main_thread():
        return None
    return lane if hasattr(thread, _FEEDS) or _is_asked(frame, limit) else None


def _is_asked(frame: FrameType | None, limit: float | None) -> bool:
    """Whether the agent or its framework acts in this frame; for a poll (limit 0), only the agent.

    How often a library takes its lock (a progress bar) and how often a framework polls may depend on timing.
    """
    for _ in range(origin.FRAMES_MAX):
        if frame is None or frame.f_code.co_filename in _POOLS:
            return False
        name = frame.f_code.co_filename
        if not (name.startswith(_FOLDER) or origin.is_ours(name) or is_stdlib_file(name)):
            return origin.is_own(frame) if limit == 0 else origin.is_agent(frame)
        frame = frame.f_back
    return False


def _start_feeder(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
    """Mark the thread that sends a queue's items to its pipe; it does nothing before this returns."""
    result = wrapped(*args, **kwargs)
    if guard.guarded("the thread of a queue", _is_asked, sys._getframe(1), None):
        vars(queue._thread)[_FEEDS] = True
    return result


def _put(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
    """`JoinableQueue.put`, which takes a lock that processes share while it holds that of its own threads."""
    _putting.queue = queue
    try:
        return wrapped(*args, **kwargs)
    finally:
        _putting.queue = None


class _Putting(threading.local):
    queue: Any = None
    """The queue that the thread puts an item in."""


_putting: Final = _Putting()


def _give_way(run: Run, semlock: Any, name: str) -> None:
    """Leave the queue to the thread that sends its items until it is the turn of the lock that a put takes.

    That thread's earlier actions may precede the lock in the recorded order, and need the mutex that the put holds.
    """
    queue = _putting.queue
    if queue is not None and semlock is queue._cond._lock._semlock:
        run.order.give_way(name, queue._notempty)


# ── locks ───────────────────────────────────────────────────────────────────────────────────────────
def _make_lock(wrapped: Any, lock: Any, args: Any, kwargs: Any) -> None:
    """Locks, semaphores, events and conditions of processes are all built on this one."""
    wrapped(*args, **kwargs)
    if not guard.guarded("the lock of a queue", _is_limitless, lock._semlock):  # a spawned process has no run yet
        lock.acquire = functools.partial(_take, lock._semlock)


def _is_limitless(semlock: Any) -> bool:
    try:
        return bool(semlock._get_value() > _LIMITLESS)
    except NotImplementedError:  # macOS
        return False


def _enter_lock(wrapped: Any, lock: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs) if active_run() is None else _take(lock._semlock)


def _take(semlock: Any, block: bool = True, timeout: float | None = None) -> bool:
    run = _ordered_run()
    if run is None:
        return bool(semlock.acquire(block, timeout))
    limit = (timeout if timeout is None else max(timeout, 0.0)) if block else 0.0
    lane = guard.guarded("naming a lock", _lane_here, run, sys._getframe(1), limit)
    if lane is None:
        return _take_in_time(run, semlock, limit)
    name = name_meeting(lane)
    is_taken = False
    _give_way(run, semlock, name)

    def take(limit: float | None) -> bool:
        nonlocal is_taken
        is_taken = _take_in_time(run, semlock, limit)
        return is_taken

    try:
        return run.order.meet(name, take, limit)
    except BaseException:
        if is_taken:  # the caller does not know that it holds the lock
            semlock.release()
        raise


def _take_in_time(run: Run, semlock: Any, limit: float | None) -> bool:
    """Acquire a lock; the thread may have to wait until another process releases it."""
    if semlock.acquire(False):
        return True
    if limit == 0:
        return False
    is_taken = False

    def look(seconds: float) -> bool:
        nonlocal is_taken
        is_taken = bool(semlock.acquire(True, seconds))
        return is_taken

    def wait() -> bool:
        return is_taken or bool(semlock.acquire(True, limit))

    return bool(run.order.wait_elsewhere(wait, look if limit is None else None))


# ── pipes ───────────────────────────────────────────────────────────────────────────────────────────
def receive(wrapped: Callable[..., Any], connection: Any, args: Any, kwargs: Any) -> Any:
    """Read data that another process sends."""
    run = active_run()
    if run is None:
        return wrapped(*args, **kwargs)
    look = connection._poll if not connection.closed and connection.readable else None
    return run.order.wait_elsewhere(lambda: wrapped(*args, **kwargs), look)


def _poll(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    """Check whether another process has sent something, and wait some time for it."""
    timeout = args[0] if args else kwargs.get("timeout", 0.0)
    if timeout is None:
        return receive(wrapped, connection, args, kwargs)
    run = _ordered_run()
    if run is None or connection.closed or not connection.readable:
        return wrapped(*args, **kwargs)
    limit = max(timeout, 0.0)
    lane = guard.guarded("naming a look", _lane_here, run, sys._getframe(1), limit)

    def look(limit: float | None) -> bool:
        return bool(run.order.wait_elsewhere(lambda: wrapped(limit)))

    return look(limit) if lane is None else run.order.meet(name_meeting(lane), look, limit)


def _wait_for_any(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`multiprocessing.connection.wait`: which of several pipes, sockets and processes are ready."""
    run = _ordered_run()
    if run is None or _is_inner(sys._getframe(1)):
        return wrapped(*args, **kwargs)
    objects, limit = _read_wait(*args, **kwargs)
    lane = guard.guarded("naming a wait", _lane_here, run, sys._getframe(1), limit)
    if lane is None:
        return wrapped(objects, limit)

    def wait(objects: list[Any], limit: float | None) -> list[Any]:
        return _wait_in_time(run, wrapped, objects, limit)

    return run.order.wait_for_any(wait, f"{lane.path}{DONE}any.{lane.next_index('any')}|", objects, limit)


def _is_inner(frame: FrameType | None) -> bool:
    """Whether a pipe is polling itself."""
    while frame is not None and origin.is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == f"{_FOLDER}connection.py"


def _read_wait(object_list: Any, timeout: float | None = None) -> tuple[list[Any], float | None]:
    return list(object_list), timeout if timeout is None else max(timeout, 0.0)


def _wait_in_time(run: Run, wrapped: Any, objects: list[Any], limit: float | None) -> list[Any]:
    def look(seconds: float) -> bool:
        return bool(wrapped(objects, seconds))

    def wait() -> list[Any]:
        return list(wrapped(objects, limit))

    may_hang = limit is None and bool(objects)
    found: list[Any] = wait() if limit == 0 else run.order.wait_elsewhere(wait, look if may_hang else None)
    return found
