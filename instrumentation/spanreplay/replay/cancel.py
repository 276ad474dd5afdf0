"""Calls that were cancelled when they were recorded: in a replay the program must cancel them again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spanreplay import config

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
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(limit_s, waiter.set_result, None)
    try:
        await waiter
    finally:
        timer.cancel()
        session.gate.complete(*recorded.clocks, recorded.end_seq)
    raise session.stall(crossing)
