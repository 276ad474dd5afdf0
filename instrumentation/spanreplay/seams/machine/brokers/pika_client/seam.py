"""Seam: pika's `BlockingConnection`: each method that asks or tells the broker is a call, and so is each wait.

A call holds what the broker sent while it waited. In a replay, pika's own code runs above a connection to nobody and is
given the same, so that results, errors, consumers and the state of channels are its own. Connecting, logins and
heartbeats happen live while recording.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.calls.taking import leave
from spanreplay.runtime.context_variables import holding
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.reads import make_loose
from spanreplay.seams.machine.asked import asking_run
from spanreplay.seams.machine.brokers.amqp_methods import METHODS, Request
from spanreplay.seams.machine.brokers.bound import bind
from spanreplay.seams.machine.brokers.carried_out import carrying_out, refuse
from spanreplay.seams.machine.brokers.covered import covers, is_covered
from spanreplay.seams.machine.brokers.pika_client import stand_ins, taken
from spanreplay.seams.machine.brokers.pika_client.events import (
    EVENTS_MAX,
    HANDED,
    LOST,
    TIMER,
    Script,
    hear_frame,
    show,
)

_CLIENTS: Final = frozenset({"pika"})
_EVENTS: Final = "_spanreplay_events"
"""Attribute of an error while it is recorded or served: what happened before it."""
_HEARD: Final = "_spanreplay_heard"
"""Attribute of an inner connection: the events of the running call."""
_TIMERS: Final = "_spanreplay_timers"
_NOT_COMPARED: Final = ("self", "on_message_callback", "alternate_event_sink", "new_secret")
_TAG: Final = "consumer_tag"
_CALLBACK: Final = "on_message_callback"
_DRAWN: Final = "ctag"
"""Beginning of the tags that pika draws."""
_is_inside: Final[ContextVar[bool]] = ContextVar("spanreplay_pika_inside", default=False)
_METHODS: Final[Mapping[str, Request]] = {
    **METHODS,
    "basic_nack": Request("nack", Effect.WRITE),
    "confirm_delivery": Request("confirm_delivery", Effect.READ),
}
"""Methods of channels that ask or tell the broker something."""
_WAIT: Final = FunctionCall(Kind.TOOL.value, "amqp.wait", Effect.READ.value, {"operation": "wait"}, prints=False)
_SECRET: Final = FunctionCall(
    Kind.TOOL.value, "amqp.update_secret", Effect.WRITE.value, {"operation": "update_secret"}, prints=False
)


def _describe(request: Request, method: Any, args: Any, kwargs: Any) -> FunctionCall:
    found = bind(method, args, kwargs)
    shown = {name: show(value) for name, value in found.items() if name not in _NOT_COMPARED}
    if str(shown.get(_TAG)).startswith(_DRAWN):
        del shown[_TAG]
    arguments = shown or {"operation": request.name}
    return FunctionCall(Kind.TOOL.value, f"amqp.{request.name}", request.effect.value, arguments, prints=False)


# ── A call and what happens meanwhile ───────────────────────────────────────────────────────────────
def _asks_now() -> bool:
    """Whether a method that begins here is a call, not part of another one."""
    return not _is_inside.get() and is_covered("pika") and asking_run(_CLIENTS) is not None


def _ask(connection: Any, description: Callable[[], FunctionCall], method: Callable[[], Any]) -> Any:
    """Make a method of a connection, or of one of its channels, a call."""
    made: list[Any] = []
    is_replayed = stand_ins.is_stand_in(connection)

    def live() -> list[dict[str, Any]]:
        if is_replayed:
            raise refuse(description().name)
        events: list[dict[str, Any]] = []
        impl = connection._impl
        vars(impl)[_HEARD] = events
        try:
            with holding(_is_inside, True):
                made.append(method())
        except Exception as exc:
            vars(exc)[_EVENTS] = events
            raise
        finally:
            vars(impl).pop(_HEARD, None)
        return taken.without_taken(impl, events)

    failed: Exception | None = None
    events: list[dict[str, Any]] | None
    try:
        events = call_sync(description, live)
    except Exception as exc:
        events = vars(exc).pop(_EVENTS, None)
        if not is_replayed or events is None:
            raise
        failed = exc
    if made:
        return made[0]
    try:
        result = _carry_out(connection, description, events or [], method)
    except Exception as exc:
        # pika's own has all that the recorded one lacks, such as messages that came back
        if failed is None or (type(exc), str(exc)) == (type(failed), str(failed)):
            raise
    else:
        if failed is None:
            return result
    raise failed


def _carry_out(
    connection: Any, description: Callable[[], FunctionCall], events: list[dict[str, Any]], method: Callable[[], Any]
) -> Any:
    loop = stand_ins.loop_of(connection._impl)
    if loop is None:
        raise OSError("this connection was made before the replay")
    loop.script = Script(events)
    try:
        with carrying_out(f"tool:{description().name}"), holding(_is_inside, True):
            return method()
    finally:
        loop.script = None


def _asking(request: Request) -> Callable[[Any, Any, Any, Any], Any]:
    def asking(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
        if not _asks_now():
            return wrapped(*args, **kwargs)
        return _ask(
            channel.connection, lambda: _describe(request, wrapped, args, kwargs), lambda: wrapped(*args, **kwargs)
        )

    return asking


def _consume(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    """Consume under a tag that is drawn before the call: messages come with it."""
    if _asks_now() and not args and not kwargs.get(_TAG):
        kwargs = {**kwargs, _TAG: channel._impl._generate_consumer_tag()}
    callback = kwargs.get(_CALLBACK)
    if callback is not None and _asks_now() and taken.is_taken():
        own = taken.take_in_callback(channel, str(kwargs.get("queue")), str(kwargs.get(_TAG)), callback)
        kwargs = {**kwargs, _CALLBACK: own}
    return _consume_call(wrapped, channel, args, kwargs)


_consume_call: Final = _asking(Request("consume", Effect.WRITE))


def _get(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    """Ask for one message."""
    if _asks_now():

        def live() -> Any:
            with holding(_is_inside, True):
                return wrapped(*args, **kwargs)

        queue = str(bind(wrapped, args, kwargs).get("queue"))
        found = taken.take_one(channel, queue, lambda: _describe(_METHODS["basic_get"], wrapped, args, kwargs), live)
        if found is not None:
            return found
    return _get_call(wrapped, channel, args, kwargs)


_get_call: Final = _asking(_METHODS["basic_get"])


def _open_channel(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    if not _asks_now():
        return wrapped(*args, **kwargs)
    request = Request("open_channel", Effect.READ)
    return _ask(connection, lambda: _describe(request, wrapped, args, kwargs), lambda: wrapped(*args, **kwargs))


def _update_secret(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    if not _asks_now():
        return wrapped(*args, **kwargs)
    return _ask(connection, lambda: _SECRET, lambda: wrapped(*args, **kwargs))


def _iterate(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    """Give the messages of a queue."""
    if not _asks_now() or not taken.is_taken():
        return wrapped(*args, **kwargs)
    given = bind(wrapped, args, kwargs)
    is_idle = given.get("inactivity_timeout") is not None
    return taken.take_each(channel, wrapped(*args, **kwargs), str(given.get("queue")), is_idle=is_idle)


def _stop(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    """Leave the loop over a queue's messages."""
    leave(channel)
    return wrapped(*args, **kwargs)


def _process_events(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    """Wait for messages; in a replay where each is a run of its own, for the recorded one."""
    if stand_ins.is_stand_in(connection) and _asks_now() and taken.is_taken():
        return taken.deliver_each(connection)
    return wrapped(*args, **kwargs)


def _flush(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    """Wait: part of the method that waits, or a call by itself where the program processes events."""
    if not _asks_now():
        return wrapped(*args, **kwargs)
    if taken.is_taken():
        with holding(_is_inside, True):
            return wrapped(*args, **kwargs)
    return _ask(connection, lambda: _WAIT, lambda: wrapped(*args, **kwargs))


# ── What is heard while recording ───────────────────────────────────────────────────────────────────
def _note(impl: Any, event: dict[str, Any] | None) -> None:
    heard = vars(impl).get(_HEARD)
    if heard is not None and event is not None:
        heard.append(event)
        if len(heard) == EVENTS_MAX:
            run = asking_run(_CLIENTS)
            if run is not None:
                run.hole("pika received more at once than is recorded")


def _process_frame(wrapped: Any, impl: Any, args: Any, kwargs: Any) -> Any:
    heard = vars(impl).get(_HEARD)
    if heard is not None and len(heard) < EVENTS_MAX:
        _note(impl, guard.guarded("a frame", hear_frame, args[0] if args else kwargs["frame_value"]))
    return wrapped(*args, **kwargs)


def _lose(wrapped: Any, impl: Any, args: Any, kwargs: Any) -> Any:
    _note(impl, {LOST: args[0] if args else kwargs["error"], "eof": bool(getattr(impl, "_got_eof", False))})
    return wrapped(*args, **kwargs)


def _call_later(wrapped: Any, impl: Any, args: Any, kwargs: Any) -> Any:
    """Number the program's timers."""
    delay, callback = args if len(args) == 2 else (kwargs.get("delay", *args), kwargs["callback"])
    if not isinstance(callback, partial) or stand_ins.loop_of(impl) is not None:
        return wrapped(*args, **kwargs)
    number = vars(impl).setdefault(_TIMERS, 0)
    vars(impl)[_TIMERS] = number + 1

    def due() -> None:
        _note(impl, {TIMER: number})
        callback()

    return wrapped(delay, due)


def _hand_over(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    """Note that a function of another thread is taken."""
    _note(connection._impl, {HANDED: 1})
    return wrapped(*args, **kwargs)


def _now(wrapped: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """Read the clock by which a blocking connection counts how long it has waited; its loop has its own reads."""
    if sys._getframe(1).f_globals.get("__name__") != _BLOCKING or not _asks_now():
        return wrapped(*args, **kwargs)
    with carrying_out("clock:pika.now"):
        now = wrapped(*args, **kwargs)
    return read(_NOW, lambda: now)


_BLOCKING: Final = "pika.adapters.blocking_connection"
_NOW: Final = make_loose("clock", "pika.now")


# ── Connecting ──────────────────────────────────────────────────────────────────────────────────────
def _learn(impl: Any) -> dict[str, Any]:
    parameters = impl.params
    return {
        "properties": dict(impl.server_properties),
        "tune": {"channel_max": parameters.channel_max, "frame_max": parameters.frame_max},
    }


def _first(configs: Any) -> Any:
    """Return the parameters with which a connection that is replayed counts as made."""
    parameters = import_module("pika.connection").Parameters
    if configs is None:
        return parameters()
    return configs if isinstance(configs, parameters) else next(iter(configs), None)


def _describe_connect(parameters: Any) -> FunctionCall:
    vhost = str(getattr(parameters, "virtual_host", "/"))
    made = FunctionCall(Kind.TOOL.value, "amqp.connect", Effect.READ.value, {"vhost": vhost}, prints=False)
    server = {"host": str(getattr(parameters, "host", "")), "port": str(getattr(parameters, "port", ""))}
    return made._replace(beside={"server": server})


def _connect(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    configs = args[0] if args else kwargs.get("configs")
    cls = args[1] if len(args) > 1 else kwargs.get("impl_class")
    if not _asks_now() or (not configs and configs is not None):
        return wrapped(*args, **kwargs)
    made: list[Any] = []

    def live() -> dict[str, Any]:
        made.append(wrapped(*args, **kwargs))
        return guard.guarded("a broker", _learn, made[0]) or {}

    told = call_sync(lambda: _describe_connect(_first(configs)), live)
    return made[0] if made else _make(cls, configs, told)


def _make(cls: Any, configs: Any, told: Mapping[str, Any]) -> Any:
    of_pika = import_module("pika.adapters.select_connection").SelectConnection
    with carrying_out("tool:amqp.connect"):
        return stand_ins.make_connection(cls or of_pika, _first(configs), told)


@covers("pika")
def install(module: Any, patches: Patches) -> None:
    """Patch pika's blocking connections. Raises: AttributeError if they are not as expected."""
    if module.__name__ == "pika.compat":
        patches.wrap(module, "time_now", _now)
        return
    if module.__name__ == "pika.connection":
        patches.wrap(module.Connection, "_process_frame", _process_frame)
        return
    if module.__name__ == "pika.adapters.base_connection":
        require(module.BaseConnection, "_proto_connection_made")
        patches.wrap(module.BaseConnection, "_proto_connection_lost", _lose)
        patches.wrap(module.BaseConnection, "_adapter_call_later", _call_later)
        return
    connection, channel = module.BlockingConnection, module.BlockingChannel
    patches.wrap(connection, "_create_connection", _connect)
    patches.wrap(connection, "_flush_output", _flush)
    patches.wrap(connection, "_on_threadsafe_callback", _hand_over)
    patches.wrap(connection, "channel", _open_channel)
    if hasattr(connection, "update_secret"):
        patches.wrap(connection, "update_secret", _update_secret)
    require(channel, *_METHODS)
    patches.wrap(channel, "_basic_consume_impl", _consume)
    patches.wrap(channel, "consume", _iterate)
    patches.wrap(channel, "cancel", _stop)
    patches.wrap(connection, "process_data_events", _process_events)
    for name, request in _METHODS.items():
        patches.wrap(channel, name, _get if name == "basic_get" else _asking(request))
