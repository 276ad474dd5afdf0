"""Tells the order gate which threads are at work, and shortens sleeps.

A thread that waits on a condition (a future's result, an event, a queue) can't react to anything else, so the next
result may go out.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import concurrent.futures.thread
import contextlib
import functools
import selectors
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from spanreplay.model.own_threads import make_lock
from spanreplay.replayer.schedule import pool_workers
from spanreplay.replayer.schedule.long_sleeps import LongSleeps
from spanreplay.runtime.caller.caller import is_agent, is_ours
from spanreplay.runtime.order.alarms import sleep_with_alarm
from spanreplay.runtime.order.counted import SERVICE, TurnCondition, counted, nothing
from spanreplay.runtime.order.hubs import running_hub
from spanreplay.runtime.order.lane_futures import when_told
from spanreplay.runtime.order.loops import running_loop
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.patches import Patches

SLEEP_FACTOR: Final = 0.01
SLEEP_S_MAX: Final = 0.1
_PROCESS_POOLS: Final = "concurrent.futures.process"
_POOL_WORKER: Final = getattr(concurrent.futures.thread, "_worker", None)


class _Waiting:
    """Tracks waiting threads, so that a notified thread counts as working before it wakes up."""

    def __init__(self, gate: Order) -> None:
        self._gate = gate
        self._told: dict[Any, Callable[[], None]] = {}
        self._joined: weakref.WeakKeyDictionary[threading.Thread, list[Callable[[], None]]] = (
            weakref.WeakKeyDictionary()
        )

    def wait(self, condition: Any, timeout: float | None) -> bool:
        """`Condition.wait`; without a limit, regularly checks whether the program is stuck.

        Uses one waiter throughout: a notification between two separate waits would be lost.
        """
        waiter, is_told = _thread.allocate_lock(), False
        waiter.acquire()
        with self._gate.census.waiting_elsewhere() as end:
            self._told[waiter] = end
            condition._waiters.append(waiter)
            saved = condition._release_save()
            try:
                if _is_endless(timeout):
                    self._gate.wait_long(lambda seconds: waiter.acquire(timeout=seconds))
                    is_told = True
                else:
                    is_told = waiter.acquire() if timeout is None else _acquire(waiter, timeout)
            finally:
                if not is_told:
                    counted.is_timed = running_loop() is None
                end()
                condition._acquire_restore(saved)
                del self._told[waiter]
                if not is_told:
                    with contextlib.suppress(ValueError):
                        condition._waiters.remove(waiter)
        return is_told

    def notify(self, wrapped: Any, condition: Any, args: Any, kwargs: Any) -> Any:
        """`Condition.notify`: every notified thread counts as working again."""
        before = list(condition._waiters)
        result = wrapped(*args, **kwargs)
        after = set(condition._waiters)
        for waiter in before:
            if waiter not in after:
                self._told.get(waiter, nothing)()
        return result

    def join(self, wrapped: Any, thread: threading.Thread, timeout: float | None) -> None:
        """`Thread.join` of a thread that was started."""
        with self._gate.census.waiting_elsewhere() as end:
            ends = self._joined.setdefault(thread, [])
            ends.append(end)
            try:
                if _is_endless(timeout):
                    self._gate.wait_long(lambda seconds: wrapped(seconds) is None and not thread.is_alive())
                else:
                    wrapped(timeout)
            finally:
                ends.remove(end)

    def ended(self, thread: threading.Thread) -> None:
        """A thread has ended: every thread that joins it counts as working again."""
        for end in list(self._joined.get(thread, ())):
            end()


class _Pools:
    """Counts the working calls of each pool, up to its number of threads, as further calls wait for one of those."""

    def __init__(self, gate: Order) -> None:
        self._gate = gate
        self._lock = make_lock()
        self._calls: weakref.WeakKeyDictionary[Any, Counter[int | None]] = weakref.WeakKeyDictionary()
        self._routed: weakref.WeakSet[Any] = weakref.WeakSet()

    def given(self, pool: Any, worker: int | None = None) -> None:
        """A pool, or one of its workers, has received one more call."""
        with self._lock:
            calls = self._calls.setdefault(pool, Counter())
            calls[worker] += 1
            if calls[worker] <= _limit(pool, worker):
                self._gate.census.started()

    def ended(self, pool: Any, worker: int | None = None) -> None:
        """A call is over, or never began; its thread takes the next one."""
        with self._lock:
            calls = self._calls[pool]
            worker = worker if worker in calls else None
            calls[worker] -= 1
            if calls[worker] < _limit(pool, worker):
                self._gate.census.ended()

    def assign(self, pool: Any, future: Any) -> Callable[[], None]:
        """Count a call against the only worker that may take it instead of the pool; return a callback that ends it."""
        if pool_workers.is_held(pool, future):
            self.ended(pool)
            return nothing
        worker = pool_workers.worker_of(pool, future)
        if worker is not None:
            with self._lock:
                if pool not in self._routed:
                    self._routed.add(pool)
                    pool_workers.when_given_up(pool, functools.partial(self._merge, weakref.ref(pool)))
                self.given(pool, worker)
                self.ended(pool)
        return lambda: self.ended(pool, worker)

    def _merge(self, of: Callable[[], Any]) -> None:
        """From now on, any worker of a pool takes any call."""
        pool = of()
        with self._lock:
            before = self._calls.get(pool, Counter())
            total = sum(before.values())
            self._calls[pool] = Counter({None: total})
            counted_before = sum(min(calls, _limit(pool, worker)) for worker, calls in before.items())
            counted_now = min(total, _limit(pool, None))
            for _ in range(counted_before, counted_now):
                self._gate.census.started()
            for _ in range(counted_now, counted_before):
                self._gate.census.ended()


def _limit(pool: Any, worker: int | None) -> int:
    return int(pool._max_workers) if worker is None else 1


def _is_started_by_agent() -> bool:
    """Whether the agent's own code starts a thread in the caller's frame."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return is_agent(frame)


def _count(gate: Order | None, joins: Order | None = None) -> None:
    counted.gate, counted.joins = gate, joins


def _start_within(thread: Any, start: Callable[[], Any], begin: Callable[[], None], end: Callable[[], None]) -> Any:
    """Start a thread that calls `begin` before and `end` after everything it does, including the end of its lane."""
    bootstrap = thread._bootstrap_inner  # replacements of `run` lie within it, whoever made them

    def inner() -> None:
        vars(thread).pop("_bootstrap_inner", None)
        begin()
        try:
            bootstrap()
        finally:
            end()

    thread._bootstrap_inner = inner
    try:
        return start()
    except BaseException:
        vars(thread).pop("_bootstrap_inner", None)  # the agent may try again
        raise


def _is_endless(timeout: float | None) -> bool:
    """Whether a thread that keeps the process alive waits without a limit."""
    return timeout is None and not threading.current_thread().daemon


def _acquire(waiter: Any, timeout: float) -> bool:
    return bool(waiter.acquire(True, timeout) if timeout > 0 else waiter.acquire(False))


def _timeout(timeout: float | None = None) -> float | None:
    return timeout


def install(gate: Order, patches: Patches, sleeps: LongSleeps | None = None) -> None:
    """Count pool calls and threads from the moment they are requested until they are done."""
    waiting, pools = _Waiting(gate), _Pools(gate)

    def submit(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
        pools.given(pool)
        try:
            future = wrapped(*args, **kwargs)
        except BaseException:
            pools.ended(pool)
            raise
        when_told(future, pools.assign(pool, future))
        return future

    def start(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
        if hasattr(thread, SERVICE) or type(thread).__module__ == _PROCESS_POOLS:
            return wrapped(*args, **kwargs)  # their calls are counted instead
        if getattr(thread, "_target", None) is _POOL_WORKER:
            # Workers of a pool that a daemon thread used first are daemons too; their calls are counted all the same
            return _start_within(thread, wrapped, lambda: _count(gate), nothing)
        is_counted = not thread.daemon or _is_started_by_agent()  # helper threads of libraries never end

        def end() -> None:
            waiting.ended(thread)
            if counted.gate is gate:
                gate.census.ended()

        begin = functools.partial(_count, gate if is_counted else None, gate)
        if not is_counted:
            return _start_within(thread, wrapped, begin, end)
        gate.census.started()
        try:
            return _start_within(thread, wrapped, begin, end)
        except BaseException:
            gate.census.ended()
            raise

    pool_workers.install(patches)
    patches.wrap(concurrent.futures.ThreadPoolExecutor, "submit", submit)
    patches.wrap(threading.Thread, "start", start)
    _install_waits(gate, waiting, patches, sleeps or LongSleeps((), 0, 0))


def _install_waits(gate: Order, waiting: _Waiting, patches: Patches, sleeps: LongSleeps) -> None:
    def sleep(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seconds = args[0] if args else 0
        if gate.is_live or not isinstance(seconds, (int, float)) or seconds < 0:
            return wrapped(*args, **kwargs)  # a bad argument: the original raises
        sleeps.hold(gate, seconds)
        with gate.census.sleeping():
            return sleep_with_alarm(seconds, lambda: wrapped(min(seconds * SLEEP_FACTOR, SLEEP_S_MAX)))

    def wait(wrapped: Any, condition: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(condition, TurnCondition) or not condition._is_owned() or running_hub() is not None:
            return wrapped(*args, **kwargs)  # the original raises, or switches to a hub, which knows what comes next
        return waiting.wait(condition, _timeout(*args, **kwargs))

    def join(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
        if thread.ident is None or thread is threading.current_thread() or running_hub() is not None:
            return wrapped(*args, **kwargs)
        return waiting.join(wrapped, thread, _timeout(*args, **kwargs))

    def select(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if running_loop() is not None:
            return wrapped(*args, **kwargs)
        with gate.census.waiting_elsewhere():
            return wrapped(*args, **kwargs)

    for name in ("PollSelector", "SelectSelector"):  # of servers in threads; event loops have their own
        if hasattr(selectors, name):
            patches.wrap(getattr(selectors, name), "select", select)
    patches.wrap(threading.Condition, "wait", wait)
    patches.wrap(threading.Condition, "notify", waiting.notify)
    patches.wrap(threading.Thread, "join", join)
    patches.wrap(time, "sleep", sleep)
