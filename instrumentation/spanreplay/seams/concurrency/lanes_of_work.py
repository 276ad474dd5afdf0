"""Gives tasks, pool jobs and threads their lanes, where the agent creates them."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from typing import Any

from spanreplay.model.own_threads import STARTING, make_lock
from spanreplay.runtime.caller import caller
from spanreplay.runtime.calls import taking
from spanreplay.runtime.context_variables import is_collecting, reset_variable, set_variable
from spanreplay.runtime.lanes import (
    Carried,
    Lane,
    RootOf,
    current_crossing,
    current_lane,
    current_place,
    enter_context,
    enter_contexts,
    inside_lane,
    inside_thread,
    label_of,
    peel,
    set_lane_here,
    thread_state,
)
from spanreplay.runtime.order.lane_end import THREAD_LANE
from spanreplay.runtime.order.lane_futures import TAKES_CONTEXT, adopt_future, can_number, create_numbered, hash_lane
from spanreplay.runtime.patch_groups import PatchGroups
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.process.noted_effects import CALLBACKS
from spanreplay.runtime.run import active_run
from spanreplay.seams.concurrency import ordered_sets

_probe: contextvars.ContextVar[object] = contextvars.ContextVar("spanreplay_probe")


def install(
    patches: Patches, root_of: RootOf, carry: Callable[[Lane], Carried], groups: PatchGroups | None = None
) -> None:
    """Patch the places where concurrency is created.

    `root_of` returns the root lane of the active run, or None (then nothing happens). `carry`, called where a thread or
    a pool job is created, returns the context manager in which its work will run: the run.
    """
    groups = groups or PatchGroups(None, is_replay=True)
    groups.install("order of tasks and futures", patches, ordered_sets.install, lambda: root_of() is not None)
    groups.install("lanes of tasks", patches, _install_tasks, root_of)
    groups.install("lanes of pools", patches, _install_pools, root_of, carry)
    groups.install("workers of pools", patches, _install_workers)
    groups.install("lanes of threads", patches, _install_threads, root_of, carry)


def wrap_create_task(patches: Patches, loop_class: type, root_of: RootOf) -> None:
    """Give every task that loops of a class create a lane of its own."""

    def create_task(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
        root = root_of()
        if root is None or not args:
            return wrapped(*args, **kwargs)
        parent, crossing = current_place(root)
        lane = parent.child(label_of("t", args[0]), crossing)
        lane_hash, context = hash_lane(lane.number, lane.path), kwargs.get("context")
        if context is None and is_collecting():  # a client that closes itself when it is freed
            context = contextvars.copy_context()
            wrapped, args = context.run, (wrapped, *args)
        if context is not None:
            if not enter_context(context, lane) and _is_of_callback(context):
                set_lane_here(lane)
            task = create_numbered(loop, lane_hash, wrapped, args, kwargs)
        elif TAKES_CONTEXT and can_number(loop):  # the lane needs no variable set and reset around its creation
            context = contextvars.copy_context()
            enter_context(context, lane)
            task = create_numbered(loop, lane_hash, wrapped, args, kwargs, context)
        else:
            with inside_lane(lane):
                task = create_numbered(loop, lane_hash, wrapped, args, kwargs)
        taking.follow(task)
        return task

    patches.wrap(loop_class, "create_task", create_task)


def _is_of_callback(context: contextvars.Context) -> bool:
    """Whether a loop's callback runs in this Context, and hands it to the task that it makes.

    Frameworks hand over work in a copy of its Context (`call_soon(…, context=copy)`), of which the task is the only
    other user. Code of a task has its own lane there.
    """
    run = active_run()
    if run is None or not run.resolver.has(CALLBACKS):
        return False
    probe = object()
    token = set_variable(_probe, probe)
    is_here = context.get(_probe) is probe
    reset_variable(_probe, token)
    return is_here and asyncio.current_task() is None


def _install_tasks(patches: Patches, root_of: RootOf) -> None:
    import asyncio.base_events
    import asyncio.tasks

    def as_completed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        # asyncio puts the coroutines into a set and makes tasks of them in the order of their addresses
        loop = asyncio._get_running_loop()
        if root_of() is None or loop is None or not args:
            return wrapped(*args, **kwargs)
        work = [loop.create_task(w) if asyncio.iscoroutine(w) else w for w in dict.fromkeys(args[0])]
        return wrapped(work, *args[1:], **kwargs)

    patches.wrap(asyncio.tasks, "as_completed", as_completed)
    patches.replace(asyncio, "as_completed", asyncio.tasks.as_completed)
    wrap_create_task(patches, asyncio.base_events.BaseEventLoop, root_of)


def _install_workers(patches: Patches) -> None:
    from spanreplay.runtime.order import pool_workers  # which builds on lanes

    pool_workers.install(patches)


def _install_pools(patches: Patches, root_of: RootOf, carry: Callable[[Lane], Carried]) -> None:
    import concurrent.futures

    from spanreplay.runtime.order import pool_workers  # which builds on lanes

    require(concurrent.futures.Future(), "_condition", "_state", "_invoke_callbacks")

    def submit(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
        root = root_of()
        if root is None or not args:
            return wrapped(*args, **kwargs)
        function, *rest = args
        parent = current_lane(root)
        work, contexts = peel(function, tuple(rest))
        lane = parent.child(label_of("x", work), current_crossing(root))
        enter_contexts(contexts, lane)
        carried = carry(lane)
        by, is_background = caller.who_hands(sys._getframe(1)), caller.handed.is_background
        adopting = make_lock()

        def run(*a: Any, **k: Any) -> Any:
            with inside_thread(parent, lane, by=by, is_background=is_background), carried:
                try:
                    pool_workers.begin_job(lane)
                    return function(*a, **k)
                finally:
                    with adopting:  # the future must be ours before it ends
                        pass

        caller.enters_thread(run.__code__)

        before = STARTING.is_unnumbered, thread_state.submitted
        STARTING.is_unnumbered = True  # a worker thread that is spawned now must not take a lane number
        thread_state.submitted = lane
        try:
            with adopting:
                future = wrapped(run, *rest, **kwargs)
                carried.ends_lane = not adopt_future(future, hash_lane(lane.number, lane.path), carried.end_of(lane))
        finally:
            STARTING.is_unnumbered, thread_state.submitted = before
        taking.follow(future)
        return future

    patches.wrap(concurrent.futures.ThreadPoolExecutor, "submit", submit)


def _install_threads(patches: Patches, root_of: RootOf, carry: Callable[[Lane], Carried]) -> None:
    def start(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
        root = root_of()
        if root is None or STARTING.is_unnumbered or thread.ident is not None:
            return wrapped(*args, **kwargs)
        target = getattr(thread, "_target", None)
        work, contexts = peel(target, getattr(thread, "_args", ())) if target is not None else (type(thread), [])
        parent = current_lane(root)
        lane = parent.child(label_of("th", work), current_crossing(root))
        enter_contexts(contexts, lane)
        carried = carry(lane)
        by = caller.who_hands(sys._getframe(1))
        is_background = caller.runs_in_background(sys._getframe(1), work)
        body = thread.run

        def run() -> None:
            thread.__dict__.pop("run", None)
            with inside_thread(parent, lane, by=by, is_background=is_background), carried:
                body()

        caller.enters_thread(run.__code__)

        thread.run = run
        vars(thread)[THREAD_LANE] = lane.path
        return wrapped(*args, **kwargs)

    patches.wrap(threading.Thread, "start", start)
