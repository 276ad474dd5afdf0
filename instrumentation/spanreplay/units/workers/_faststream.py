"""Unit: FastStream. Each message that a subscriber processes is its own run, with the broker's middleware.

In a replay the broker is not used: once the application has started, its subscriber gets the recorded message. A broker
that no `FastStream` application runs (a router of FastAPI) has no units.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.open_call import is_plumbing, no_plumbing, plumbing
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import (
    Ended,
    find_replay_of_job,
    is_replay,
    not_here,
    record_job_async,
    replay_jobs_async,
)
from spanreplay.units.start import await_start
from spanreplay.units.workers._faststream_forms import Form, broker_of, form_of
from spanreplay.units.workers._faststream_published import make_acknowledge, make_publish, producers_of

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_BODY: Final = "body"
_BY_HAND: Final = frozenset({"ack", "ack_sync", "nack", "reject"})
"""Methods of a message with which a program acknowledges it by itself."""
_SUBSCRIBER, _NUMBER, _MESSAGE = "subscriber", "number", "message"
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
    elif module.__name__.endswith(".producer"):
        for producer in producers_of(module):
            for name in {"publish", "publish_batch", "request"}.intersection(vars(producer)):
                patches.wrap(producer, name, make_publish(name, broker_of(producer)))
    elif module.__name__.endswith(".message"):
        for message in vars(module).values():
            if isinstance(message, type) and message.__module__ == module.__name__:
                for name in _BY_HAND.intersection(vars(message)):
                    patches.wrap(message, name, make_acknowledge(name))
    else:
        patches.wrap(module.SubscriberUsecase, "process_message", _process)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
async def _process(wrapped: Any, subscriber: Any, args: Any, kwargs: Any) -> Any:
    if is_replay():
        return await wrapped(*args, **kwargs)
    form = form_of(subscriber) if id(subscriber) in _subscribers else None
    message = args[0] if args else kwargs["msg"]
    given = None if form is None else guard.guarded("a message", _describe_input, subscriber, form, message)
    if form is None or given is None:
        guard.guarded("a message without a unit", _note_unseen, subscriber)
        return await wrapped(*args, **kwargs)
    with no_plumbing():  # the task that asks for messages was started with the broker
        return await record_job_async(
            given[_SUBSCRIBER],
            lambda: given,
            lambda: wrapped(*args, **kwargs),
            _describe_end,
            guard.guarded("a message", form.headers, given[_MESSAGE]),
        )


def _note_unseen(subscriber: Any) -> None:
    """Say that what a message of another broker makes the application do is in no run."""
    run = active_run()
    if run is not None and is_plumbing(run):
        broker = broker_of(subscriber)
        run.resolver.leave_out(f"FastStream processed messages of {broker}: they are not recorded")


def _describe_input(subscriber: Any, form: Form, message: Any) -> dict[str, Any]:
    number = _subscribers[id(subscriber)][0]
    shown = form.show(subscriber, message)
    return {_SUBSCRIBER: subscriber.specification.call_name, _NUMBER: number, _MESSAGE: shown}


def _describe_end(response: Any) -> Ended:
    return Ended({"result": getattr(response, _BODY, None)})


async def _acknowledge(wrapped: Any, middleware: Any, args: Any, kwargs: Any) -> Any:
    """Leave acknowledging a message to the worker: not part of the unit, and left out in a replay."""
    if is_replay():
        return None
    with factory.outside_units(), plumbing():
        return await wrapped(*args, **kwargs)


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
        if form_of(subscriber) is not None:
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
        over = asyncio.Event()
        playing = asyncio.get_running_loop().create_task(_play(over))
        with contextlib.suppress(ReplayMiss):  # noted by the session, unless a hook went on beside the first message
            await wrapped(*args, **kwargs)
        over.set()
        await playing
    result = await wrapped(*args, **kwargs)
    guard.guarded("the start of a worker", factory.begin_units)
    return result


async def _play(over: asyncio.Event) -> None:
    """Process the recorded message once the start is `over`, or where a hook waits for a call that ended after it."""
    run = find_replay_of_job()
    with contextlib.suppress(ReplayMiss):  # the session has noted it
        await await_start(run)
    extent = run.resolver.answers.extent
    if extent is None or not extent.has_in_flight():
        await over.wait()
    await replay_jobs_async(_work, _describe_end)


async def _work(given: Mapping[str, Any]) -> Any:
    found = dict(_subscribers.values())
    subscriber = found.get(given[_NUMBER])
    if subscriber is None or subscriber.specification.call_name != given[_SUBSCRIBER]:
        named = [each for each in found.values() if each.specification.call_name == given[_SUBSCRIBER]]
        if not named:
            raise not_here(f"the subscriber {given[_SUBSCRIBER]!r} is not in this application")
        subscriber = named[0]
    form = form_of(subscriber)
    if form is None:
        raise not_here(f"messages of {broker_of(subscriber)} can't be replayed")
    return await subscriber.process_message(form.build(given[_MESSAGE]))
