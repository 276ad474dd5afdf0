"""Messages that a broker delivers to a consumer by itself: each is a call of the consumer's own lane."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import Source, Taking, find_taker, leave
from spanreplay.seams.machine.brokers.aio_pika_client.answers import asks_now
from spanreplay.seams.machine.brokers.aio_pika_client.frames import headers_of, pack_incoming, unpack
from spanreplay.seams.machine.brokers.amqp_methods import make_source
from spanreplay.seams.machine.brokers.feeds import Feed, Feeds

__all__ = ["Consumer", "channels_of", "close_iterator", "feeds", "take_next"]


class Consumer(Feed):
    """Hands the messages of one consumer to the program's function, each as soon as it is recorded or served."""

    def __init__(self, queue: Any, callback: Callable[[Any], Any], *, no_ack: bool) -> None:
        super().__init__()
        ensure = getattr(import_module("aio_pika.tools"), "ensure_awaitable", None)  # since 9.1
        self._callback = ensure(callback) if ensure is not None else import_module("aiormq.tools").awaitable(callback)
        self._queue = queue
        self._no_ack = no_ack
        self._is_of_iterator = hasattr(getattr(callback, "__self__", None), "__anext__")
        self._is_taken = False

    def start(self) -> None:
        """Begin to give messages, unless an iterator of the queue takes them itself as runs of their own."""
        self._is_taken = self._is_of_iterator and find_taker(source_of(self._queue)) is not None
        if not self._is_taken:
            super().start()

    async def hand(self, message: Any) -> None:
        """Take a message from the client."""
        if self._is_taken:
            await self._callback(message)
        else:
            self.messages.put_nowait(message)

    async def pump(self) -> None:
        while True:
            given: list[Any] = []

            async def live(given: list[Any] = given) -> Any:
                message = await self.messages.get()
                if message is None:
                    return None
                given.append(message)
                return guard.guarded("a message", pack_incoming, message)

            source = make_source(self._queue.name, self)
            taker = find_taker(source)
            if taker is None:
                value = await call_async(self._describe, live)
            else:
                value = await taker.take_async(
                    Taking(source, self._describe, is_nothing=_is_end, headers=headers_of), live
                )
            if value is None and not given:
                return
            self._hand_over(given[0] if given else self._rebuild(value))

    def _describe(self) -> FunctionCall:
        return _describe_delivery(self._queue)

    def _rebuild(self, value: Any) -> Any:
        return _rebuild(self._queue, value, no_ack=self._no_ack)

    def _hand_over(self, message: Any) -> None:
        """Call the program's function as aiormq does: in a task that ends with the channel."""
        channel = message._IncomingMessage__channel
        task = channel.create_task(self._callback(message))
        done = getattr(channel, "_on_consumer_done", None)
        if done is not None:
            task.add_done_callback(done)


def _is_end(value: Any) -> bool:
    return value is None


def _describe_delivery(queue: Any) -> FunctionCall:
    return FunctionCall(Kind.TOOL.value, "amqp.deliver", Effect.READ.value, {"queue": str(queue.name)})


def _rebuild(queue: Any, value: Any, *, no_ack: bool) -> Any:
    made = import_module("aio_pika.message").IncomingMessage
    return made(unpack(value, queue.channel._channel.channel), no_ack=no_ack)


def source_of(queue: Any) -> Source:
    """Return what iterators of a queue take messages from."""
    return make_source(queue.name, queue)


async def take_next(wrapped: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
    """Take the next message of an iterator: a run of its own, or already a call of its consumer."""
    queue = iterator._amqp_queue
    source = source_of(queue)
    taker = find_taker(source)
    if taker is None or not asks_now():
        return await wrapped(*args, **kwargs)

    async def live() -> Any:
        with plumbing():
            return await wrapped(*args, **kwargs)

    no_ack = bool(iterator._consume_kwargs.get("no_ack"))
    taking = Taking(
        source,
        lambda: _describe_delivery(queue),
        show=pack_incoming,
        build=lambda value: _rebuild(queue, value, no_ack=no_ack),
        headers=lambda message: message.headers or {},
    )
    return await taker.take_async(taking, live)


async def close_iterator(wrapped: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
    """Leave the loop over an iterator."""
    leave(iterator._amqp_queue)
    return await wrapped(*args, **kwargs)


feeds: Final[Feeds[Consumer]] = Feeds()
"""Consumers of channels of aio-pika by their tags."""


def channels_of(connection: Any) -> list[Any]:
    """Return the channels of a connection that have consumers."""
    return [channel for channel in feeds.owners() if getattr(channel, "_connection", None) is connection]
