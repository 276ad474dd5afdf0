"""Seam: anyio, on asyncio and on trio. Records nothing; names the lanes of tasks and of worker thread calls.

Its tasks are those of the underlying loop; they are named after the function they run, not after anyio's wrappers. Its
worker threads are reused: on asyncio the lane follows the call here, on trio in trio's own seam.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from wrapt import FunctionWrapper

from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.runtime import lanes
from spanreplay.runtime.order.counted import SERVICE
from spanreplay.runtime.order.steps import Retry
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.runtime.timer_names import guarded_name
from spanreplay.seams.concurrency.worker_threads import offload


def install(module: Any, patches: Patches) -> None:
    """Patch one of anyio's backends."""
    lanes.wrapped_work.update(
        {
            "TaskHandle._run_coro": _of_handle,
            "TaskGroup._run_wrapped_task": lambda coroutine: coroutine.cr_frame.f_locals["coro"],
            "TaskGroup.start.<locals>.run_coro_with_task_status": _in_closure,
            "TrioBackend.run_sync_in_worker_thread.<locals>.wrapper": _in_closure,
        }
    )
    if module.__name__.endswith("_trio"):
        if not isinstance(module.run_sync, FunctionWrapper):  # imported from trio before that was patched
            from spanreplay.seams.concurrency.trio import run_in_thread

            patches.wrap(module, "run_sync", run_in_thread)
        return
    patches.replace(module.CancelScope, "_deliver_cancellation", _Delivery(module.CancelScope._deliver_cancellation))
    patches.wrap(module.CancelScope, "_timeout", _time_out)
    patches.wrap(module.WorkerThread, "start", _start_worker)
    patches.wrap(module.AsyncIOBackend, "run_sync_in_worker_thread", _in_worker)


class _Delivery:
    """Replaces the method that cancels a scope's tasks, and that reschedules itself until they have ended.

    How often it does so depends on the tasks' clean-up, which does not happen in a replay.
    """

    def __init__(self, deliver: Callable[..., Any]) -> None:
        self._deliver = deliver

    def __get__(self, scope: Any, owner: Any = None) -> Any:
        return self._deliver if scope is None else Retry(partial(self._deliver, scope))


def _time_out(wrapped: Any, scope: Any, args: Any, kwargs: Any) -> Any:
    """A scope is entered or gets a deadline; if the deadline has already passed, the scope is cancelled immediately."""
    run = active_run()
    is_entered = run is not None and scope._timeout_handle is None and scope._deadline != math.inf
    name = guarded_name(run, scope.__class__) if run is not None and is_entered else ""
    return (
        wrapped(*args, **kwargs) if run is None or not name else run.order.set_deadline(name, _Deadline(wrapped, scope))
    )


class _Deadline:
    """The deadline of a scope."""

    def __init__(self, time_out: Callable[[], Any], scope: Any) -> None:
        self._time_out = time_out
        self._scope = scope
        self.moment: float = scope._deadline

    def set(self) -> Any:
        """Cancel the scope if its deadline has passed, or set a timer."""
        return self._time_out()

    def set_at(self, moment: float) -> Any:
        """Like `set`, with another deadline."""
        self._scope._deadline = moment
        try:
            return self._time_out()
        finally:
            self._scope._deadline = self.moment

    @property
    def has_passed(self) -> bool:
        """Whether the scope has been cancelled since."""
        return bool(self._scope.cancel_called)


def _of_handle(work: Any) -> Any:
    """The coroutine of a task's handle: `work` is its bound method, or the coroutine of that."""
    handle = getattr(work, "__self__", None) or work.cr_frame.f_locals["self"]
    return handle._coro


def _in_closure(work: Any) -> Any:
    cells = dict(zip(work.__code__.co_freevars, work.__closure__ or (), strict=True))
    return cells["func"].cell_contents


def _start_worker(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
    setattr(thread, SERVICE, True)
    run = active_run()
    if run is not None:
        run.order.bind(thread)
    with unnumbered_threads():
        return wrapped(*args, **kwargs)


def _in_worker(wrapped: Any, backend: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or len(args) < 2:
        return wrapped(*args, **kwargs)
    function, given, *rest = args
    run.order.keep_idle(sys.modules[backend.__module__])
    return offload(
        run,
        function,
        given,
        lambda work: wrapped(work, given, *rest, **kwargs),
        can_abandon=bool(rest[0] if rest else kwargs.get("abandon_on_cancel", kwargs.get("cancellable"))),
    )
