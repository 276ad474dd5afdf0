"""Ends the waits of threads as they ended when the run was recorded; see `wait_ends.py`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from spanreplay.runtime.calls.turns import complete
from spanreplay.runtime.order.alarms import sleep_with_alarm
from spanreplay.runtime.order.loops import running_loop
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.wait_ends import CANCELLED, DONE, FAILED, Timed, asked, split, unwatched

PENDING: Final = "PENDING"
"""State of a future that has not begun."""
_LOOK_S: Final = 0.005
"""How often a wait that releases a lock checks whether it is its turn to expire."""
_MORE_S: Final = 2.0
"""How much longer than requested a wait lasts if it did not expire when recorded, extended again as long as results go
out meanwhile: a replay may be slower.
"""


def wait_as_recorded(wrapped: Any, gate: Order, name: str, futures: Sequence[Any], limits: tuple[Any, Any]) -> Any:
    """Return the futures that were done when recorded, once they are."""
    found = None if gate.is_open else gate.waits.get(name)
    if found is None:
        return wrapped(futures, *limits)
    clock, bits = found
    done = [bool(bits >> at & 1) for at in range(len(futures))]
    if any(done):
        wrapped([each for each, is_done in zip(futures, done, strict=True) if is_done])
    if running_loop() is None:
        gate.wait_turn(clock)
    gate.complete(clock)
    return split(futures, done)


def take_as_recorded(wrapped: Any, gate: Order, name: str, fs: Any, timeout: float) -> Iterator[Any]:
    """Yield as many futures as came in time when recorded, then raise the same exception if others did not."""
    fs = set(fs)
    clock, count = (-1, len(fs)) if gate.is_open else gate.waits.get(name, (-1, len(fs)))
    left, futures = set(fs), wrapped(fs, _longer(timeout))
    head = gate.head
    while len(fs) - len(left) < count:
        try:
            with unwatched():
                found = [next(futures)]
        except StopIteration:
            return
        except concurrent.futures.TimeoutError:
            if gate.head == head:
                raise
            head, futures = gate.head, wrapped(left, _longer(timeout))
            continue
        left.discard(found[0])
        yield found.pop()  # don't keep it alive
    if clock >= 0:
        if running_loop() is None:
            gate.wait_turn(clock)
        gate.complete(clock)
        raise concurrent.futures.TimeoutError(f"{len(fs) - count} (of {len(fs)}) futures unfinished")


def cancel_as_recorded(cancel: Callable[[], bool], gate: Order, name: str, future: Any) -> bool:
    """Cancel a future before it begins if it had not begun when recorded, otherwise after it has begun."""
    found = None if gate.is_open else gate.waits.get(name)
    if found is None:
        return cancel()
    clock, is_cancelled = found
    if not is_cancelled:
        gate.wait_until(lambda: future._state != PENDING)
    if running_loop() is None:
        gate.wait_turn(clock)
    try:
        return cancel()
    finally:
        gate.complete(clock)


def cancel_rest(future: Any) -> None:
    """Cancel a future of a pool that was shut down, in the thread that took it too early."""
    with asked():
        future.cancel()


def cancel_queued(gate: Order, pool: Any) -> None:
    """Cancel the jobs left in a pool that is shut down, once its threads have taken those of the recorded run."""
    if gate.is_open:
        return
    items, waiting = pool._work_queue, []
    gate.shut(pool._threads)
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.append(items.get_nowait())
    to_cancel = [item for item in waiting if item is not None and _lane_of(item.future) in gate.cancelled]
    to_run = [item for item in waiting if item not in to_cancel]
    for item in to_run:
        items.put(item)
    gate.wait_until(lambda: all(item is None or item.future._state != PENDING for item in to_run))
    for item in to_cancel:
        cancel_rest(item.future)


def _lane_of(future: Any) -> str:
    end = getattr(future, "_spanreplay_lane", None)
    return "" if end is None else str(end.lane)


def _longer(timeout: Any) -> Any:
    return max(timeout, 0) + _MORE_S if isinstance(timeout, (int, float)) else timeout


def _wait_while_results_come(
    call: Callable[[float], Any], timed: Timed, gate: Order, instance: Any, timeout: float
) -> Any:
    while True:
        head = gate.head
        try:
            result = call(_longer(timeout))
        except BaseException as exc:
            if gate.head == head or not timed.is_expiry(instance, exc):
                raise
        else:
            if gate.head == head or not timed.has_expired(instance, result):
                return result


def expire_as_recorded(
    call: Callable[[float], Any], timed: Timed, gate: Order, name: str, instance: Any, timeout: float
) -> Any:
    """Wait for what came when recorded; if nothing came, expire in the same way at the recorded turn."""
    if gate.is_open or gate.timers is None:
        return call(timeout)
    clock = gate.timers.get(name, -1)
    if clock < 0:
        return _wait_while_results_come(call, timed, gate, instance, timeout)
    if isinstance(instance, threading.Condition):
        _give_way(instance, gate, clock, timeout)
    elif running_loop() is None:
        gate.wait_turn(clock, others_s=max(timeout, 0))
    gate.complete(clock)
    if timed.raises is not None:
        raise timed.raises
    return None if timed.name == "join" else False


def attempt_as_recorded(
    attempt: Callable[[float], bool], gate: Order, name: str, wait: Callable[[], None], timeout: float
) -> bool:
    """Acquire a lock after `wait` if that succeeded when recorded; otherwise fail at the recorded turn.

    An attempt that the recording doesn't contain may fail too, a little later than requested.
    """
    clock = -1 if gate.is_open else (gate.timers or {}).get(name, -1)
    if clock >= 0:
        gate.wait_turn(clock)
        gate.complete(clock)
        return False
    wait()
    with gate.census.waiting_elsewhere():
        return attempt(_longer(timeout))


def meet_as_recorded(meet: Callable[[float | None], bool], gate: Order, name: str, limit: float | None) -> bool:
    """Meet another process when it is this meeting's turn, or fail then if it failed when recorded.

    The next event doesn't need a reaction to this one: the order itself contains who meets whom.
    """
    if gate.is_open or gate.timers is None:
        return meet(limit)
    is_failure = name + FAILED in gate.timers
    clock = await_meeting_as_recorded(gate, name)
    try:
        return not is_failure and meet(limit if limit is None else _longer(limit))
    finally:
        if clock >= 0:
            gate.complete(clock)


def await_meeting_as_recorded(gate: Order, name: str) -> int:
    """Wait for the turn of a meeting of processes, or of its failure; return its clock, -1 if unknown."""
    timers = {} if gate.is_open or gate.timers is None else gate.timers
    clock = timers.get(name, timers.get(name + FAILED, -1))
    if clock >= 0 and running_loop() is None:
        gate.wait_turn(clock, others_s=0)
    return clock


def find_ready_as_recorded(
    wait: Callable[[list[Any], float | None], list[Any]], gate: Order, name: str, objects: list[Any], limit: Any
) -> list[Any]:
    """Return the pipes and processes that were ready when recorded, once they are."""
    found = None if gate.is_open else gate.waits.get(name)
    if found is None:
        return wait(objects, limit)
    clock, bits = found
    ready = [each for at, each in enumerate(objects) if bits >> at & 1]
    left = ready
    while left:
        come = wait(left, None)
        left = [each for each in left if not any(each is other for other in come)]
    if running_loop() is None:
        gate.wait_turn(clock, others_s=0)
    gate.complete(clock)
    return ready


def _give_way(condition: threading.Condition, gate: Order, clock: int, timeout: float) -> None:
    """Release a condition's lock to others until it is the turn of a wait to expire."""
    since = time.monotonic()
    while not gate.is_quiet(clock) and time.monotonic() - since < timeout + _MORE_S:
        condition.wait(_LOOK_S)


def sleep_as_recorded(wrapped: Any, gate: Order, name: str, args: Any) -> Any:
    """Return when it is the turn of a sleep to end; a working thread may use as much time as the sleep has."""
    clock = -1 if gate.is_open else (gate.timers or {}).get(name, -1)
    if clock < 0 and running_loop() is not None:
        return wrapped(*args)
    if clock < 0:
        with gate.census.waiting_elsewhere():
            return wrapped(*args)

    def sleep() -> None:
        with unwatched():
            gate.wait_turn(clock, others_s=args[0])
        complete(gate, clock)

    return sleep_with_alarm(args[0], sleep)


def read_waits(timers: Mapping[str, int] | None) -> dict[str, tuple[int, int]]:
    """Map the name of each wait for futures to its clock and to those that were done, as bits."""
    found: dict[str, tuple[int, int]] = {}
    for name, clock in (timers or {}).items():
        if DONE in name:
            place, _, bits = name.rpartition("|")
            found[place + "|"] = (clock, int(bits, 16))
    return found


def find_cancelled(waits: Mapping[str, tuple[int, int]]) -> frozenset[str]:
    """Lanes of futures that were cancelled before they began."""
    return frozenset(name.partition(CANCELLED)[0] for name, (_, bits) in waits.items() if bits and CANCELLED in name)


def ending_with(end: Callable[[], None], function: Any, *, is_async: bool) -> Any:
    """A function that says when it ends: the thread that waits for its result is about to go on."""

    async def work_async(*given: Any) -> Any:
        try:
            return await function(*given)
        finally:
            end()

    def work(*given: Any) -> Any:
        try:
            return function(*given)
        finally:
            end()

    return work_async if is_async else work
