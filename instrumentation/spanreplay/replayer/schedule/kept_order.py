"""The order of a run while it is replayed: each thread continues when it is the turn of the recorded end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spanreplay.replayer.schedule import borrowed_threads, thread_waits
from spanreplay.replayer.schedule.changed_limits import ChangedLimits
from spanreplay.runtime.lanes import Lane
from spanreplay.runtime.order.lane_end import LANE_END, THREAD_LANE
from spanreplay.runtime.order.lock_order import LockOrder, note_taken
from spanreplay.runtime.order.loops import BEGUN, clock_of, clock_of_running_loop
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.run_order import Deadline
from spanreplay.runtime.order.steps import Outer
from spanreplay.runtime.order.wait_ends import Timed, name_attempt, unwatched

if TYPE_CHECKING:
    from spanreplay.runtime.processes import ProcessGroup
    from spanreplay.runtime.run import Run


class KeptOrder:
    """Keeps the recorded ends of one replay; see `RunOrder`."""

    def __init__(self, run: Run, gate: Order, lock_order: LockOrder) -> None:
        self._run = run
        self._gate = gate
        self._lock_order = lock_order
        self._limits: ChangedLimits | None = None

    keeps_turns = True

    def for_manifest(self) -> dict[str, Any]:
        """Nothing: the recording has it."""
        return {}

    def share(self, shared: ProcessGroup) -> None:
        """Keep the order together with the other processes, from now on."""
        self._gate.share(shared)

    # ── lanes ───────────────────────────────────────────────────────────────────────────────────────
    def begin(self, name: str) -> None:
        """Count callbacks of the event loop from here if the recording does."""
        clock = (self._gate.timers or {}).get(name + BEGUN, -1)
        loop_clock = None if clock < 0 else clock_of_running_loop()
        if loop_clock is not None:
            loop_clock.note(clock)

    def begin_future(self, lane: str, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin the future; one that was cancelled when recorded blocks until it is cancelled again."""
        return self._gate.begin(lane, future, begin)

    def wait_lane(self, lane: str) -> None:
        """Block until it is the turn of the lane to end."""
        self._gate.wait_lane(lane)

    def release_lane(self, lane: str) -> None:
        """Wake the threads that wait for this end."""
        self._gate.complete(self._gate.lane_ends.get(lane, -1))

    # ── event loops ─────────────────────────────────────────────────────────────────────────────────
    def take_over(self, loop: Any) -> bool:
        """True: trio's time jumps."""
        from spanreplay.replayer.schedule.trio_clock import TrioTime  # which imports trio

        TrioTime(loop, self._gate, self._run).attach()
        return True

    def set_timer(self, name: str, loop: Any, call: tuple[Any, Any, Any], *, may_be_early: bool) -> Any:
        """Set a timer that fires where it fired when recorded; the loop's own if that is unknown."""
        wrapped, args, kwargs = call
        (when, callback, *rest), clock = args, clock_of(loop)
        handle = None if clock is None else clock.make_timer(name, when, callback, rest, kwargs.get("context"))
        if handle is not None:
            self._find_limits().check_timer(name, when - loop.time())
        return wrapped(*args, **kwargs) if handle is None else handle

    def set_deadline(self, name: str, deadline: Deadline) -> Any:
        """Set a deadline that has passed if, and only if, it had passed when recorded."""
        clock = clock_of_running_loop()
        return deadline.set() if clock is None else clock.set_deadline(name, deadline)

    def pass_deadline(self, name: str) -> None:
        """No-op: the recording does not know this deadline."""

    def hand_over(self, name: str, loop: Any, call: tuple[Any, Any, Any]) -> Any:
        """Have the loop run it between the same two steps as when recorded; at any time if that is unknown."""
        wrapped, (callback, *rest), kwargs = call
        clock, gate = clock_of(loop), self._gate
        is_known = clock is not None and not gate.is_open and not loop.is_closed()
        number = (gate.timers or {}).get(name, -1) if is_known else -1
        if clock is None or number < 0:
            return wrapped(Outer(callback), *rest, **kwargs)
        return clock.hand_over(number, callback, rest, kwargs.get("context"))

    def ask_loop(self, ask: Callable[[Any], Any], function: Any, *, is_async: bool) -> Any:
        """Ask; when the loop is done, it announces that the thread is about to go on."""
        with self._gate.census.waiting_elsewhere() as end:
            return ask(thread_waits.ending_with(end, function, is_async=is_async))

    # ── threads that event loops' libraries use again ───────────────────────────────────────────────
    def lend(self, start: Callable[..., None], cache: Any, job: tuple[Any, ...]) -> None:
        """Give the call to the thread that ran it when recorded."""
        borrowed_threads.lend(cache, self._gate, start, job)

    def bind(self, thread: Any) -> None:
        """The thread stands for the recorded one."""
        borrowed_threads.bind(thread)

    def keep_idle(self, module: Any) -> None:
        """Have the loop keep its idle threads so that each call finds its own."""
        borrowed_threads.keep_idle(module)

    # ── waits of threads ────────────────────────────────────────────────────────────────────────────
    def _check(self, name: str, limit: Any, futures: Sequence[Any]) -> None:
        """Note a wait for these futures that its limit would end otherwise now."""
        self._find_limits().check(name, limit, [lane for each in futures if (lane := _lane_of(each))])

    def _find_limits(self) -> ChangedLimits:
        if self._limits is None:
            self._limits = ChangedLimits(self._run.resolver.answers.recording, self._gate)
        return self._limits

    def wait_futures(self, wrapped: Any, name: str, futures: Sequence[Any], limits: tuple[Any, Any]) -> Any:
        """Return the futures that were done when recorded, once they are."""
        self._check(name, limits[0], [each for each in futures if not each.done()])
        with unwatched():
            return thread_waits.wait_as_recorded(wrapped, self._gate, name, futures, limits)

    def take_completed(self, wrapped: Any, name: str, fs: Any, timeout: float) -> Iterator[Any]:
        """Yield as many futures as came in time when recorded."""
        fs = list(fs)
        self._check(name, timeout, fs)
        return thread_waits.take_as_recorded(wrapped, self._gate, name, fs, timeout)

    def cancel(self, cancel: Callable[[], bool], name: str, future: Any) -> bool:
        """Cancel the future before it begins if it was cancelled in time when recorded, otherwise after it begins."""
        return thread_waits.cancel_as_recorded(cancel, self._gate, name, future)

    def shut_down(self, pool: Any) -> None:
        """Cancel the jobs that were cancelled when recorded, regardless of which ones the pool has begun here."""
        thread_waits.cancel_queued(self._gate, pool)

    def wait_limited(self, timed: Timed, name: str, instance: Any, call: tuple[Any, Any, Any]) -> Any:
        """Wait for what came when recorded; if nothing came, expire in the same way at the recorded turn."""
        wrapped, args, kwargs = call
        limit = timed.limit_of(args, kwargs)
        self._check(name, limit, [instance])

        def wait(seconds: float) -> Any:
            changed, named = timed.with_limit(args, kwargs, seconds)
            return wrapped(*changed, **named)

        return thread_waits.expire_as_recorded(wait, timed, self._gate, name, instance, limit)

    def sleep(self, wrapped: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Return when it is the turn of the sleep to end."""
        return thread_waits.sleep_as_recorded(wrapped, self._gate, name, args)

    def attempt(self, lock: Any, shared: str, lane: Lane, blocking: bool, timeout: float) -> bool:
        """Take the lock if that succeeded when recorded; otherwise fail at the recorded turn."""

        def attempt(seconds: float) -> bool:
            return bool(lock.acquire(True, seconds))

        def wait() -> None:
            self._lock_order.wait(shared, lane.path)

        if not thread_waits.attempt_as_recorded(attempt, self._gate, name_attempt(lane), wait, max(timeout, 0)):
            return False
        note_taken(self._lock_order, shared, lane.path, lock)
        return True

    def meet(self, name: str, meet: Callable[[float | None], bool], limit: float | None) -> bool:
        """Meet when it is this meeting's turn, or fail then if it failed when recorded."""
        return thread_waits.meet_as_recorded(meet, self._gate, name, limit)

    def give_way(self, name: str, mutex: Any) -> None:
        """Wait for the turn of a meeting, with the lock released meanwhile."""
        mutex.release()
        try:
            thread_waits.await_meeting_as_recorded(self._gate, name)
        finally:
            mutex.acquire()

    @property
    def has_meetings(self) -> bool:
        """Always True, although the recording may have none."""
        return True

    def wait_elsewhere(self, wait: Callable[[], Any], look: Callable[[float], bool] | None = None) -> Any:
        """Wait; with `look`, only while something may still arrive, if the process could not end otherwise."""
        process_group = self._run.process_group
        may_hang = process_group is not None and not process_group.is_worker and not threading.current_thread().daemon
        with self._gate.census.waiting_elsewhere():
            if look is not None and may_hang:
                self._gate.wait_long(look)
            return wait()

    @contextmanager
    def starting(self, number: int, process: Any) -> Iterator[None]:
        """Make stall detectors wait for the calls of a process that is being started."""
        process_group = self._run.share()
        process_group.children.append((number, process))
        process_group.state_starting(number, True)
        try:
            yield
        except BaseException:
            process_group.state_starting(number, False)
            raise
        process_group.state_pid(number, process.pid or 0)

    def see_end(self, number: int) -> None:
        """Stop waiting for the calls of a process."""
        if self._run.process_group is not None:
            self._run.process_group.state_starting(number, False)

    def count_handed(self, jobs: int) -> None:
        """Make stall detectors wait for what the pools' workers may still do."""
        if self._run.process_group is not None:
            self._run.process_group.state_handed(jobs)

    def start_item(self) -> None:
        """Count the worker as working until its result is sent."""
        self._gate.census.started()

    report_s_max = 60.0
    """The verdict would lack the calls of a worker that has not reported."""
    keeps_reported = True
    """A call made now must not go live."""

    def await_seen(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds in this replay."""
        self._gate.wait_until(is_so)

    def wait_for_any(
        self, wait: Callable[[list[Any], float | None], list[Any]], name: str, objects: list[Any], limit: float | None
    ) -> list[Any]:
        """Return the objects that were ready when recorded, once they are."""
        return thread_waits.find_ready_as_recorded(wait, self._gate, name, objects, limit)

    def go_on(self, name: str) -> None:
        """Wait until it is the thread's turn to continue."""
        gate = self._gate
        clock = -1 if gate.is_open else (gate.timers or {}).get(name, -1)
        if clock >= 0:
            gate.wait_turn(clock)
            gate.complete(clock)

    # ── signals ─────────────────────────────────────────────────────────────────────────────────────
    def receive(self, lane: Lane, number: int, find_place: Callable[[], str]) -> None:
        """If this replay has sent it, let what came after it when recorded go on."""
        self._gate.sent.arrive(number)

    def expect_signals(self) -> None:
        """Send the next signal if its turn has come."""
        self._gate.sent.look()

    def pause(self) -> bool:
        """Send the signal that ended the pause, at its turn."""
        return self._gate.sent.send_in_pause()


def _lane_of(awaited: Any) -> str:
    """The lane whose end a wait for this future or thread is for; '' if it is something else."""
    if isinstance(awaited, threading.Thread):
        return str(vars(awaited).get(THREAD_LANE, ""))
    return str(getattr(getattr(awaited, LANE_END, None), "lane", ""))
