"""Unit: FastStream on Redis. Each message that a subscriber processes is its own run, with the broker's middleware.

In a replay Redis is not used: once the application has started, its subscriber gets the recorded message. A broker
that no `FastStream` application runs (a router of FastAPI) has no units.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.calls.open_call import no_plumbing, plumbing
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import Ended, is_replay, keep_encodable, not_here, record_job_async, replay_jobs_async

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_FIELD: Final = b"__data__"
"""The field of a stream's entry that holds a message in FastStream's own format."""
_BODY, _HEADERS, _DATA = "body", "headers", "data"
_SUBSCRIBER, _NUMBER, _MESSAGE = "subscriber", "number", "message"
_MODULES: Final = "faststream.redis."
_subscribers: Final[dict[int, tuple[int, Any]]] = {}
"""The subscribers of started applications by `id`, each with its number."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of FastStream's modules."""
    if module.__name__ == "faststream._internal.application":
        patches.wrap(module.StartAbleApplication, "_start_broker", _connect)
        patches.wrap(module.Application, "_startup", _start)
    elif module.__name__ == "faststream._internal.cli.supervisors.basereload":
        patches.wrap(module.BaseReload, "run", _supervise)
    elif module.__name__ == "faststream.middlewares.acknowledgement.middleware":
        for name in ("ack", "nack", "reject"):
            patches.wrap(module._AcknowledgementMiddleware, f"_AcknowledgementMiddleware__{name}", _acknowledge)
    elif module.__name__ == "faststream.redis.publisher.producer":
        for producer in (module.BaseRedisFastProducer, module.RedisFastProducer, module.RedisClusterFastProducer):
            for name in {"publish", "publish_batch", "request"}.intersection(vars(producer)):
                patches.wrap(producer, name, _make_publish(name))
    else:
        patches.wrap(module.SubscriberUsecase, "process_message", _process)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
async def _process(wrapped: Any, subscriber: Any, args: Any, kwargs: Any) -> Any:
    if is_replay() or id(subscriber) not in _subscribers:
        return await wrapped(*args, **kwargs)
    given = guard.guarded("a message", _describe_input, subscriber, args[0] if args else kwargs["msg"])
    if given is None:
        return await wrapped(*args, **kwargs)
    with no_plumbing():  # the task that asks for messages was started with the broker
        return await record_job_async(
            given[_SUBSCRIBER], lambda: given, lambda: wrapped(*args, **kwargs), _describe_end, _find_headers(given)
        )


def _describe_input(subscriber: Any, message: Mapping[str, Any]) -> dict[str, Any]:
    unpacked = {**message, _DATA: _unpack(subscriber.config.message_format, message[_DATA])}
    number = _subscribers[id(subscriber)][0]
    return {_SUBSCRIBER: subscriber.specification.call_name, _NUMBER: number, _MESSAGE: unpacked}


def _unpack(form: Any, raw: Any) -> Any:
    """Return what was sent with body and headers apart, so that redaction can read them."""
    if isinstance(raw, list):
        return [_unpack(form, each) for each in raw]
    if isinstance(raw, Mapping):
        return {name: _unpack(form, each) if name == _FIELD else each for name, each in raw.items()}
    body, headers = form.parse(raw)
    return raw if body == raw else {_BODY: body, _HEADERS: headers}


def _pack(given: Any) -> Any:
    """Return what was sent, for a message of FastStream's own in the format that all its versions read."""
    if isinstance(given, list):
        return [_pack(each) for each in given]
    if isinstance(given, Mapping) and given.keys() == {_BODY, _HEADERS}:
        return json.dumps({_DATA: given[_BODY].decode(), _HEADERS: given[_HEADERS]}).encode()
    return {name: _pack(each) for name, each in given.items()} if isinstance(given, Mapping) else given


def _find_headers(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message's headers; of several at once, those of the first."""
    found = given[_MESSAGE][_DATA]
    found = found[0] if isinstance(found, list) and found else found
    found = found.get(_FIELD, found) if isinstance(found, Mapping) else {}
    headers: Mapping[str, Any] = found.get(_HEADERS, {}) if isinstance(found, Mapping) else {}
    return headers


def _describe_end(response: Any) -> Ended:
    return Ended({"result": getattr(response, _BODY, None)})


async def _acknowledge(wrapped: Any, middleware: Any, args: Any, kwargs: Any) -> Any:
    """Leave acknowledging a message to the worker: not part of the unit, and left out in a replay."""
    if is_replay():
        return None
    with factory.outside_units(), plumbing():
        return await wrapped(*args, **kwargs)


# ── published messages ──────────────────────────────────────────────────────────────────────────────
def _make_publish(name: str) -> Callable[..., Any]:
    """Return a wrapper that records publishing as a write: a replay compares it and sends nothing."""

    async def publish(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
        if active_run() is None:
            return await wrapped(*args, **kwargs)
        command = args[0] if args else kwargs["cmd"]

        async def send() -> Any:
            return await wrapped(*args, **kwargs)

        return await call_async(lambda: _describe_published(name, producer, command), send)

    return publish


def _describe_published(name: str, producer: Any, command: Any) -> FunctionCall:
    from faststream.message.utils import encode_message

    told = {
        "destination": command.destination,
        "type": str(command.destination_type),
        "bodies": [encode_message(each, producer.serializer)[0] for each in command.batch_bodies],
        _HEADERS: dict(command.headers),
        "reply_to": command.reply_to,
    }
    return FunctionCall(Kind.TOOL.value, f"faststream.{name}", Effect.WRITE.value, keep_encodable(told), prints=False)


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────
async def _connect(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    """Start the brokers; in a replay without their connections."""
    guard.guarded("an application", _take, app)
    if not is_replay():
        with plumbing():
            return await wrapped(*args, **kwargs)
    from faststream._internal.endpoint.subscriber.usecase import SubscriberUsecase

    for broker in app.brokers:
        broker._setup_logger()
        for subscriber in broker.subscribers:
            await SubscriberUsecase.start(subscriber)
            subscriber.running = True
    return None


def _take(app: Any) -> None:
    every = [subscriber for broker in app.brokers for subscriber in broker.subscribers]
    for number, subscriber in enumerate(every):
        if type(subscriber).__module__.startswith(_MODULES):
            _subscribers[id(subscriber)] = (number, subscriber)


def _supervise(wrapped: Any, supervisor: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, run one of the worker's processes in this process."""
    if not is_replay():
        return wrapped(*args, **kwargs)
    supervisor._args.extra_options["worker_id"] = 0 if hasattr(supervisor, "workers") else None
    return supervisor._target(supervisor._args)


async def _start(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    """The application has started: a replay now processes the recorded message."""
    if is_replay():
        with contextlib.suppress(ReplayMiss):  # noted by the session, unless a hook went on beside the first message
            await wrapped(*args, **kwargs)
        await replay_jobs_async(_work, _describe_end)
    result = await wrapped(*args, **kwargs)
    guard.guarded("the start of a worker", factory.begin_units)
    return result


async def _work(given: Mapping[str, Any]) -> Any:
    found = dict(_subscribers.values())
    subscriber = found.get(given[_NUMBER])
    if subscriber is None or subscriber.specification.call_name != given[_SUBSCRIBER]:
        named = [each for each in found.values() if each.specification.call_name == given[_SUBSCRIBER]]
        if not named:
            raise not_here(f"the subscriber {given[_SUBSCRIBER]!r} is not in this application")
        subscriber = named[0]
    message = given[_MESSAGE]
    return await subscriber.process_message({**message, _DATA: _pack(message[_DATA])})
