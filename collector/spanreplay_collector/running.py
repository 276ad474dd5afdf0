"""Run a server as a process: start it, announce where it listens, and stop it at SIGINT or SIGTERM."""

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
    """A server that can be started and stopped once."""

    async def start(self) -> Status:
        """Start everything; on an error nothing is left running."""

    async def stop(self) -> None:
        """Stop everything; harmless if it never started."""


def set_up_logging() -> None:
    """Send spanreplay's warnings and all errors to standard error.

    Library warnings (a retried connection, a refused query) reach the user as one error from spanreplay instead.
    """
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.levelno >= logging.ERROR or record.name.startswith("spanreplay"))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", handlers=[handler])


async def run_until_signal(part: Part[Status], announce: Callable[[Status], None]) -> bool:
    """Start, announce, and stop at SIGINT or SIGTERM; False if the signal came before `start` returned."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def ask() -> None:
        if asked.is_set():
            return
        asked.set()
        # A terminal and a wrapper may both deliver the signal; one after IMPATIENT_S ends the process at once.
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
