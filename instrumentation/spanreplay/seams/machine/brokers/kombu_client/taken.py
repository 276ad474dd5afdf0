"""Messages that a program takes with kombu where each is a run of its own: in callbacks, or from a simple queue.

What comes from the broker meanwhile belongs to no run, and a replay waits for none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.taking import Taker, Taking, find_taker, leave
from spanreplay.runtime.context_variables import holding
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.brokers.carried_out import carrying_out
from spanreplay.seams.machine.brokers.kombu_client.channels import (
    Deliveries,
    NoConnection,
    asks_now,
    deliveries_of,
    describe,
    is_inside,
    make_source,
)
from spanreplay.seams.machine.brokers.kombu_client.values import make_message, pack_message

__all__ = ["drain", "install_simple", "is_taken"]

_TIMEOUT: Final = "timeout"


def is_taken(client: Any) -> bool:
    """Whether a message that comes to one of a connection's consumers now is a run of its own."""
    return any(find_taker(make_source(client, queue)) is not None for queue in deliveries_of(client).consumers)


def drain(client: Any, wait: Callable[[], Any], arguments: Mapping[str, Any]) -> Any:
    """Wait for messages and hand each to its consumer; in a replay, the recorded one. Raises: what `wait` raises."""
    deliveries = deliveries_of(client)
    if isinstance(client._connection, NoConnection):
        return _await_recorded(client, deliveries, is_patient=arguments.get(_TIMEOUT) is None)
    deliveries.hand_on = lambda: _hand_on(client, deliveries)
    if deliveries.waiting:
        _hand_on(client, deliveries)
        return None
    came: list[tuple[str, Any]] = []
    before, deliveries.came = deliveries.came, came
    try:
        with carrying_out("tool:kombu.drain_events"), holding(is_inside, True):
            return wait()
    finally:
        deliveries.came = before
        deliveries.waiting += came
        _hand_on(client, deliveries)


def _hand_on(client: Any, deliveries: Deliveries) -> None:
    while deliveries.waiting and not deliveries.is_at_work:
        queue, raw = deliveries.waiting.pop(0)
        if queue in deliveries.consumers:
            callback, channel = deliveries.consumers[queue]
            _deliver(client, queue, channel, callback, raw)


def _await_recorded(client: Any, deliveries: Deliveries, *, is_patient: bool) -> None:
    is_given = False
    while not is_given:
        for queue, (callback, channel) in list(deliveries.consumers.items()):
            is_given = _deliver(client, queue, channel, callback, None) or is_given
        if not is_given and not is_patient:
            raise TimeoutError("timed out")


def _deliver(client: Any, queue: str, channel: Any, callback: Callable[[Any], Any], raw: Any) -> bool:
    """Give a consumer a message, or the recorded one; return whether there was one."""
    message = None if raw is None else channel.message_to_python(raw)
    taker = find_taker(make_source(client, queue))
    if taker is None:
        if raw is not None:
            callback(raw)
        return raw is not None
    found = _take(
        taker, client, queue, "deliver", lambda: message, lambda value: make_message(value, channel), _nothing
    )
    if found is None:
        return False
    deliveries = deliveries_of(client)
    deliveries.is_at_work = True
    try:
        callback(raw if found is message else found)
    except BaseException as exc:
        leave(client, exc)
        raise
    finally:
        deliveries.is_at_work = False
    leave(client)
    return True


def _take(
    taker: Taker,
    client: Any,
    queue: str,
    name: str,
    live: Callable[[], Any],
    build: Callable[[Any], Any],
    nothing: Callable[[], Any] | None,
) -> Any:
    return taker.take(
        Taking(
            make_source(client, queue),
            lambda: describe(name, Effect.READ, {"queue": queue}),
            pack_message,
            build,
            lambda found: found is None,
            nothing,
            lambda found: found.headers or {},
        ),
        live,
    )


def _nothing() -> None:
    """Return what there is where no message has come."""


# ── Simple queues ───────────────────────────────────────────────────────────────────────────────────
def _client_of(simple: Any) -> Any:
    return simple.channel.connection.client


def _get(wrapped: Any, simple: Any, args: Any, kwargs: Any) -> Any:
    client, queue = _client_of(simple), str(simple.queue.name)
    taker = find_taker(make_source(client, queue)) if asks_now() else None
    if taker is None:
        return wrapped(*args, **kwargs)
    given = {**dict(zip(("block", _TIMEOUT), args, strict=False)), **kwargs}
    is_patient = wrapped.__name__ == "get" and given.get("block", True) and given.get(_TIMEOUT) is None

    def build(value: Mapping[str, Any]) -> Any:
        made = make_message(value, simple.channel)
        made.accept = simple.consumer.accept or made.accept
        return made

    def find_none() -> Any:
        raise simple.Empty

    nothing = None if is_patient else find_none
    return _take(taker, client, queue, "get", lambda: wrapped(*args, **kwargs), build, nothing)


def _close(wrapped: Any, simple: Any, args: Any, kwargs: Any) -> Any:
    leave(_client_of(simple))
    return wrapped(*args, **kwargs)


def install_simple(module: Any, patches: Patches) -> None:
    """Patch kombu's simple queues. Raises: AttributeError if they are not as expected."""
    patches.wrap(module.SimpleBase, "get", _get)
    patches.wrap(module.SimpleBase, "get_nowait", _get)
    patches.wrap(module.SimpleBase, "close", _close)
