"""Tells the order gate which threads are at work, and cuts sleeps short.

A thread that waits for a condition (a future's result, an event, a queue) can't react to anything else, so the next
result may go out.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import threading
import time
from typing import Any, Final

from spanreplay._patch import Patches
from spanreplay.lane_order import when_told
from spanreplay.replay.order import SERVICE, OrderGate

SLEEP_FACTOR: Final = 0.01
SLEEP_S_MAX: Final = 0.1
_PROCESS_POOLS: Final = "concurrent.futures.process"
_POOL_WORKER: Final = getattr(concurrent.futures.thread, "_worker", None)


def _is_endless(args: Any, kwargs: Any) -> bool:
    """Whether a thread that the process waits for waits without a limit."""
    timeout = args[0] if args else kwargs.get("timeout")
    return timeout is None and not threading.current_thread().daemon


def install(gate: OrderGate, patches: Patches) -> None:
    """Count pool calls and threads from the moment they are asked for until they are done."""

    def submit(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
        gate.thread_started()
        try:
            future = wrapped(*args, **kwargs)
        except BaseException:
            gate.thread_ended()
            raise
        when_told(future, gate.thread_ended)
        return future

    def start(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
        is_pool = getattr(thread, "_target", None) is _POOL_WORKER or type(thread).__module__ == _PROCESS_POOLS
        if is_pool or thread.daemon or hasattr(thread, SERVICE):
            return wrapped(*args, **kwargs)  # a pool's calls are counted; background helpers never end
        body = thread.run

        def run() -> None:
            try:
                body()
            finally:
                gate.thread_ended()

        thread.run = run
        gate.thread_started()
        try:
            return wrapped(*args, **kwargs)
        except BaseException:
            gate.thread_ended()
            raise

    def sleep(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seconds = args[0] if args else 0
        if gate.is_live or not isinstance(seconds, (int, float)) or seconds < 0:
            return wrapped(*args, **kwargs)  # which raises
        return wrapped(min(seconds * SLEEP_FACTOR, SLEEP_S_MAX))

    def wait(wrapped: Any, condition: Any, args: Any, kwargs: Any) -> Any:
        if gate.owns(condition):
            return wrapped(*args, **kwargs)
        with gate.waiting_elsewhere():
            if not _is_endless(args, kwargs):
                return wrapped(*args, **kwargs)
            # The lock is held between two waits: nobody can tell us anything then
            gate.wait_long(lambda seconds: bool(wrapped(seconds)))
            return True

    def join(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
        with gate.waiting_elsewhere():
            if not _is_endless(args, kwargs) or thread.ident is None or thread is threading.current_thread():
                return wrapped(*args, **kwargs)
            gate.wait_long(lambda seconds: wrapped(seconds) is None and not thread.is_alive())
            return None

    patches.wrap(threading.Condition, "wait", wait)
    patches.wrap(threading.Thread, "join", join)
    patches.wrap(concurrent.futures.ThreadPoolExecutor, "submit", submit)
    patches.wrap(threading.Thread, "start", start)
    patches.wrap(time, "sleep", sleep)
