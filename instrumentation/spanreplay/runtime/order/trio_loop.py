"""One `trio.run`, in the shape of an asyncio loop, which the rest of spanreplay knows.

Little is needed of a loop: a selector that is called once per iteration, the ready tasks, a clock, and futures to wait
for. The code that counts steps, releases results and jumps over time for asyncio does the same here (`steps`,
`replayer.schedule.step_clock`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from spanreplay.runtime.order.counted import nothing
from spanreplay.runtime.order.loops import clock_of
from spanreplay.runtime.order.steps import Outer
from spanreplay.runtime.order.trio_steps import TrioSteps
from spanreplay.runtime.timer_names import guarded_name

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

POLLED: Final = "|polled"
"""Marks a deadline that the program noticed before trio did."""
_FOREVER_S: Final = 24 * 60 * 60
"""The timeout that trio uses if no deadline is set."""
_MOMENT_S: Final = 1e-9
"""More than zero: there is nothing to do."""


class TrioLoop:
    """Stands for one `trio.run`. Used by the thread that runs it, except for `call_soon_threadsafe`."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._selector = _Selector(runner.io_manager)
        self._ready = _Ready()
        self._clock = runner.clock
        self._spanreplay_steps = TrioSteps(runner, self._selector)
        self.deadlines = Deadlines()
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
        """A future that one task can wait for."""
        return Future(self._runner)

    def call_soon_threadsafe(self, callback: Callable[[], Any]) -> None:
        """Wake the loop up and run a callback there. Raises: RuntimeError after its end."""
        self._runner.entry_queue.run_sync_soon(callback if type(callback) is Outer else Outer(callback))

    def call_later(self, seconds: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """In a replay, run a callback when nothing else can happen any more."""
        handle = asyncio.TimerHandle(self.time() + seconds, callback, list(args), self)  # type: ignore[arg-type]  # stands for one
        clock = clock_of(self)
        if clock is not None:
            clock.keep_unfired(handle)
        return handle

    def call(self, handle: asyncio.Handle) -> None:
        """Run a callback that another thread handed over, as trio's own entry task would."""
        has_task = hasattr(GLOBAL_RUN_CONTEXT, "task")
        if not has_task:
            GLOBAL_RUN_CONTEXT.task = self._spanreplay_steps.queue.entry_task
        try:
            handle._run()
        finally:
            if not has_task:
                del GLOBAL_RUN_CONTEXT.task

    def take_queue(self) -> None:
        """From now on, have trio ask for the next task before each step."""
        self._spanreplay_steps.queue.extend(self._runner.runq)
        self._runner.runq = self._spanreplay_steps.queue

    def is_closed(self) -> bool:
        """Whether trio has ended."""
        return bool(self._runner.entry_queue.done)

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
    """Stands for asyncio's ready queue; trio has none, so an appended handle runs immediately."""

    def __len__(self) -> int:
        return 0

    def append(self, handle: asyncio.TimerHandle) -> None:
        handle._run()


class IOManager:
    """Trio's own I/O manager, except that it waits through the loop's selector."""

    def __init__(self, inner: Any, loop: TrioLoop) -> None:
        self._inner = inner
        self.loop = loop

    def get_events(self, timeout: float) -> Any:
        """The events that came within `timeout` seconds."""
        if timeout == 0 and self.loop.is_about_to_jump:
            timeout = _MOMENT_S
        return self.loop._selector.select(None if timeout >= _FOREVER_S else timeout)

    def close(self) -> None:
        """Trio has ended."""
        self.loop.release()
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Clock(trio.abc.Clock):
    """The loop's time as a trio clock; in a replay it jumps."""

    def __init__(self, loop: TrioLoop) -> None:
        self._loop = loop

    def start_clock(self) -> None:
        """No-op."""

    def current_time(self) -> float:
        """Seconds on the loop's clock."""
        return self._loop.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds until a deadline."""
        return deadline - self._loop.time()


class Future:
    """A future that is done once; at most one task waits for it."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.task: Any = None
        """The task that waits for it, or has."""
        self._is_done = False
        self.is_shielded = False
        """Whether cancellation waits until it is done."""

    def done(self) -> bool:
        """Whether the task goes on, or was cancelled."""
        return self._is_done

    @property
    def is_over(self) -> bool:
        """Whether the task goes on, or was cancelled."""
        return self._is_done

    def set_result(self, _: None) -> None:
        """Let the task go on."""
        self._is_done = True
        if self.task is not None:
            self._runner.reschedule(self.task)

    def __await__(self) -> Generator[Any, Any, None]:
        if not self._is_done:
            self.task = trio.lowlevel.current_task()
            yield from trio.lowlevel.wait_task_rescheduled(self._abort).__await__()

    def _abort(self, raise_cancel: Any) -> Any:
        if self.is_shielded:
            return trio.lowlevel.Abort.FAILED
        self._is_done = True
        return trio.lowlevel.Abort.SUCCEEDED


class Deadlines:
    """The deadlines of one `trio.run`."""

    def __init__(self) -> None:
        self.is_expiring = False
        """Whether trio is looking for deadlines that have passed."""
        self.is_polled = False
        """Whether the program asks if a scope is cancelled, which checks the clock."""
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self.handles: weakref.WeakKeyDictionary[Any, asyncio.TimerHandle] = weakref.WeakKeyDictionary()

    def name(self, run: Run, scope: Any) -> str:
        """The name of a scope's deadline; '' if it is not the agent's."""
        name = self.names.get(scope)
        if name is None:
            name = self.names[scope] = guarded_name(run, type(scope))
        return name


loops_by_entries: Final[weakref.WeakValueDictionary[int, TrioLoop]] = weakref.WeakValueDictionary()
"""Identity of trio's queue of requests from other threads → its loop, which keeps it alive."""


def find_loop() -> TrioLoop | None:
    """The stand-in for the `trio.run` of the calling thread; None without one."""
    runner = getattr(GLOBAL_RUN_CONTEXT, "runner", None)
    manager = getattr(runner, "io_manager", None)
    return manager.loop if type(manager) is IOManager else None
