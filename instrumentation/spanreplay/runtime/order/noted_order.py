"""The order of a run while it is recorded: each end takes a value of the run's Lamport clock, and nobody waits."""

from __future__ import annotations

import concurrent.futures._base as base
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from spanreplay.model import guard
from spanreplay.model.ids import monotonic_ns
from spanreplay.model.levels import Level
from spanreplay.runtime.lanes import Clock, Lane
from spanreplay.runtime.order.lock_order import LockOrder, note_taken
from spanreplay.runtime.order.loops import BEGUN, LoopBook
from spanreplay.runtime.order.noted_timers import HandedOver, NotedTimer
from spanreplay.runtime.order.run_order import Deadline
from spanreplay.runtime.order.signal_names import name_signal
from spanreplay.runtime.order.steps import Outer
from spanreplay.runtime.order.wait_ends import (
    ATTEMPT,
    FAILED,
    SLEEP,
    Timed,
    has_come,
    name_attempt,
    split,
    to_bits,
    unwatched,
)
from spanreplay.runtime.order.waited import Waited

if TYPE_CHECKING:
    from spanreplay.runtime.order.lane_futures import LaneFuture
    from spanreplay.runtime.processes import ProcessGroup

ENDED: Final = "_spanreplay_ended"
"""Attribute of a thread whose lane has ended: the agent does nothing more in it."""


_AWAITED: Final = (base.Future, threading.Thread)
"""What an expired wait is for, if somebody can say when it would have ended."""


class Clocked(Protocol):
    """The part of a run that notes its ends."""

    loops: LoopBook | None
    clock: Clock
    lock_order: LockOrder
    waits: dict[str, list[str]]
    is_ended: bool
    level: Level

    def tick(self) -> int:
        """The next value of the run's Lamport clock."""

    def end_timer(self, name: str, is_sleep: bool = False) -> None:
        """Note that something the agent waits for has happened."""


class NotedOrder:
    """Notes the ends of a run that is being recorded; see `RunOrder`."""

    def __init__(self, run: Clocked) -> None:
        self._run = run
        self._waited = Waited()

    keeps_turns = False

    def for_manifest(self) -> dict[str, Any]:
        """How long waits lasted."""
        return self._waited.for_manifest()

    def share(self, shared: ProcessGroup) -> None:
        """No-op: each process notes its own ends."""

    # ── lanes ───────────────────────────────────────────────────────────────────────────────────────
    def begin(self, name: str) -> None:
        """Note that the agent begins something on an event loop: a starting point from which a replay counts."""
        run = self._run
        if run.loops is not None:
            run.loops.begin(run.tick, name + BEGUN)

    def begin_future(self, lane: str, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin the future."""
        return begin()

    def wait_lane(self, lane: str) -> None:
        """No-op: the lane ends without waiting."""

    def release_lane(self, lane: str) -> None:
        """No-op: nobody waits for it here."""

    # ── event loops ─────────────────────────────────────────────────────────────────────────────────
    def take_over(self, loop: Any) -> bool:
        """False: the loop keeps its own time."""
        return False

    def set_timer(self, name: str, loop: Any, call: tuple[Any, Any, Any], *, may_be_early: bool) -> Any:
        """Set the timer, and note when it fires."""
        wrapped, (when, callback, *rest), kwargs = call
        timer = NotedTimer(self._run, name, loop, when, callback)
        if f"|{SLEEP}|" not in name:  # a pause limits nothing
            limit_s = max(0.0, when - loop.time())
            timer.fired = functools.partial(self._note_waited, name, 0, limit_s, has_expired=True)
        handle = wrapped(when, Outer(timer), *rest, **kwargs)
        if may_be_early:
            timer.again = lambda *values: wrapped(when, Outer(timer), *values, **kwargs)
            timer.is_cancelled = handle.cancelled
        return handle

    def set_deadline(self, name: str, deadline: Deadline) -> Any:
        """Set the deadline, and note whether it had passed."""
        result = deadline.set()
        if deadline.has_passed:
            self._run.end_timer(name)
        return result

    def pass_deadline(self, name: str) -> None:
        """Note that it passes."""
        self._run.end_timer(name)

    def hand_over(self, name: str, loop: Any, call: tuple[Any, Any, Any]) -> Any:
        """Hand it over, and note when the loop runs it."""
        wrapped, (callback, *rest), kwargs = call
        return wrapped(Outer(HandedOver(self._run, name, callback)), *rest, **kwargs)

    def ask_loop(self, ask: Callable[[Any], Any], function: Any, *, is_async: bool) -> Any:
        """Call `ask(function)`."""
        return ask(function)

    # ── threads that event loops' libraries use again ───────────────────────────────────────────────
    def lend(self, start: Callable[..., None], cache: Any, job: tuple[Any, ...]) -> None:
        """Start the call in any thread."""
        start(*job)

    def bind(self, thread: Any) -> None:
        """No-op: the thread's calls are noted when they begin."""

    def keep_idle(self, module: Any) -> None:
        """No-op: the library finds a thread."""

    # ── waits of threads ────────────────────────────────────────────────────────────────────────────
    def wait_futures(self, wrapped: Any, name: str, futures: Sequence[Any], limits: tuple[Any, Any]) -> Any:
        """Wait, and note which futures were done."""
        from spanreplay.runtime.order.lane_futures import ENDING  # which imports asyncio

        since_ns, (limit, until) = monotonic_ns(), limits
        with unwatched():
            wrapped(futures, *limits)
        with ENDING:  # no future ends between this check and its note
            done = [each.done() for each in futures]
            guard.guarded("the end of a wait", self._note_done, name + to_bits(done), futures)
        self._note_waited(name, since_ns, limit, has_expired=not has_come(done, until))
        return split(futures, done)

    def _note_done(self, name: str, futures: Sequence[LaneFuture]) -> None:
        self._run.end_timer(name)
        self._run.waits[name] = lanes_of(futures)

    def take_completed(self, wrapped: Any, name: str, fs: Any, timeout: float) -> Iterator[Any]:
        """Yield the futures; if the rest does not come in time, note how many came."""
        return self._take_in_time(name, wrapped(fs, timeout), timeout)

    def _take_in_time(self, name: str, futures: Iterator[Any], timeout: float) -> Iterator[Any]:
        count, since_ns = 0, monotonic_ns()
        while True:
            try:
                with unwatched():
                    found = [next(futures)]
            except StopIteration:
                self._note_waited(name, since_ns, timeout, has_expired=False)
                return
            except base.TimeoutError:
                self._note(f"{name}{count:x}")
                self._note_waited(name, since_ns, timeout, has_expired=True)
                raise
            count += 1
            yield found.pop()  # not to keep it alive

    def cancel(self, cancel: Callable[[], bool], name: str, future: Any) -> bool:
        """Cancel the future, and note whether it was in time."""
        is_cancelled = cancel()
        self._note(f"{name}{is_cancelled:x}")
        return is_cancelled

    def shut_down(self, pool: Any) -> None:
        """No-op: the pool cancels its waiting jobs."""

    def wait_limited(self, timed: Timed, name: str, instance: Any, call: tuple[Any, Any, Any]) -> Any:
        """Wait, and note the end if nothing came."""
        wrapped, args, kwargs = call
        since_ns, limit = monotonic_ns(), timed.limit_of(args, kwargs)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as exc:
            if has_expired := timed.is_expiry(instance, exc):
                self._note(name, is_sleep=ATTEMPT in name)
            if not has_expired or isinstance(instance, _AWAITED):
                self._note_waited(name, since_ns, limit, has_expired=has_expired)
            raise
        if timed.name == "join" and ENDED in vars(instance):
            threading.Thread.join(instance)  # the lane has ended, and everything observable about it has happened
        if has_expired := timed.has_expired(instance, result):
            self._note(name, is_sleep=ATTEMPT in name)
        if not has_expired or isinstance(instance, _AWAITED):
            self._note_waited(name, since_ns, limit, has_expired=has_expired)
        return result

    def sleep(self, wrapped: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Sleep, and note the end."""
        result = wrapped(*args, **kwargs)
        self._note(name, is_sleep=True)
        return result

    def attempt(self, lock: Any, shared: str, lane: Lane, blocking: bool, timeout: float) -> bool:
        """Try to acquire the lock, and note the end if that failed."""
        name, run = name_attempt(lane), self._run
        if not lock.acquire(blocking, timeout):
            if not run.is_ended:
                guard.guarded("the end of an attempt", run.end_timer, name, True)
            return False
        note_taken(run.lock_order, shared, lane.path, lock)
        return True

    def meet(self, name: str, meet: Callable[[float | None], bool], limit: float | None) -> bool:
        """Meet, and note whether that succeeded."""
        is_met = meet(limit)
        self._note(name if is_met else name + FAILED, is_sleep=True)
        return is_met

    def give_way(self, name: str, mutex: Any) -> None:
        """No-op: meetings are not ordered while recording."""

    @property
    def has_meetings(self) -> bool:
        """Whether meetings are noted at this level of recording."""
        return "timers" in self._run.level

    def wait_elsewhere(self, wait: Callable[[], Any], look: Callable[[float], bool] | None = None) -> Any:
        """Wait."""
        return wait()

    def starting(self, number: int, process: Any) -> AbstractContextManager[None]:
        """A block in which nothing is noted: the join token records it."""
        return nullcontext()

    def see_end(self, number: int) -> None:
        """No-op: the other process's part of the run records it."""

    def count_handed(self, jobs: int) -> None:
        """No-op: nobody waits for them here."""

    def start_item(self) -> None:
        """No-op: nobody counts threads here."""

    report_s_max = 2.0
    """Killing must not take long."""
    keeps_reported = False
    """What it does after its report is in no recording."""

    def await_seen(self, is_so: Callable[[], bool]) -> None:
        """No-op: it is already over."""

    def wait_for_any(
        self, wait: Callable[[list[Any], float | None], list[Any]], name: str, objects: list[Any], limit: float | None
    ) -> list[Any]:
        """Wait, and note which of them were ready."""
        ready = wait(objects, limit)
        self._note(name + to_bits([any(each is other for other in ready) for each in objects]), is_sleep=True)
        return ready

    def go_on(self, name: str) -> None:
        """Note where the thread goes on."""
        guard.guarded("noting a return", self._run.end_timer, name, True)

    # ── signals ─────────────────────────────────────────────────────────────────────────────────────
    def receive(self, lane: Lane, number: int, find_place: Callable[[], str]) -> None:
        """Note where the signal came."""
        self._note(name_signal(lane, number, find_place()))

    def expect_signals(self) -> None:
        """No-op: others send them."""

    def pause(self) -> bool:
        """False: nobody knows when a signal will come."""
        return False

    def _note_waited(self, name: str, since_ns: int, limit: Any, *, has_expired: bool) -> None:
        """Note how long a wait lasted that may expire; an attempt does not wait."""
        if ATTEMPT not in name and not self._run.is_ended:
            note, value = (self._waited.expire, limit) if has_expired else (self._waited.end, since_ns)
            guard.guarded("the length of a wait", note, name, self._run.clock.now, value)

    def _note(self, name: str, *, is_sleep: bool = False) -> None:
        if not self._run.is_ended:
            guard.guarded("the end of a wait", self._run.end_timer, name, is_sleep)


def lanes_of(futures: Sequence[LaneFuture]) -> list[str]:
    """The lanes of some futures."""
    return [end.lane for end in (each._spanreplay_lane for each in futures) if end is not None]
