"""What only a replay does to pools of processes: a queue for each worker, results in the recorded order.

Which worker takes which item depends on timing, and decides the contents of its modules' globals: a recording keeps it
(`process_pools.py`), and a replay gives each worker a queue of its own (`replayer/schedule/process_queues.py`). Results
of a pool arrive in the recorded order: a worker holds its result back until the one before it has arrived.

These patches are installed before those of the seam, so they are called inside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.replayer.schedule.process_queues import MADE, expect, hire_as_recorded, route_executor, route_pool
from spanreplay.replayer.schedule.senders import InTurn, finish_sending, send_in_turn
from spanreplay.runtime.order.pool_items import JOIN_TOKEN, STAFF, Work, here
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.processes import JoinToken
from spanreplay.runtime.run import Run, active_run


def install(module: Any, patches: Patches) -> None:
    """Patch `concurrent.futures.process`, `multiprocessing.pool` or `multiprocessing.process`."""
    if module.__name__ == "multiprocessing.process":
        patches.wrap(module.BaseProcess, "_bootstrap", _bootstrap)
    elif module.__name__ == "multiprocessing.pool":
        patches.wrap(module.Pool, "_setup_queues", _set_up_queues)
        patches.wrap(module.Pool, "_terminate_pool", _terminate_pool)
    else:
        patches.wrap(module._SafeQueue, "__init__", _make_queue)
        patches.wrap(module.ProcessPoolExecutor, "__init__", _make_executor)
        patches.wrap(module.ProcessPoolExecutor, "submit", _submit)
        patches.wrap(module.ProcessPoolExecutor, "_adjust_process_count", _adjust)
        patches.wrap(module, "_sendback_result", _send_back)


# ── in the process that has the pool ────────────────────────────────────────────────────────────────
def _make_queue(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> None:
    vars(queue)[MADE] = (args, kwargs)
    wrapped(*args, **kwargs)


def _make_executor(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    run = active_run()
    if run is not None:
        guard.guarded("a pool of processes", route_executor, run, pool)


def _set_up_queues(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    run = active_run()
    if run is not None and hasattr(pool._inqueue, "_writer"):  # a ThreadPool's has none
        guard.guarded("a pool of processes", route_pool, run, pool)


def _submit(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    if args and type(args[0]) is Work:
        expect(pool, args[0].lane)
    return wrapped(*args, **kwargs)


def _adjust(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is not None and hire_as_recorded(pool):
        return None
    return wrapped(*args, **kwargs)


def _terminate_pool(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Let the workers get as far as when recorded before the pool empties their queues and ends them."""
    run, staff = active_run(), getattr(args[1], STAFF, None)
    if run is not None and staff is not None:
        answers = run.resolver.answers
        guard.guarded("the end of a pool", answers.ended_workers.wait_made, staff.lane, answers.gate)
    return wrapped(*args, **kwargs)


# ── in a worker ─────────────────────────────────────────────────────────────────────────────────────
def _bootstrap(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    run, join_token = active_run(), process.__dict__.get(JOIN_TOKEN)
    if run is None or join_token is None:
        return wrapped(*args, **kwargs)
    if join_token.is_worker:
        guard.guarded("the start of a worker", _prepare_worker, run, process, join_token)
    try:
        return wrapped(*args, **kwargs)
    finally:
        finish_sending()


def _prepare_worker(run: Run, process: Any, join_token: JoinToken) -> None:
    has_missed = run.process_group is not None and run.process_group.has_missed
    process.run = _nothing if has_missed else _telling_of_misses(run, process.run)
    if here.is_of_pool:
        queue, results, *rest = process._args
        process._args = (queue, InTurn(results, run.resolver.answers.gate, here.take_lane), *rest)


def _nothing() -> None:
    """Replaces a worker's work: an earlier worker has ended at a call without an answer, and so would this one."""


def _telling_of_misses(run: Run, work: Callable[[], None]) -> Callable[[], None]:
    """A pool worker's function that reports if it ends at a call without an answer, outside an item.

    Otherwise the pool would start another one in its place, and so on forever.
    """

    def tell() -> None:
        try:
            work()
        except ReplayMiss:
            if run.process_group is not None:
                run.process_group.state_missed()
            raise

    return tell


def _send_back(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run, lane = active_run(), here.take_lane()
    if run is None or not lane:
        return wrapped(*args, **kwargs)
    return send_in_turn(run.resolver.answers.gate, lane, wrapped, args, kwargs)
