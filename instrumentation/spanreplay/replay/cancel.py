"""Calls that were cancelled when they were recorded: in a replay the program must cancel them again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spanreplay import config
from spanreplay.replay.turns import complete
from spanreplay.replay.virtual_time import clock_of_running_loop

if TYPE_CHECKING:
    from spanreplay.crossing import Crossing


async def await_cancellation(crossing: Crossing) -> None:
    """Wait until the task is cancelled, as it was when this call was recorded.

    Raises: CancelledError; ReplayMiss when nothing has cancelled it for longer than it took then, and some more.
    """
    recorded, session = crossing.served, crossing.run.session
    if recorded is None or session is None:
        raise AssertionError("only a served crossing can wait for its cancellation")
    limit_s = (max(0, recorded.end_ns - recorded.start_ns) // 1_000_000 + config.CANCEL_WAIT_MS) / 1000
    loop, loop_clock = asyncio.get_running_loop(), clock_of_running_loop()
    waits: list[asyncio.Future[None]] = [] if loop_clock is None else [loop_clock.make_wake(recorded.end_seq)]
    waits.append(loop.create_future())
    timer = loop.call_later(limit_s, _end, waits)
    try:
        for future in waits:
            await future
    finally:
        timer.cancel()
        complete(session.gate, *recorded.clocks, recorded.end_seq)
    raise session.stall(crossing)


def _end(waits: list[asyncio.Future[None]]) -> None:
    for future in waits:
        if not future.done():
            future.set_result(None)
