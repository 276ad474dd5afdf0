"""One `trio.run`, in the shape in which the rest of spanreplay knows the loops of asyncio.

What it needs of a loop is little: a selector that is asked once a turn, a clock, and futures to wait for. Turns are
counted, results released and time jumped over by the same code as for asyncio (`loops`, `replay.virtual_time`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from spanreplay.offload import Work
from spanreplay.replay.crew import nothing
from spanreplay.replay.order import OrderGate
from spanreplay.replay.patience import LOOK_MS, Patience
from spanreplay.replay.virtual_time import LoopClock
from spanreplay.waits import unwatched

if TYPE_CHECKING:
    from spanreplay.run import Run

_FOREVER_S: Final = 24 * 60 * 60
"""What trio asks for where no deadline is set."""
_MOMENT_S: Final = 1e-9
"""More than none: there is nothing to do."""


class TrioLoop:
    """Stands for one `trio.run`. Used by the thread that runs it, but for `call_soon_threadsafe`."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._selector = _Selector(runner.io_manager)
        self._ready = _Ready()
        self._clock = runner.clock
        self.deadlines = Deadlines(runner)
        self.release: Callable[[], None] = nothing
        """Called when trio has ended."""

    @property
    def is_about_to_jump(self) -> bool:
        """Whether nothing can run, and a clock that jumps (`trio.testing.MockClock`) is about to."""
        runner = self._runner
        return runner.clock_autojump_threshold == 0 and not runner.runq and not runner.waiting_for_idle

    # ── what asyncio's loops have ───────────────────────────────────────────────────────────────────
    def time(self) -> float:
        """Seconds on trio's own clock."""
        return float(self._clock.current_time())

    def create_future(self) -> Future:
        """Something that one task can wait for."""
        return Future(self._runner)

    def call_soon_threadsafe(self, callback: Callable[[], Any]) -> None:
        """Wake the loop up and call something there. Raises: RuntimeError behind its end."""
        self._runner.entry_queue.run_sync_soon(callback)

    def call_later(self, seconds: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """Call something in a replay, where nothing else can happen any more."""
        handle = asyncio.TimerHandle(self.time() + seconds, callback, list(args), self)  # type: ignore[arg-type]  # stands for one
        clock: Any = self.__dict__.get("_spanreplay_clock")
        if clock is not None:
            clock.keep_unfired(handle)
        return handle

    def take_told(self, what: Any) -> tuple[Callable[..., Any], Any] | None:
        """What trio was told to call with this, and calls no more; None if it was not."""
        entries = self._runner.entry_queue
        with entries.lock:
            for at in reversed(range(len(entries.queue))):
                function, args = entries.queue[at]
                if args and args[0] is what:
                    del entries.queue[at]
                    return function, args
        return None

    def wake_first(self, call: Callable[[], Any], behind: int) -> int:
        """Call what wakes tasks up, which run first in the next batch, behind so many; gives how many they are."""
        queue = self._runner.runq
        count = len(queue)
        call()
        woken = [queue.pop() for _ in range(len(queue) - count)]
        for task in woken:
            queue.insert(behind, task)
        return len(woken)

    def raise_if_cancelled(self) -> None:
        """Raise in the task that runs what it would get at its next checkpoint, if it is cancelled.

        A call that ends in the turn in which it is cancelled has been woken up already: it meets its end there.
        """
        task: Any = trio.lowlevel.current_task()
        found: list[Callable[[], Any]] = []

        def abort(raise_cancel: Callable[[], Any]) -> Any:
            found.append(raise_cancel)
            return trio.lowlevel.Abort.FAILED

        task._abort_func = abort
        try:
            task._attempt_delivery_of_any_pending_cancel()
        finally:
            task._abort_func = None
        for raise_cancel in found:
            raise_cancel()

    def get_debug(self) -> bool:
        """Whether handles keep the stack that made them."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return None


class _Selector:
    """Trio's waiting for input and output, as a selector."""

    def __init__(self, io_manager: Any) -> None:
        self._io_manager = io_manager

    def select(self, timeout: float | None = None) -> Any:
        return self._io_manager.get_events(_FOREVER_S if timeout is None else max(0.0, timeout))

    def get_map(self) -> Any:
        return getattr(self._io_manager, "_registered", ())


class _Ready:
    """Where asyncio keeps what it calls in this turn; trio has nothing like it, so it is called now."""

    def __len__(self) -> int:
        return 0

    def append(self, handle: asyncio.TimerHandle) -> None:
        handle._run()


class IOManager:
    """Trio's own, but for its waiting, which goes through the loop's selector."""

    def __init__(self, inner: Any, loop: TrioLoop) -> None:
        self._inner = inner
        self.loop = loop

    def get_events(self, timeout: float) -> Any:
        """What came within `timeout` seconds."""
        self.loop.deadlines.settle()
        if timeout == 0 and self.loop.is_about_to_jump:
            timeout = _MOMENT_S
        return self.loop._selector.select(None if timeout >= _FOREVER_S else timeout)

    def close(self) -> None:
        """Trio has ended."""
        self.loop.deadlines.settle()
        self.loop.release()
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Clock(trio.abc.Clock):
    """The loop's time as trio's: in a replay it jumps."""

    def __init__(self, loop: TrioLoop) -> None:
        self._loop = loop

    def start_clock(self) -> None:
        """Nothing is to be done."""

    def current_time(self) -> float:
        """Seconds on the loop's clock."""
        return self._loop.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds until a deadline."""
        return deadline - self._loop.time()


class TrioTime(LoopClock):
    """Virtual time for trio."""

    def __init__(self, loop: Any, gate: OrderGate) -> None:
        super().__init__(loop, gate)
        self._woken: Collection[int] = ()
        """What was released together last."""
        self._expected: dict[int, Work] = {}
        """Clock → call that a thread makes, whose result the loop gives in its turn."""
        self._handed: deque[tuple[Work, Callable[[], None]]] = deque()
        self._has_arrived = threading.Event()
        self._patience: Patience | None = None
        self._is_idle = self._was_idle = False
        """Whether trio had nothing to do in this turn, and in the last one."""
        self._front = 0
        """How many tasks that threads woke up run first in this turn."""

    # ── what threads bring ──────────────────────────────────────────────────────────────────────────
    def expect(self, work: Work, deliver: Callable[[Any], None]) -> Callable[[Any], None]:
        """What the thread that makes a call is to do with its result, in place of `deliver`, which tells trio.

        That takes trio two turns to see; here the result is given in the very turn in which it was seen.
        """
        if work.clock < 0:
            return deliver
        self._expected[work.clock] = work

        def hand_over(result: Any) -> None:
            if self._gate.is_live or work.clock not in self._expected:
                deliver(result)
                return
            self._handed.append((work, partial(self._report, work, deliver, result)))
            self._has_arrived.set()
            try:
                self._loop.call_soon_threadsafe(nothing)
            except RuntimeError:  # trio has ended: nobody waits any more
                work.give()

        return hand_over

    def _report(self, work: Work, deliver: Callable[[Any], None], result: Any) -> None:
        """Let who waits for a result go on in this turn: what trio would call later is called now."""
        self._expected.pop(work.clock, None)
        deliver(result)
        told = self._loop.take_told(result)
        if told is None:
            return
        function, args = told
        if self._was_idle:  # it woke trio up, and was seen before what came with it
            self._front += self._loop.wake_first(partial(function, *args), self._front)
        else:
            function(*args)

    def _take_handed(self) -> None:
        while self._handed:
            work, report = self._handed.popleft()
            work.give()
            self._push(work.clock, self._time(), report, bool)  # over once it is taken out

    def _look(self, seconds: float) -> Any:
        events = super()._look(seconds)
        self._take_handed()
        return events

    def _find_head(self) -> Any:
        self._take_handed()
        return super()._find_head()

    def _take_waiting(self) -> Any:
        self._take_handed()
        return super()._take_waiting()

    def _select_idle(self, timeout: float | None) -> Any:
        self._is_idle = True
        return super()._select_idle(timeout)

    def _release_in_turn(self) -> None:
        self._was_idle, self._is_idle, self._front = self._is_idle, False, 0
        while self._is_thread_late():
            with unwatched(), self._gate.crew.waiting_elsewhere():
                self._has_arrived.wait(LOOK_MS / 1000)
            self._has_arrived.clear()
        super()._release_in_turn()

    def _is_thread_late(self) -> bool:
        """Whether a thread has still to bring what came in this turn, and may."""
        self._take_handed()
        gate, first_here = self._gate, min((entry.clock for entry in self._entries), default=math.inf)
        late = [clock for clock in self._expected if clock < first_here and self._is_now(clock)]
        if not late or gate.is_open:
            self._patience = None
            return False
        state, is_busy = (late[0], gate.head), gate.is_thread_awaited
        is_coming = is_busy or gate.crew.is_any_waiting or not all(self._expected[each].has_started for each in late)
        if not is_coming:  # it waits for this loop
            return False
        self._patience = self._patience or Patience(state)
        if not self._patience.is_over(state, is_busy=is_busy, waiting=gate.crew.idle):
            return True
        for clock in late:  # not the recorded program: go on without
            del self._expected[clock]
        return False

    def _is_now(self, clock: int) -> bool:
        first, count = self._gate.find_turn(clock)
        noted_in = self._noted.get(first)
        return noted_in is not None and self._turn - noted_in >= count

    # ── in turn ─────────────────────────────────────────────────────────────────────────────────────

    def _let_go(self, head: Any) -> None:
        # What has come can't be cancelled any more: all of a turn has come before the first of it goes on
        self._woken = set()
        for entry in self._entries:
            future = getattr(entry.is_over, "__self__", None)
            if isinstance(future, Future) and self._gate.is_joint(head.clock, entry.clock):
                future.hold()
                self._woken.add(entry.clock)
        super()._let_go(head)

    async def wait_turn(self, clock: int, seconds: float) -> None:
        """As on asyncio; what was recorded as completed is not interrupted by a cancellation that came before."""
        future: Future = self._loop.create_future()
        future.is_shielded = True
        self._push(clock, self._time() + seconds, lambda: future.set_result(None), future.done)
        await future

    async def settle(self, clock: int) -> None:
        """Wait, in a task that was cancelled, until its call ends as it did: a call may clean up for some turns."""
        is_due = self._gate.has_come(clock) or self._is_now(clock)
        if clock < 0 or clock in self._woken or (is_due and self._gate.is_turn(clock, joint=True)):
            return
        await self.wait_turn(clock, 0)


class Future:
    """Done once; one task at most waits for it."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._task: Any = None
        self._is_done = False
        self.is_shielded = False
        """Whether cancellation waits until it is done."""

    def done(self) -> bool:
        """Whether the task goes on, or was cancelled."""
        return self._is_done

    def hold(self) -> None:
        """It is about to be done: cancellation comes too late to interrupt who waits for it."""
        if self._task is not None:
            self._task._abort_func = None

    def set_result(self, _: None) -> None:
        """Let the task go on."""
        self._is_done = True
        task, self._task = self._task, None
        if task is not None:
            self._runner.reschedule(task)

    def __await__(self) -> Generator[Any, Any, None]:
        if not self._is_done:
            self._task = trio.lowlevel.current_task()
            yield from trio.lowlevel.wait_task_rescheduled(self._abort).__await__()

    def _abort(self, raise_cancel: Any) -> Any:
        if self.is_shielded:
            return trio.lowlevel.Abort.FAILED
        self._is_done, self._task = True, None
        return trio.lowlevel.Abort.SUCCEEDED


class Deadlines(trio.abc.Instrument):
    """The deadlines of one `trio.run`: when one passes it takes a value of the run's clock.

    It is noted right before the step of the first task that it wakes up: a call completes in its task's own step, too.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._waking: dict[Any, list[Callable[[], None]]] = {}
        self._pending: list[Callable[[], None]] = []
        self._noted: set[str] = set()
        self.is_expiring = False
        """Whether trio is looking for deadlines that have passed."""
        self.is_polled = False
        """Whether somebody asks if a scope is cancelled, which looks at the clock."""
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self.handles: weakref.WeakKeyDictionary[Any, asyncio.TimerHandle] = weakref.WeakKeyDictionary()

    def passed(self, run: Run, name: str, woken: list[Any]) -> None:
        """A deadline has passed, and these tasks are woken up by it."""

        def note() -> None:
            if name not in self._noted:
                self._noted.add(name)
                run.end_timer(name)

        self._pending.append(note)
        if woken and not self._waking:
            self._runner.instruments.add_instrument(self)
        for task in woken:
            self._waking.setdefault(task, []).append(note)

    def before_task_step(self, task: Any) -> None:
        """A task is about to go on."""
        for note in self._waking.pop(task, ()):
            note()

    def settle(self) -> None:
        """Note what passed and woke nobody up; once a turn."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        for note in pending:
            note()
        self._noted.clear()
        if self._waking or self in self._runner.instruments["_all"]:
            self._waking.clear()
            with contextlib.suppress(KeyError):
                self._runner.instruments.remove_instrument(self)


def find_loop() -> TrioLoop | None:
    """What stands for the `trio.run` of the calling thread."""
    runner = getattr(GLOBAL_RUN_CONTEXT, "runner", None)
    manager = getattr(runner, "io_manager", None)
    return manager.loop if type(manager) is IOManager else None
