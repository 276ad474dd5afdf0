"""Seam: trio. Records nothing by itself; names the lane of each task and thread call, and fixes trio's order.

Trio does not define the order of tasks that can run at once: it randomly reverses batches, and iterates over sets.
While a run is active it runs them in the order in which they were woken up, which is one of trio's permitted orders.

Deadlines correspond to asyncio's timers, and `trio.sleep` is one. In a replay they pass at their recorded place,
without waiting.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio
from trio._core import _run as core
from trio._core import _thread_cache
from trio._core._entry_queue import EntryQueue

from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.runtime.agent_patches import patch_bare
from spanreplay.runtime.context_variables import set_in_own_context
from spanreplay.runtime.lanes import current_crossing, current_lane, enter_contexts, inside_lane, label_of, peel
from spanreplay.runtime.order import loops
from spanreplay.runtime.order.lane_end import LANE_END
from spanreplay.runtime.order.loops import clock_of
from spanreplay.runtime.order.steps import FINALIZING, Outer
from spanreplay.runtime.order.trio_loop import POLLED, Clock, IOManager, TrioLoop, find_loop, loops_by_entries
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import source
from spanreplay.runtime.run import active_run
from spanreplay.seams.concurrency.asyncio_timers import hand_over
from spanreplay.seams.concurrency.worker_threads import offload

_ENTERED: Final = "|entered"
"""Marks a deadline that had passed when its scope was entered."""
_CANCEL: Final = "_cancel" if hasattr(core.CancelScope, "_cancel") else "cancel"  # until 0.31
_BY_NUMBER: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
"""Whether each batch is sorted by its tasks' creation, which Hypothesis requests when it is imported."""
_IDLE_S: Final = "IDLE_TIMEOUT"
"""How long an idle thread lives."""
_FINALIZE: Final = "finalize_in_trio_context"
_FINALIZE_ONE: Final = "_finalize_one"
"""Trio's function that closes an abandoned asynchronous generator."""
_CURRENT_TIME: Final = source("clock", "trio.current_time", family="trio")


class _Guest(threading.local):
    is_starting = False


_guest: Final = _Guest()


class _InOrder:
    """Replaces trio's `random.Random` while a run is active: the task that was woken up first runs first."""

    def __init__(self, real: random.Random) -> None:
        self._real = real

    def random(self) -> float:
        """Below a half, trio reverses a batch, which it then takes from its end."""
        return self._real.random() if active_run() is None else 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def install(module: Any, patches: Patches) -> None:
    """Patch `trio`."""
    patches.replace(core, "_r", _InOrder(core._r))
    patches.replace(core, _BY_NUMBER, 0)
    patches.wrap(core, "setup_runner", _setup_runner)
    patches.wrap(core, "start_guest_run", _start_guest_run)
    patches.replace(trio.lowlevel, "start_guest_run", core.start_guest_run)
    patches.wrap(core.Runner, "spawn_impl", _spawn)
    patches.wrap(core.CancelStatus, "recalculate", _recalculate)
    patches.wrap(trio.Event, "set", _set_event)
    _install_deadlines(patches)
    _install_threads(patches)
    real = trio.current_time
    patch_bare(patches, trio, "current_time", _CURRENT_TIME, lambda shift: real() + shift / 1e9)
    if find_loop not in loops.foreign:
        loops.foreign.append(find_loop)


# ── loops ───────────────────────────────────────────────────────────────────────────────────────────
def _start_guest_run(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Trio inside another library's loop keeps its own time: its lanes are named, its order is not kept."""
    _guest.is_starting = True
    try:
        return wrapped(*args, **kwargs)
    finally:
        _guest.is_starting = False


def _setup_runner(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    runner = wrapped(*args, **kwargs)
    run = active_run()
    if run is None or _guest.is_starting:
        return runner
    setattr(core, _BY_NUMBER, 0)  # Hypothesis may have been imported since
    loop = TrioLoop(runner)
    runner.io_manager = IOManager(runner.io_manager, loop)
    loops_by_entries[id(runner.entry_queue)] = loop
    if run.order.take_over(loop):
        runner.clock = Clock(loop)
    return runner


# ── tasks ───────────────────────────────────────────────────────────────────────────────────────────
def _spawn(wrapped: Any, runner: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    function, rest, nursery, *_ = args
    if function == runner.entry_queue.task:
        task = wrapped(*args, **kwargs)
        loop = getattr(runner.io_manager, "loop", None)
        if isinstance(loop, TrioLoop):
            loop._spanreplay_steps.queue.entry_task = task
        return task
    if run is None or nursery is None:
        return wrapped(*args, **kwargs)
    parent = current_lane(run.root_lane)
    lane = parent.child(label_of("t", peel(function, tuple(rest))[0]), current_crossing(run.root_lane))
    context = kwargs.get("context")
    if context is None and kwargs.get("system_task"):
        kwargs["context"] = context = runner.system_context.copy()
    if context is not None:
        enter_contexts([context], lane)
        if getattr(function, "__name__", "") == _FINALIZE_ONE:  # the garbage collector decides when
            context.run(set_in_own_context, FINALIZING, True)
        return wrapped(*args, **kwargs)
    with inside_lane(lane):
        return wrapped(*args, **kwargs)


def _recalculate(wrapped: Any, status: Any, args: Any, kwargs: Any) -> Any:
    """`CancelStatus.recalculate`, cancelling tasks in the order in which they were created.

    Trio iterates over sets, scope by scope; a served call does not have the scopes of its body.
    """
    if active_run() is None:
        return wrapped(*args, **kwargs)
    todo, cancelled = [status], []
    while todo:
        current = todo.pop()
        scope = current._scope
        is_above = current.parent_cancellation_is_visible_to_us
        is_cancelled = scope._cancel_called or is_above  # not `cancel_called`, which checks the clock
        if is_cancelled == current.effectively_cancelled:
            continue
        if is_above and getattr(scope, "_cancel_reason", 0) is None:
            scope._cancel_reason = current._parent._scope._cancel_reason
        current.effectively_cancelled = is_cancelled
        if is_cancelled:
            cancelled += current._tasks
        todo.extend(current._children)
    for task in sorted(cancelled, key=_creation):
        task._attempt_delivery_of_any_pending_cancel()
    return None


def _set_event(wrapped: Any, event: Any, args: Any, kwargs: Any) -> Any:
    if not event.is_set() and active_run() is not None:
        event._tasks = sorted(event._tasks, key=_creation)  # not used any more once the event is set
    return wrapped(*args, **kwargs)


def _creation(task: Any) -> int:
    return int(task._counter)


# ── deadlines ───────────────────────────────────────────────────────────────────────────────────────
def _install_deadlines(patches: Patches) -> None:
    real: Any = vars(core.CancelScope)["cancel_called"]
    cancel_args = (core.CancelReason(source="deadline"),) if hasattr(core, "CancelReason") else ()

    def fire(loop: TrioLoop, scope: Any, deadline: float) -> None:
        clock: Any = clock_of(loop)
        clock._jump(deadline)  # a task that is woken up may look at the clock
        loop.deadlines.handles.pop(scope, None)
        getattr(scope, _CANCEL)(*cancel_args)

    def cancel_called(scope: Any) -> Any:
        """In a replay a deadline passes where it passed when recorded, not when the clock says so."""
        loop = find_loop()
        clock: Any = clock_of(loop)
        if loop is not None and scope in loop.deadlines.handles:
            clock.poll(scope)
            return scope._cancel_called
        if loop is None:
            return real.fget(scope)
        before, loop.deadlines.is_polled = loop.deadlines.is_polled, True
        try:
            return real.fget(scope)
        finally:
            loop.deadlines.is_polled = before

    patches.wrap(core.CancelScope, "__enter__", _enter_scope)
    patches.wrap(core.Deadlines, "add", partial(_add_deadline, fire))
    patches.wrap(core.Deadlines, "remove", _remove_deadline)
    patches.wrap(core.Deadlines, "expire", _expire)
    patches.wrap(core.CancelScope, _CANCEL, _cancel)
    patches.replace(core.CancelScope, "cancel_called", property(cancel_called, doc=real.__doc__))


def _enter_scope(wrapped: Any, scope: Any, args: Any, kwargs: Any) -> Any:
    """A scope is entered: whether its deadline has already passed depends on timing."""
    run, loop = active_run(), find_loop()
    after, deadline = getattr(scope, "_relative_deadline", math.inf), scope._deadline
    if run is None or loop is None or min(after, deadline) in (math.inf, -math.inf) or scope._cancel_called:
        return wrapped(*args, **kwargs)
    name = loop.deadlines.name(run, scope)
    if not name:
        return wrapped(*args, **kwargs)
    return run.order.set_deadline(name + _ENTERED, _Entry(wrapped, scope, min(deadline, loop.time() + after)))


class _Entry:
    """A scope with a deadline that is being entered."""

    def __init__(self, enter: Callable[[], Any], scope: Any, moment: float) -> None:
        self._enter = enter
        self._scope = scope
        self.moment = moment

    def set(self) -> Any:
        """Enter the scope."""
        return self._enter()

    def set_at(self, moment: float) -> Any:
        """Enter the scope with another deadline."""
        scope = self._scope
        scope._deadline = moment
        if getattr(scope, "_relative_deadline", math.inf) < math.inf:  # only one of the two may be set
            scope._relative_deadline = math.inf
        try:
            return self._enter()
        finally:
            scope._deadline = self.moment

    @property
    def has_passed(self) -> bool:
        """Whether the scope has been cancelled since."""
        return bool(self._scope._cancel_called)


def _add_deadline(fire: Any, wrapped: Any, deadlines: Any, args: Any, kwargs: Any) -> Any:
    run, loop = active_run(), find_loop()
    deadline, scope = args
    if run is None or loop is None or deadline == float("-inf"):  # trio's own kind of checkpoint
        return wrapped(*args, **kwargs)
    name = loop.deadlines.name(run, scope)
    clock: Any = clock_of(loop)
    if name and clock is not None and clock.make_deadline(name, deadline, fire, scope):
        return None
    return wrapped(*args, **kwargs)


def _remove_deadline(wrapped: Any, deadlines: Any, args: Any, kwargs: Any) -> Any:
    loop = find_loop()
    handle = None if loop is None else loop.deadlines.handles.pop(args[1], None)
    if handle is None:
        return wrapped(*args, **kwargs)
    handle.cancel()
    return None


def _expire(wrapped: Any, deadlines: Any, args: Any, kwargs: Any) -> Any:
    loop = find_loop()
    if loop is None:
        return wrapped(*args, **kwargs)
    loop.deadlines.is_expiring = True
    try:
        return wrapped(*args, **kwargs)
    finally:
        loop.deadlines.is_expiring = False


def _cancel(wrapped: Any, scope: Any, args: Any, kwargs: Any) -> Any:
    run, loop = active_run(), find_loop()
    if run is None or loop is None or scope._cancel_called:
        return wrapped(*args, **kwargs)
    is_expiring = loop.deadlines.is_expiring
    is_deadline = is_expiring or loop.deadlines.is_polled
    name = loop.deadlines.names.get(scope) if is_deadline else None
    if not name:
        return wrapped(*args, **kwargs)
    run.order.pass_deadline(name if is_expiring else name + POLLED)
    loop.deadlines.is_expiring = False  # scopes that are cancelled with it have no deadline of their own
    try:
        return wrapped(*args, **kwargs)
    finally:
        loop.deadlines.is_expiring = is_expiring


# ── threads ─────────────────────────────────────────────────────────────────────────────────────────
def _install_threads(patches: Patches) -> None:
    import trio._threads

    patches.wrap(trio._threads, "to_thread_run_sync", run_in_thread)
    patches.replace(trio.to_thread, "run_sync", trio._threads.to_thread_run_sync)
    if hasattr(trio._path, "run_sync"):  # its own reference
        patches.replace(trio._path, "run_sync", trio._threads.to_thread_run_sync)
    patches.wrap(trio._threads, "_send_message_to_trio", _send_message)
    patches.wrap(EntryQueue, "run_sync_soon", _run_sync_soon)
    patches.replace(_thread_cache, _IDLE_S, float(getattr(_thread_cache, _IDLE_S)))  # set in a replay, restored
    patches.wrap(_thread_cache.ThreadCache, "start_thread_soon", _start_thread)


def run_in_thread(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`trio.to_thread.run_sync`, in a lane of its own."""
    run = active_run()
    if run is None or not args:
        return wrapped(*args, **kwargs)
    function, *rest = args
    return offload(
        run,
        function,
        tuple(rest),
        lambda work: wrapped(work, *rest, **kwargs),
        can_abandon=bool(kwargs.get("abandon_on_cancel") or kwargs.get("cancellable")),
    )


def _start_thread(wrapped: Any, cache: Any, args: Any, kwargs: Any) -> Any:
    """A reused thread of trio's cache is not a lane; in a replay each call gets its recorded thread."""
    run = active_run()
    with unnumbered_threads():
        if run is None or len(args) < 2:
            return wrapped(*args, **kwargs)
        return run.order.lend(wrapped, cache, (*args, *kwargs.values()))


def _run_sync_soon(wrapped: Any, entries: Any, args: Any, kwargs: Any) -> Any:
    """Another thread has trio run a callback, or gives it a result: when it runs is part of the order."""
    loop = loops_by_entries.get(id(entries))
    is_own = not args or type(args[0]) is Outer or getattr(args[0], "__name__", "") == _FINALIZE
    if loop is None or is_own or kwargs.get("idempotent"):
        return wrapped(*args, **kwargs)
    end = vars(threading.current_thread()).pop(LANE_END, None)
    if end is None and find_loop() is loop:
        return wrapped(*args, **kwargs)
    return hand_over(wrapped, loop, end, args, kwargs)


def _send_message(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A thread waits until trio has run a function; whoever ends that announces that the thread is about to go on."""
    run = active_run()
    if run is None or len(args) < 2:
        return wrapped(*args, **kwargs)
    message = args[1]
    key = "afn" if hasattr(message, "afn") else "fn"

    def ask(function: Any) -> Any:
        vars(message)[key] = function
        return wrapped(*args, **kwargs)

    return run.order.ask_loop(ask, getattr(message, key), is_async=key == "afn")
