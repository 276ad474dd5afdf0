"""Turns: waiting until a served result may go out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import CallRecord, Outcome
from spanreplay.runtime.lanes import inside_call
from spanreplay.runtime.order.alarms import armed, pass_time
from spanreplay.runtime.order.hubs import running_hub
from spanreplay.runtime.order.loops import clock_of_running_loop, running_loop

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing
    from spanreplay.runtime.order.order import Order

_CANCELLED: Final = Outcome.CANCELLED.value
RESPONSE = 0
"""Part of a stream: its response; chunk n is part n + 1."""
WHOLE = -1
"""The call as a whole."""
END = -2
"""The end of a stream's body: its last part, which is the last chunk if both came in one read."""


def _clock(recorded: CallRecord, part: int) -> int:
    if part == WHOLE:
        return recorded.end_seq
    if part == END:
        return recorded.clocks[-1] if recorded.clocks else -1
    return recorded.clocks[part] if part < len(recorded.clocks) else -1


def complete(gate: Order, *clocks: int) -> None:
    """Note that these completions have gone out, in this iteration of the loop if one runs here."""
    loop_clock = clock_of_running_loop()
    if loop_clock is not None:
        for clock in clocks:
            loop_clock.note(clock)
    gate.complete(*clocks)


def begin(gate: Order, clock: int) -> None:
    """Note that a call that began at this clock has been served: others may be counted from there."""
    if clock in gate.steps.behind:
        loop_clock = clock_of_running_loop()
        if loop_clock is not None:
            loop_clock.note(clock)


def wait_turn(crossing: Crossing, part: int = WHOLE) -> None:
    """Block until a served result may go out; return immediately in a thread that runs an event loop."""
    recorded = crossing.served
    if recorded is None or crossing.is_reused:
        return
    if part >= RESPONSE:
        crossing.answers.read_part(crossing, part)
    clock, gate = _clock(recorded, part), crossing.answers.gate
    if recorded.outcome == _CANCELLED and (part == WHOLE or clock < 0) and (hub := running_hub()) is not None:
        _wait_for_throw(crossing, recorded, hub)
    gate.sent.send_in(recorded, clock)
    if running_loop() is None:
        gate.wait_turn(clock)
        if part == WHOLE and armed()[0]:
            pass_time(recorded)
    complete(gate, clock)


def _wait_for_throw(crossing: Crossing, recorded: CallRecord, hub: Any) -> None:
    """Give way until the program ends a greenlet's call as it did when recorded: by `kill` or a timeout.

    Raises: the thrown exception; ReplayMiss if there is none.
    """
    gate = crossing.answers.gate
    if gate.is_open:
        return
    try:
        with inside_call(crossing):
            gate.greenlets.wait_for_throw(hub)
    finally:
        complete(gate, *recorded.clocks, recorded.end_seq)
    raise crossing.answers.stall(crossing)


async def await_turn(crossing: Crossing, part: int = WHOLE, ms: int | None = None) -> None:
    """Suspend until a served result may go out, `ms` on the loop's clock after the call (default: as recorded)."""
    recorded = crossing.served
    if recorded is None:
        return
    if crossing.is_reused:
        if part == WHOLE and asyncio._get_running_loop() is not None:
            await asyncio.sleep(0)  # as for an answer from the network, other tasks may go first
        return
    if part >= RESPONSE:
        crossing.answers.read_part(crossing, part)
    await await_clock(crossing, _clock(recorded, part), ms)


async def await_clock(crossing: Crossing, clock: int, ms: int | None = None) -> None:
    """Suspend until it is the turn of a completion of this call, `ms` after the call."""
    recorded = crossing.served
    if recorded is None:
        return
    loop_clock, gate = clock_of_running_loop(), crossing.answers.gate
    try:
        if loop_clock is not None and clock >= 0 and clock not in gate.steps.at_once:
            seconds = (recorded.end_ns - recorded.start_ns) / 1e9 if ms is None else ms / 1e3
            with inside_call(crossing):
                await loop_clock.wait_turn(clock, max(0.0, seconds - loop_clock.since(crossing)))
        gate.sent.send_in(recorded, clock)
    finally:
        complete(gate, clock)


def wait_item(crossing: Crossing, number: int) -> None:
    """Block until an item of a served generator may go out; return immediately in a thread that runs an event loop."""
    if crossing.served is not None:
        clock, gate = _clock(crossing.served, number), crossing.answers.gate
        if running_loop() is None:
            gate.wait_turn(clock)
        complete(gate, clock)


async def await_item(crossing: Crossing, number: int) -> None:
    """Suspend until an item of a served generator may go out."""
    if crossing.served is not None:
        await await_clock(crossing, _clock(crossing.served, number), 0)


def end_stream(crossing: Crossing) -> None:
    """End a served stream, read to its end or not: its remaining parts block nobody."""
    recorded = crossing.served
    if recorded is not None and not crossing.is_reused:
        complete(crossing.answers.gate, *recorded.clocks, recorded.end_seq)
