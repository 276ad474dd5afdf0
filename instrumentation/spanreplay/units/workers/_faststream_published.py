"""Messages that a program publishes with FastStream, and acknowledges by itself: writes, which a replay compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.calls.open_call import is_plumbing
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.brokers.aio_pika_client.frames import pack, pack_incoming, unpack
from spanreplay.units.jobs import keep_encodable

__all__ = ["make_acknowledge", "make_publish", "producers_of"]

_OF_COMMANDS: Final = ("key", "partition", "timestamp_ms", "stream", "publish_options", "message_options")
"""What commands of some brokers have besides."""


def producers_of(module: Any) -> list[type]:
    """Return the classes of a broker's producers that are defined in a module."""
    return [
        each
        for name, each in vars(module).items()
        if isinstance(each, type) and each.__module__ == module.__name__ and "Fake" not in name and "Producer" in name
    ]


def make_publish(name: str, broker: str) -> Callable[..., Any]:
    """Return a wrapper that records publishing as a write: a replay compares it and sends nothing."""

    async def publish(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
        if active_run() is None:
            return await wrapped(*args, **kwargs)
        command = args[0] if args else kwargs["cmd"]
        made: list[Any] = []

        async def send() -> Any:
            made.append(await wrapped(*args, **kwargs))
            return guard.guarded("what a broker answered", _show_result, broker, made[0])

        shown = await call_async(lambda: _describe_published(name, producer, command), send)
        return made[0] if made else _build_result(broker, name, shown)

    return publish


def _describe_published(name: str, producer: Any, command: Any) -> FunctionCall:
    from faststream.message import encode_message

    exchange = getattr(getattr(command, "exchange", None), "name", "")
    told = {
        "destination": command.destination,
        "bodies": [encode_message(each, producer.serializer)[0] for each in command.batch_bodies],
        "headers": dict(command.headers),
        "reply_to": command.reply_to,
        **({"type": str(command.destination_type)} if hasattr(command, "destination_type") else {}),
        **({"exchange": exchange} if exchange else {}),
        **{each: getattr(command, each) for each in _OF_COMMANDS if getattr(command, each, None) not in (None, {})},
    }
    return FunctionCall(Kind.TOOL.value, f"faststream.{name}", Effect.WRITE.value, keep_encodable(told), prints=False)


def _show_result(broker: str, result: Any) -> Any:
    if broker == "rabbit":
        return pack_incoming(result) if hasattr(result, "properties") else pack(result)
    if broker == "nats" and hasattr(result, "subject"):
        headers = None if result.headers is None else dict(result.headers)
        return {"subject": result.subject, "reply": result.reply, "data": result.data, "headers": headers}
    return None if hasattr(result, "add_done_callback") else result


def _build_result(broker: str, name: str, shown: Any) -> Any:
    if broker == "rabbit":
        made = unpack(shown, None)
        return import_module("aio_pika.message").IncomingMessage(made) if name == "request" else made
    if broker == "nats" and isinstance(shown, Mapping):
        return import_module("nats.aio.msg").Msg(None, **shown)
    return shown


def make_acknowledge(name: str) -> Callable[..., Any]:
    """Return a wrapper that records that a program acknowledges a message by itself; a worker's own is not recorded."""

    async def acknowledge(wrapped: Any, message: Any, args: Any, kwargs: Any) -> None:
        run = active_run()
        if run is None or is_plumbing(run):
            await wrapped(*args, **kwargs)
            return

        made: list[bool] = []

        async def send() -> None:
            await wrapped(*args, **kwargs)
            made.append(True)

        told = keep_encodable(kwargs) or {"operation": name}
        await call_async(
            lambda: FunctionCall(Kind.TOOL.value, f"faststream.{name}", Effect.WRITE.value, told, prints=False), send
        )
        if not made:
            from faststream.message import StreamMessage

            await getattr(StreamMessage, name.partition("_")[0])(message)  # which only notes it

    return acknowledge
