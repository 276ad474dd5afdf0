"""A server as a process: it starts, says where it listens, and stops at SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

__all__ = ["Part", "run_until_signal", "set_up_logging"]

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
IMPATIENT_S: Final = 2.0

Status = TypeVar("Status", covariant=True)


class Part(Protocol[Status]):
    """What can be started and stopped once."""

    async def start(self) -> Status:
        """Start everything; on an error nothing is left running."""

    async def stop(self) -> None:
        """Stop everything; harmless if it never started."""


def set_up_logging() -> None:
    """Warnings of ours and errors of everybody go to standard error.

    What libraries warn about (a connection retried, a query refused) reaches the user as one error of ours.
    """
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.levelno >= logging.ERROR or record.name.startswith("spanreplay"))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", handlers=[handler])


async def run_until_signal(part: Part[Status], announce: Callable[[Status], None]) -> bool:
    """Start, announce, and stop at SIGINT or SIGTERM; False if the signal came before it was ready."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def ask() -> None:
        if asked.is_set():
            return
        asked.set()
        # A terminal and a wrapper may both pass one on; whoever asks again later wants us gone at once.
        for number in SIGNALS:
            loop.call_later(IMPATIENT_S, loop.remove_signal_handler, number)

    for number in SIGNALS:
        loop.add_signal_handler(number, ask)
    waiting = asyncio.create_task(asked.wait())
    starting = asyncio.create_task(part.start())
    try:
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            return False
        announce(await starting)
        await waiting
        return True
    finally:
        waiting.cancel()
        await part.stop()
