"""Messages that a NATS server delivers by itself: each is a call in a lane of its subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.seams.machine.brokers.feeds import Feed, Feeds
from spanreplay.seams.machine.brokers.nats_client.asking import describe

__all__ = ["Subscription", "feeds"]

_NAMES: Final = ("subject", "reply", "data", "headers")


class Subscription(Feed):
    """Gives a subscription its messages, each as soon as it is recorded or served."""

    def __init__(self, number: int, subject: str, process: Callable[..., Awaitable[None]]) -> None:
        super().__init__()
        self._number = number
        self._subject = subject
        self._process = process

    def put(self, args: tuple[Any, ...]) -> None:
        """Take what the client has received."""
        self.messages.put_nowait(args)

    async def settle(self) -> None:
        """Wait until all that has come is given."""
        if self.task is not None and not self.task.done() and self.task is not asyncio.current_task():
            await self.messages.join()

    async def pump(self) -> None:
        while True:
            given: list[tuple[Any, ...]] = []

            async def live(given: list[tuple[Any, ...]] = given) -> Any:
                args = await self.messages.get()
                if args is None:
                    return None
                given.append(args)
                return {name: bytes(value or b"") for name, value in zip(_NAMES, args, strict=False)}

            value = await call_async(self._describe, live)
            if value is None:
                return
            args = given[0] if given else tuple(value[name] for name in _NAMES)
            try:
                await self._process(self._number, *args)
            finally:
                if given:
                    self.messages.task_done()

    def _describe(self) -> FunctionCall:
        return describe("deliver", Effect.READ, {"subject": self._subject})


feeds: Final[Feeds[Subscription]] = Feeds()
"""Subscriptions of clients by their numbers."""
