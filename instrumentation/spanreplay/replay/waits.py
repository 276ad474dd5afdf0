"""Gives waits of threads the end that they had when the run was recorded; see `spanreplay.waits`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spanreplay.loops import running_loop
from spanreplay.waits import DONE, Timed, split

if TYPE_CHECKING:
    from spanreplay.replay.order import OrderGate

_LOOK_S: Final = 0.005
"""How often a wait that gives a lock back looks whether it is its turn to expire."""
_MORE_S: Final = 2.0
"""How much longer than asked for a wait lasts that did not expire then: a replay may be slower."""


def wait_as_recorded(wrapped: Any, gate: OrderGate, name: str, futures: Sequence[Any], limits: tuple[Any, Any]) -> Any:
    """The futures that were done then, once they are."""
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


def expire_as_recorded(
    call: Callable[[float], Any], timed: Timed, gate: OrderGate, name: str, instance: Any, timeout: float
) -> Any:
    """Wait for what came then; where nothing did, end in the same way when it is the turn of that."""
    if gate.is_open or gate.timers is None:
        return call(timeout)
    clock = gate.timers.get(name, -1)
    if clock < 0:
        return call(timeout + _MORE_S)
    if isinstance(instance, threading.Condition):
        _give_way(instance, gate, clock, timeout)
    elif running_loop() is None:
        gate.wait_turn(clock, others_s=timeout)
    gate.complete(clock)
    if timed.raises is not None:
        raise timed.raises
    return None if timed.name == "join" else False


def _give_way(condition: threading.Condition, gate: OrderGate, clock: int, timeout: float) -> None:
    """Leave a condition's lock to others until it is the turn of a wait to expire."""
    since = time.monotonic()
    while not gate.is_quiet(clock) and time.monotonic() - since < timeout + _MORE_S:
        condition.wait(_LOOK_S)


def sleep_as_recorded(wrapped: Any, gate: OrderGate, name: str, args: Any) -> Any:
    """Go on when it is the turn of a sleep to end; a thread at work may use as much time as the sleep has."""
    clock = -1 if gate.is_open else (gate.timers or {}).get(name, -1)
    if clock < 0 or running_loop() is not None:
        return wrapped(*args)
    gate.wait_turn(clock, others_s=args[0])
    gate.complete(clock)
    return None


def read_waits(timers: Mapping[str, int] | None) -> dict[str, tuple[int, int]]:
    """Name of a wait for futures → its clock, and which of them were done, as bits."""
    found: dict[str, tuple[int, int]] = {}
    for name, clock in (timers or {}).items():
        if DONE in name:
            place, _, bits = name.rpartition("|")
            found[place + "|"] = (clock, int(bits, 16))
    return found
