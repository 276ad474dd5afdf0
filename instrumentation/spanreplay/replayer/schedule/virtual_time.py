"""Virtual time for asyncio: a replay never waits for a clock.

An idle event loop would sleep until its next timer; in a replay it jumps there. Served calls complete and timers fire
in the recorded order (see `gate` and `timers`), so timeouts, back-offs and races between timers and calls turn out as
recorded, without waiting. Events that have no place in that order follow the recorded durations (the recording of a run
that was killed contains no timers).

Everything happens in the loop's own `select`: asyncio calls it with a positive timeout, or with None, exactly when
nothing is ready to run.
"""

from __future__ import annotations

import abc
import asyncio
import heapq
from collections.abc import Callable
from typing import Any, Final

from spanreplay.replayer.schedule.stall_detector import STALL_BUSY_MS, STALL_MS, Reaction, hang_ms
from spanreplay.replayer.schedule.worker_watch import relieve
from spanreplay.runtime.order.order import Order, is_later

TURN_S: Final = 0.00001
"""How far the clock moves in a loop iteration that had work to do: real CPU time would let timers overtake calls, and
zero would let a program that polls the clock run forever.
"""
POLL_S: Final = 0.005
"""How long to poll for real input and output while other threads work."""


POLLS_MAX: Final = 100_000
"""How many timers may fire in a row without progress in the recording, before a program counts as stuck."""
IN_VAIN_S: Final = 1.0
"""How long a call waits for its turn, in addition to the length of the recording, if timers were not recorded."""
UNFIRED_MAX: Final = 10
"""The same for timers that never fired when recorded; the replay first waits for each of them in vain."""
STARTED_MAX: Final = 10_000
"""The maximum number of streams whose start on the loop's clock is remembered."""


class Due:
    """A call's completion, a timer, or a handle from another thread; continues when its turn has come."""

    __slots__ = ("clock", "due", "future", "handle")

    def __init__(self, clock: int, due: float, *, future: Any = None, handle: asyncio.Handle | None = None) -> None:
        self.clock = clock
        self.due = due
        self.future = future
        self.handle = handle

    @property
    def timer(self) -> asyncio.TimerHandle | None:
        """The timer, if this is one."""
        return self.handle if isinstance(self.handle, asyncio.TimerHandle) else None

    def is_over(self) -> bool:
        """Whether it has continued, or was cancelled."""
        return bool(self.future.is_over) if self.handle is None else self.handle.cancelled()

    def fire(self) -> None:
        """Let it continue."""
        if self.handle is not None:
            self.handle._run()
        else:
            self.future.set_result(None)

    def __lt__(self, other: Due) -> bool:
        return (self.clock, self.due) < (other.clock, other.due)


class LoopClock(abc.ABC):
    """Takes over one event loop's clock and its idle moments, while the loop runs.

    Subclasses decide how events are stored, and how those that come while the loop is busy are handled.
    """

    def __init__(self, loop: Any, gate: Order) -> None:
        self._loop = loop
        self._gate = gate
        self._now_s = float(loop.time())
        self._unfired: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._limits: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        """The agent's timers that never fired when recorded: when each is due, and after how many seconds."""
        self._real_time: Callable[[], float] = loop.time
        self._real_select: Callable[[float | None], Any] = loop._selector.select
        self._idle_since = -1.0
        self._idle_head = (-1, -1)
        self._stuck_since = -1.0
        self._polls = 0
        self._head = (0, 0)
        self._reaction: Reaction | None = None
        self._others: Reaction | None = None
        self._others_since = -1.0
        self._moved: tuple[object, float] = (None, 0.0)
        self._live_since: float | None = None
        self._started: dict[int, float] = {}

    def _time(self) -> float:
        if self._gate.is_live:
            if self._live_since is None:
                self._live_since = self._now_s - float(self._real_time())
            return self._live_since + float(self._real_time())
        return self._now_s

    def since(self, crossing: Any) -> float:
        """Seconds on the loop's clock since a call was first seen here."""
        now = self._time()
        started = self._started.setdefault(crossing.seq, now)
        if len(self._started) > STARTED_MAX:
            self._started.pop(next(iter(self._started)))
        return now - started

    @abc.abstractmethod
    async def wait_turn(self, clock: int, seconds: float) -> None:
        """Suspend until the recorded duration has passed on the loop's clock and it is this completion's turn."""

    @abc.abstractmethod
    async def settle(self, clock: int) -> None:
        """Wait, in a cancelled task, until its call ends as recorded: its body may have continued."""

    @abc.abstractmethod
    def make_wake(self, clock: int) -> asyncio.Future[None]:
        """Make a future that the program has to cancel; its waiter then continues where it did when recorded."""

    @abc.abstractmethod
    def note(self, clock: int) -> None:
        """A completion has just gone out."""

    @abc.abstractmethod
    def _find_head(self) -> Due | None:
        """Return the earliest completion that waits on this loop."""

    @abc.abstractmethod
    def _let_go(self, head: Due) -> None:
        """Let the head continue."""

    @abc.abstractmethod
    def _take_waiting(self) -> list[Due]:
        """Remove and return everything that waits for its turn."""

    @abc.abstractmethod
    def _look(self, seconds: float) -> Any:
        """Return the events that arrive from outside within this many seconds."""

    @abc.abstractmethod
    def _give_up(self, head: Due | None) -> float | None:
        """Give up: nothing has happened for too long, so the program no longer follows the recording."""

    def keep_unfired(self, handle: asyncio.TimerHandle) -> None:
        """Keep a timer that fires only if nothing else can happen any more."""
        heapq.heappush(self._unfired, (handle.when(), id(handle), handle))

    # ── the loop's idle moments ─────────────────────────────────────────────────────────────────────
    def _select_idle(self, timeout: float | None) -> Any:
        """Release the next event while the loop is idle; `timeout` is the time until its own next timer."""
        timer = None if timeout is None else self._time() + timeout
        with self._gate.census.polling():
            while True:
                events = self._look(0)
                if events:
                    self._idle_since = self._stuck_since = -1.0
                    return events
                wait_s = self._go_on(timer)
                if wait_s is None:
                    return []
                events = self._poll(wait_s)
                is_due = timer is not None and self._time() >= timer
                if events or self._loop._ready or is_due or self._gate.is_live:  # a signal handler may ready it
                    return events

    def _go_on(self, timer: float | None) -> float | None:
        """Release the next event and return None; otherwise return the seconds until the next look."""
        if self._is_thread_reacting():
            return POLL_S
        head = self._find_head()
        if head is not None and self._gate.is_turn(head.clock):
            if timer is None or head.due <= timer:
                self._reach_head(head)
                self._let_go(head)
            else:
                self._jump(timer)
            return None
        return self._idle(head, timer)

    def _is_thread_reacting(self) -> bool:
        """Whether other threads may still be reacting to what they were told last."""
        if not self._gate.is_thread_awaited:
            return False
        told_at = self._gate.census.told_at
        if self._reaction is None or self._reaction.since != told_at:
            self._reaction = Reaction(since=told_at, is_quick=self._gate.shows_reactions)
        return not self._reaction.is_over(self._gate.census.idle)

    def _select_live(self, timeout: float | None) -> Any:
        """Switch to real time: waiting completions continue, and timers set earlier fire when they are due."""
        now, timers = self._time(), self._unfired
        self._unfired = []
        for entry in sorted(self._take_waiting()):
            if entry.timer is not None:
                timers.append((entry.due, id(entry.timer), entry.timer))
            elif not entry.is_over():
                entry.fire()
                timeout = 0
        for due, number, handle in sorted(timers):
            if not handle.cancelled() and due > now:
                self._unfired.append((due, number, handle))
            elif not handle.cancelled():
                self._loop._ready.append(handle)
                timeout = 0
        if self._unfired:
            wait = max(0.0, self._unfired[0][0] - now)
            timeout = wait if timeout is None else min(timeout, wait)
        return self._real_select(timeout)

    def _idle(self, head: Due | None, timer: float | None) -> float | None:
        # Nothing here can continue by itself: let other threads and real sockets move first
        is_any_waiting = timer is not None and self._gate.census.is_any_waiting
        others = self._gate.working_threads > 1 or is_any_waiting or len(self._loop._selector.get_map()) > 1
        now, moved = float(self._real_time()), self._gate.head
        if self._idle_since < 0 or moved != self._idle_head:
            self._idle_since, self._idle_head = now, moved
        waited_ms = (now - self._idle_since) * 1000
        if timer is not None and not others and (head is None or timer < head.due):
            self._count_poll()
            self._jump(timer)
            return None
        is_awaited = others and self._are_others_at_work(now)
        if others and waited_ms < STALL_BUSY_MS and (timer is None or waited_ms < STALL_MS or head is not None):
            return POLL_S
        if is_awaited:
            return POLL_S
        if head is not None and timer is not None and self._waits_in_vain(head, timer):
            return self._give_up(head)
        if timer is not None and (head is None or timer < head.due or waited_ms < STALL_MS):
            self._count_poll()
            self._jump(timer)
            return None
        is_coming = self._gate.is_turn_taken or self._gate.waits_for_process(waited_ms / 1000)
        if waited_ms < STALL_MS or is_coming:
            return POLL_S
        return self._give_up(head)

    def _waits_in_vain(self, head: Due, timer: float) -> bool:
        """Whether a call waits for one that the program will not make before it, whatever timers bring.

        If the order of tasks was not recorded, another task may have got a lock first, which it holds while it waits.
        Then the recorded order can't be kept. A timer that is due later than the whole recording lasted fired for
        nothing that came before: it is a timeout, and must not pass.
        """
        return self._gate.timers is None and timer > head.due + self._gate.lasted_s + IN_VAIN_S

    def _are_others_at_work(self, now: float) -> bool:
        """Whether other threads make progress since the loop became idle; no deadline passes before they had time.

        They make progress if one of their calls has ended or begun, or if they compute.
        """
        moved = (self._gate.head, self._gate.census.told_at)
        if self._others is None or self._others_since != self._idle_since or moved != self._moved:
            self._moved, self._others_since = moved, self._idle_since
            self._others = Reaction(STALL_MS / 1000, now, is_patient=True)
        return not self._others.is_over(self._gate.census.idle)

    def _wait_for_nothing(self) -> float | None:
        """Wait for another thread or a socket: without a timer or a call, only they can make the program continue."""
        now, head = float(self._real_time()), self._gate.head
        is_alone = self._gate.working_threads <= 1 and len(self._loop._selector.get_map()) <= 1
        if self._stuck_since < 0 or head != self._head or not is_alone:
            self._stuck_since, self._head = now, head
        elif (now - self._stuck_since) * 1000 >= hang_ms() and self._gate.on_stall is not None:
            if relieve(self._gate):
                self._stuck_since = now
                return POLL_S
            raise self._gate.on_stall()
        return POLL_S * 10

    def _count_poll(self, weight: int = 1) -> None:
        """Count a timer that moves the clock: polling forever for something that never comes also counts as stuck."""
        self._polls += weight
        if self._polls < POLLS_MAX:
            return
        head, self._polls = self._gate.head, 0
        if head == self._head and self._gate.on_stall is not None and not relieve(self._gate):
            raise self._gate.on_stall()
        self._head = head

    def _poll(self, seconds: float) -> Any:
        """Let real time pass for a moment: something outside may need it."""
        self._now_s += seconds
        with self._gate.census.waiting_elsewhere():
            return self._look(seconds)

    def reach(self, moment: float) -> None:
        """Move the loop's clock forward to at least this moment."""
        self._now_s = max(self._now_s, moment)

    def _reach_head(self, head: Due) -> None:
        """Move the clock to a completion or a timer; note a limit of the agent's that would end the call before."""
        while self._limits:
            when, seconds, _, handle = self._limits[0]
            if not handle.cancelled():
                end_s = head.due - when + seconds
                if head.handle is not None or not is_later(seconds, end_s):
                    break
                why = (
                    f"a timer of {seconds:.3g} s goes off before its end now, which is {end_s:.3g} s after that was set"
                )
                self._gate.note_late(head.clock, why)
            heapq.heappop(self._limits)
        self._jump(head.due)

    def _jump(self, moment: float) -> None:
        self.reach(moment)
        self._idle_since = -1.0
