"""Calls that were cancelled when they were recorded: in a replay the program must cancel them again."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from spanreplay.model import config
from spanreplay.runtime.calls.turns import complete
from spanreplay.runtime.lanes import inside_call
from spanreplay.runtime.order.loops import clock_of_running_loop, running_loop
from spanreplay.runtime.order.order import is_later

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing


def is_cancellation(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether this is asyncio's or trio's cancellation exception."""
    trio: Any = sys.modules.get("trio")
    return isinstance(error, asyncio.CancelledError) or (trio is not None and isinstance(error, trio.Cancelled))


async def await_cancellation(crossing: Crossing) -> None:
    """Wait until the task is cancelled, as it was when this call was recorded.

    Raises: the library's cancellation exception; ReplayMiss if nothing has cancelled the task for longer than it took
    when recorded, plus a margin.
    """
    recorded = crossing.served
    if recorded is None:
        raise AssertionError("only a served crossing can wait for its cancellation")
    took_s = max(0, recorded.end_ns - recorded.start_ns) / 1e9
    limit_s = took_s + config.CANCEL_WAIT_MS / 1000
    loop, loop_clock = running_loop(), clock_of_running_loop()
    waits: list[asyncio.Future[None]] = [] if loop_clock is None else [loop_clock.make_wake(recorded.end_seq)]
    waits.append(loop.create_future())
    began_s = None
    if loop_clock is not None and isinstance(loop, asyncio.AbstractEventLoop):
        began_s = loop.time()
        # Virtual time may not jump there while anything else can happen: another thread may be about to cancel it
        timer = asyncio.TimerHandle(began_s + limit_s, _end, (waits,), loop)
        loop_clock.keep_unfired(timer)
    else:
        timer = loop.call_later(limit_s, _end, waits)
    try:
        for future in waits:
            with inside_call(crossing):
                await future
    except BaseException:
        if loop_clock is not None:
            now_s = took_s if began_s is None else loop.time() - began_s
            if is_later(took_s, now_s):
                why = f"it was cancelled after {took_s:.3g} s when recorded, and would be after {now_s:.3g} s now"
                crossing.answers.gate.note_late(recorded.end_seq, why)
            with inside_call(crossing):
                await loop_clock.settle(recorded.end_seq)
        raise
    finally:
        timer.cancel()
        complete(crossing.answers.gate, *recorded.clocks, recorded.end_seq)
    raise crossing.answers.stall(crossing)


def _end(waits: list[asyncio.Future[None]]) -> None:
    for future in waits:
        if not future.done():
            future.set_result(None)
