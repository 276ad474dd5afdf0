"""Messages that a program takes with pika where each is a run of its own: in a callback, from an iterator, one by one.

What comes from the broker meanwhile belongs to no run, and a replay waits for none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import Source, Taking, find_taker, leave
from spanreplay.seams.machine.brokers.amqp_methods import make_source
from spanreplay.seams.machine.brokers.pika_client.events import fields_of, make_method

__all__ = ["deliver_each", "is_taken", "take_each", "take_in_callback", "take_one", "without_taken"]

_TAKEN: Final = "_spanreplay_taken"
"""Attribute of a channel: what its consumers' callbacks are replaced with, by the callback."""
_IDLE: Final = (None, None, None)
"""What an iterator gives when nothing has come for a while, and `basic_get` when there is nothing."""


def is_taken() -> bool:
    """Whether messages that come here are runs of their own."""
    return find_taker(_ANY) is not None


_ANY: Final = Source("amqp", 0)


def take_in_callback(channel: Any, queue: str, tag: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a channel calls with each message of a consumer in place of the program's callback."""
    source = make_source(queue, channel)
    _tags_of(channel.connection._impl).add(tag)

    def deliver(made: Any, method: Any, properties: Any, body: Any) -> Any:
        taker = find_taker(source)
        if taker is None:
            return None if method is None else callback(made, method, properties, body)
        found = taker.take(_taking(source, queue, lambda: _IDLE), lambda: (method, properties, body))
        if found == _IDLE:
            return None
        try:
            result = callback(made, *found)
        except BaseException as exc:
            leave(channel, exc)
            raise
        leave(channel)
        return result

    vars(channel).setdefault(_TAKEN, []).append(deliver)
    return deliver


def _tags_of(impl: Any) -> set[str]:
    """Return the tags of a connection's consumers whose messages are runs of their own."""
    tags: set[str] = vars(impl).setdefault(_TAGS, set())
    return tags


_TAGS: Final = "_spanreplay_tags"


def without_taken(impl: Any, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what happened during a call without messages that belong to runs of their own."""
    tags = vars(impl).get(_TAGS)
    if not tags:
        return events
    kept, leaving = [], set()
    for event in events:
        channel = event.get("channel")
        if "method" in event:
            leaving.discard(channel)
            if event["method"] == "Basic.Deliver" and event["fields"].get("consumer_tag") in tags:
                leaving.add(channel)
        if channel is None or channel not in leaving:
            kept.append(event)
    return kept


def deliver_each(connection: Any) -> None:
    """In a replay, give the callbacks of a connection's channels the next message."""
    for inner in list(connection._impl._channels.values()):
        channel = inner._get_cookie()
        for deliver in list(vars(channel).get(_TAKEN, ())):
            deliver(channel, *_IDLE)


def take_each(channel: Any, real: Iterator[Any], queue: str, *, is_idle: bool) -> Iterator[Any]:
    """Give the messages of an iterator; `is_idle`: whether it also gives something when nothing comes."""
    source = make_source(queue, channel)

    def live() -> Any:
        with plumbing():
            found = next(real, None)
        consumer = getattr(channel, "_queue_consumer_generator", None)
        if consumer is not None:
            _tags_of(channel.connection._impl).add(consumer.consumer_tag)
        return found

    while True:
        taker = find_taker(source)
        nothing = (lambda: _IDLE) if is_idle else None
        found = live() if taker is None else taker.take(_taking(source, queue, nothing), live)
        if found is None:
            return
        yield found


def take_one(
    channel: Any, queue: str, describe: Callable[[], FunctionCall], live: Callable[[], Any]
) -> tuple[Any, Any, Any] | None:
    """Give the message that a program asks for, or `_IDLE`; None if asking is a call like others."""
    source = make_source(queue, channel)
    taker = find_taker(source)
    if taker is None:
        return None
    found: tuple[Any, Any, Any] = taker.take(_taking(source, queue, lambda: _IDLE, describe), live)
    return found


def _taking(
    source: Source, queue: str, nothing: Callable[[], Any] | None, describe: Callable[[], FunctionCall] | None = None
) -> Taking:
    def describe_delivery() -> FunctionCall:
        return FunctionCall(Kind.TOOL.value, "amqp.deliver", Effect.READ.value, {"queue": queue}, prints=False)

    return Taking(source, describe or describe_delivery, _show, _build, _is_nothing, nothing, _headers_of)


def _is_nothing(found: Any) -> bool:
    return found is None or found == _IDLE


def _show(found: Any) -> dict[str, Any]:
    method, properties, body = found
    kept = {name: value for name, value in fields_of(properties).items() if value is not None}
    return {"method": method.NAME, "fields": fields_of(method), "properties": kept, "body": body}


def _build(value: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    properties = import_module("pika.spec").BasicProperties(**value["properties"])
    return make_method(value["method"], value["fields"]), properties, value["body"]


def _headers_of(found: Any) -> Mapping[str, Any]:
    return found[1].headers or {}
