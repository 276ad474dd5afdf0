"""Messages that a program takes from NATS where each is a run of its own: in a callback, one by one, by fetching."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final, NoReturn

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import Source, Taker, Taking, find_taker, leave
from spanreplay.seams.machine.brokers.nats_client.asking import (
    STAND_IN,
    asks_now,
    describe,
    make_message,
    pack_message,
    run_own,
)

__all__ = ["are_taken", "end", "fetch_taken", "take_in_callback", "take_next"]

_ANY: Final = Source("nats", 0)
_tasks: Final[set[asyncio.Task[None]]] = set()


def are_taken() -> bool:
    """Whether messages of a subscription that is made here are runs of their own."""
    return find_taker(_ANY) is not None


def _source_of(subscription: Any) -> Source:
    return Source(f"nats {subscription._subject}", id(subscription))


def _taking(subscription: Any, nothing: Callable[[], Any] | None = None) -> Taking:
    def describe_delivery() -> FunctionCall:
        return describe("deliver", Effect.READ, {"subject": subscription._subject})

    build = partial(make_message, subscription._conn)
    return Taking(
        _source_of(subscription), describe_delivery, pack_message, build, nothing=nothing, headers=_headers_of
    )


def _headers_of(found: Any) -> dict[str, Any]:
    first = found[0] if isinstance(found, list) else found
    return dict(first.headers or {})


def _time_out() -> NoReturn:
    raise import_module("nats.errors").TimeoutError


def take_in_callback(subscription: Any) -> None:
    """Let each message of a subscription with a callback be a run, from before the callback until it has returned."""
    callback = subscription._cb

    async def deliver(message: Any) -> None:
        taker = find_taker(_source_of(subscription))
        if taker is None:
            await callback(message)
            return

        async def live() -> Any:
            return message

        found = await taker.take_async(_taking(subscription), live)
        try:
            await callback(found)
        except BaseException as exc:
            leave(subscription, exc)
            raise
        leave(subscription)

    async def serve() -> None:
        while True:  # the replay ends with the recorded message
            await deliver(None)

    subscription._cb = deliver
    if vars(subscription._conn).get(STAND_IN):
        task = run_own(lambda: asyncio.get_running_loop().create_task(serve()))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


async def take_next(wrapped: Any, owner: Any, args: Any, kwargs: Any) -> Any:
    """Take the next message of a subscription, or of an iterator of one."""
    subscription = getattr(owner, "_sub", owner)
    taker = find_taker(_source_of(subscription))
    if taker is None or not asks_now():
        return await wrapped(*args, **kwargs)
    taking = _taking(subscription, _time_out if owner is subscription else None)
    return await _take(taker, taking, wrapped, args, kwargs)


async def _take(taker: Taker, taking: Taking, wrapped: Any, args: Any, kwargs: Any) -> Any:
    async def live() -> Any:
        with plumbing():
            return await wrapped(*args, **kwargs)

    return await taker.take_async(taking, live)


async def fetch_taken(
    wrapped: Any, pulled: Any, args: Any, kwargs: Any, description: Callable[[], FunctionCall]
) -> list[Any] | None:
    """Fetch messages that are a run; None where fetching is a call like others."""
    source = Source(f"nats {pulled._stream} {pulled._consumer}", id(pulled))
    taker = find_taker(source)
    if taker is None:
        return None
    taking = Taking(
        source,
        description,
        show=lambda messages: [pack_message(each) for each in messages],
        build=lambda values: [make_message(pulled._nc, each) for each in values],
        nothing=_time_out,
        headers=_headers_of,
    )
    found: list[Any] = await _take(taker, taking, wrapped, args, kwargs)
    return found


def end(subscription: Any) -> None:
    """Leave the loop over a subscription's messages: it is about to end."""
    leave(subscription)
