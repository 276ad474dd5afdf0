"""Waits of threads whose end depends on timing: which futures were done by then, and which waits expired.

`concurrent.futures.wait` returns the futures that are done at that moment, a wait with a timeout may expire, and
threads take turns by sleeping. Each such end takes a value of the run's Lamport clock, named by the thread's lane and
its number there, so that a replay returns the same futures and lets the same waits expire
(`replayer/schedule/thread_waits.py`). Only waits of the agent's own code or its framework count: how often a server or
a library's pool polls depends on timing. Waits of a boundary's own body are left out: in a replay that body does not
run.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures._base as base
import hashlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.caller import caller as origin
from spanreplay.runtime.calls.returning import note_return
from spanreplay.runtime.lanes import Lane, current_place, has_lane, is_plumbing_here
from spanreplay.runtime.order.counted import TurnCondition
from spanreplay.runtime.order.lane_end import LaneEnd
from spanreplay.runtime.order.lane_futures import LaneFuture
from spanreplay.runtime.order.noted_order import lanes_of
from spanreplay.runtime.order.wait_ends import (
    AT_ONCE,
    DONE,
    EXPIRED,
    SLEPT,
    Timed,
    name_attempt,
    unwatched,
    wait_state,
)
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.run import Run, active_run

FUTURES_MAX: Final = 512
"""A wait for more futures is not kept: their bits would fill the manifest."""


TIMED: Final = (
    Timed(base.Future, "result", 0, base.TimeoutError),
    Timed(base.Future, "exception", 0, base.TimeoutError),
    Timed(queue.Queue, "get", 1, queue.Empty, block_at=0),
    Timed(queue.Queue, "put", 2, queue.Full, block_at=1),
    Timed(threading.Event, "wait", 0, frees_many=True),
    Timed(threading.Semaphore, "acquire", 1, block_at=0, frees_many=True),
    Timed(threading.Semaphore, "__enter__", 1, block_at=0, frees_many=True),
    Timed(threading.Condition, "wait_for", 1),
    Timed(threading.Condition, "wait", 0),
    Timed(threading.Thread, "join", 0),
)


_CARRIERS: Final = frozenset(
    each.__code__.co_filename for each in (threading.Thread.join, queue.Queue.join, base.Future.cancel)
)
"""Files that only carry out their caller's wait."""
_CANCELLERS: Final = _CARRIERS | {concurrent.futures.ThreadPoolExecutor.shutdown.__code__.co_filename, __file__}
_TAKE_RESULT: Final = getattr(getattr(base, "_result_or_cancel", None), "__code__", None)
"""`Executor.map` cancels each future whose result it has taken; the future is done, and nothing is to be noted."""
_TIMER: Final = threading.Timer.run.__code__


def install(patches: Patches) -> None:
    """Patch the functions with which threads wait."""
    require(base.Future(), "_state")
    patches.wrap(base, "wait", wait_futures)
    patches.replace(concurrent.futures, "wait", base.wait)
    patches.wrap(base, "as_completed", take_completed)
    patches.replace(concurrent.futures, "as_completed", base.as_completed)
    patches.wrap(concurrent.futures.ThreadPoolExecutor, "shutdown", shut_down)
    for timed in TIMED:
        patches.wrap(timed.owner, timed.name, wrap_timed(timed))
    patches.wrap(threading.Barrier, "wait", meet)
    patches.wrap(time, "sleep", sleep)
    patches.replace(LaneEnd, "cancelling", staticmethod(cancel_noted))


def _lane_here(run: Run, frame: FrameType | None, carriers: Collection[str] = _CARRIERS) -> Lane | None:
    """The lane of the calling thread, or None if its action in this frame is not the agent's."""
    lane, crossing = current_place(run.root_lane)
    if crossing is not None or is_plumbing_here.get():
        return None
    is_known = has_lane() or threading.current_thread() is threading.main_thread()
    return lane if is_known and _is_asked(frame, carriers) else None


def _is_asked(
    frame: FrameType | None, carriers: Collection[str], is_by: Callable[[FrameType], bool] = origin.is_agent
) -> bool:
    """Whether the agent's own code or its framework waits in this frame, or in a function that it calls to wait."""
    for _ in range(origin.FRAMES_MAX):
        if frame is None:
            return False
        if frame.f_code is _TIMER:
            made_for = getattr(frame.f_locals["self"].function, "__code__", None)
            return made_for is not None and origin.classify(made_for.co_filename) == origin.AGENT
        if frame.f_code.co_filename not in carriers:
            return is_by(frame)
        frame = frame.f_back
    return False


# ── futures ─────────────────────────────────────────────────────────────────────────────────────────
def wait_futures(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`concurrent.futures.wait`, whose result is noted; a replay returns the recorded one."""
    run = active_run()
    if run is None:
        return wrapped(*args, **kwargs)
    fs, timeout, until = _read(*args, **kwargs)
    if timeout is None and until == concurrent.futures.ALL_COMPLETED:
        return wrapped(fs, timeout, until)
    fs = list(fs)  # it may be a generator
    lane = guard.guarded("naming a wait", _lane_here, run, sys._getframe(1))
    futures = None if lane is None else _in_order(fs)
    if lane is None or futures is None:
        return wrapped(fs, timeout, until)
    name = f"{lane.path}{DONE}{_set_of(lane, futures)}|"
    return run.order.wait_futures(wrapped, name, futures, (timeout, until))


def _set_of(lane: Lane, futures: Sequence[LaneFuture]) -> str:
    """A name for some futures, and the number of their wait: how often a library waits may depend on timing."""
    digest = hashlib.sha256("\n".join(lanes_of(futures)).encode()).hexdigest()[:16]
    return f"{digest}.{lane.next_index(f'wait {digest}')}"


def _read(fs: Any, timeout: Any = None, return_when: Any = concurrent.futures.ALL_COMPLETED) -> tuple[Any, Any, Any]:
    return fs, timeout, return_when


def _in_order(futures: Sequence[Any]) -> Sequence[LaneFuture] | None:
    """The futures in the order of their lanes; None if some are not ours, or there are too many."""
    found = set(futures)
    if not 0 < len(found) <= FUTURES_MAX:
        return None
    if not all(isinstance(each, LaneFuture) and each._spanreplay_lane is not None for each in found):
        return None
    return sorted(found, key=hash)


def take_completed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`concurrent.futures.as_completed`: how many futures came in time is noted; a replay yields as many."""
    fs, timeout, _ = _read(*args, **kwargs)
    run = None if timeout is None else active_run()
    lane = None if run is None else guard.guarded("naming a wait", _lane_here, run, sys._getframe(1))
    if run is None or lane is None:
        return wrapped(fs, timeout)
    name = f"{lane.path}{DONE}in time.{lane.next_index('as_completed')}|"
    return run.order.take_completed(wrapped, name, fs, timeout)


def cancel_noted(run: Run, name: str, future: Any, cancel: Callable[[], bool]) -> bool:
    """`Future.cancel` of a pool's future, which is too late once it has begun."""
    if run.is_ended or run is not active_run():
        return cancel()
    frame = sys._getframe(3)
    if frame.f_code is _TAKE_RESULT and future._state == base.FINISHED:
        return cancel()
    lane = guard.guarded("naming a wait", _lane_here, run, frame, _CANCELLERS)
    if lane is None and not wait_state.is_asked:
        return cancel()
    return run.order.cancel(cancel, name, future)


def shut_down(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    """`ThreadPoolExecutor.shutdown`; a replay cancels the recorded jobs, whatever the pool has begun."""
    run = active_run()
    if run is not None and kwargs.get("cancel_futures"):
        run.order.shut_down(pool)
    return wrapped(*args, **kwargs)


# ── timeouts ────────────────────────────────────────────────────────────────────────────────────────
def wrap_timed(timed: Timed) -> Callable[[Any, Any, Any, Any], Any]:
    """The wrapper for `Patches.wrap` around a function that waits with a timeout."""

    def wait(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        limit = timed.limit_of(args, kwargs)
        is_bridge = timed.owner is base.Future and getattr(instance, "_spanreplay_lane", None) is None
        frees_many = timed.frees_many or is_bridge
        run = None if wait_state.is_known or (limit is None and not frees_many) else active_run()
        lane = None if run is None else guard.guarded("naming a wait", _lane_of, run, instance, sys._getframe(1))
        if run is None or lane is None:
            return wrapped(*args, **kwargs)
        is_own = (limit is None or limit is AT_ONCE or frees_many) and _is_asked(
            sys._getframe(1), _CARRIERS, origin.is_agent if is_bridge and limit is None else origin.is_own
        )
        if not (is_own or (limit is not None and limit is not AT_ONCE)):
            return wrapped(*args, **kwargs)
        if timed.owner is threading.Event and not run.order.keeps_turns and instance.is_set():
            return _pass(run, lane, wrapped, args, kwargs, is_timed=limit is not None, is_own=is_own)
        if limit is None:
            return _go_on_in_turn(run, lambda: wrapped(*args, **kwargs))
        name = name_attempt(lane) if limit is AT_ONCE else f"{lane.path}{EXPIRED}{lane.next_index('timed')}"
        with unwatched():
            result = run.order.wait_limited(timed, name, instance, (wrapped, args, kwargs))
        if is_own and (result or is_bridge) and frees_many and run.lock_order.is_shared:
            note_return(run)
        return result

    return wait


def _pass(run: Run, lane: Lane, wrapped: Any, args: Any, kwargs: Any, *, is_timed: bool, is_own: bool) -> Any:
    """A wait for something that has already happened: it can't expire, but still takes its number."""
    if is_timed:
        lane.next_index("timed")
    result = wrapped(*args, **kwargs)
    if is_own and run.lock_order.is_shared:
        note_return(run, lane)
    return result


def _go_on_in_turn(run: Run, call: Callable[[], Any]) -> Any:
    """Wait for an event that others may wait for too, and note the order in which they go on."""
    try:
        with unwatched():
            return call()
    finally:
        if run.lock_order.is_shared:
            note_return(run)


def meet(wrapped: Any, barrier: Any, args: Any, kwargs: Any) -> Any:
    """`Barrier.wait`, which releases many threads at once."""
    run = None if wait_state.is_known else active_run()
    lane = None if run is None else guard.guarded("naming a wait", _lane_here, run, sys._getframe(1))
    if run is None or lane is None or not _is_asked(sys._getframe(1), _CARRIERS, origin.is_own):
        return wrapped(*args, **kwargs)
    return _go_on_in_turn(run, lambda: wrapped(*args, **kwargs))


def _lane_of(run: Run, instance: Any, frame: FrameType) -> Lane | None:
    return None if isinstance(instance, TurnCondition) else _lane_here(run, frame)


# ── sleeps ──────────────────────────────────────────────────────────────────────────────────────────
def sleep(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`time.sleep`, with which threads take turns; in a replay it ends when it is its turn."""
    run = active_run()
    if run is None or not run.lock_order.is_shared:
        return wrapped(*args, **kwargs)
    lane = guard.guarded("naming a sleep", _lane_here, run, sys._getframe(1))
    if lane is None:
        return wrapped(*args, **kwargs)
    return run.order.sleep(wrapped, f"{lane.path}{SLEPT}{lane.next_index('sleep')}", args, kwargs)
