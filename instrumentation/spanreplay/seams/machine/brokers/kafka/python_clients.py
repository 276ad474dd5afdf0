"""Clients of Kafka in Python: each public method that asks or tells the broker something is a call."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import call_async, call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.brokers.kafka.askers import asking_run
from spanreplay.seams.machine.brokers.kafka.calls import CLIENTS, Settings, describe, hide_secrets

_STATE: Final = "_spanreplay_kafka"
_WAITS: Final = re.compile(r"timeout(_ms|_s)?|max_wait_ms|update_offsets")
_READS: Final = re.compile(
    r"(describe|list|get|find|fetch)_.*|.*_(offsets|for_times|metadata)|assignment|assign|bootstrap.*|committed|flush|"
    r"getmany|getone|group_metadata|highwater|last_.*|partitions_for.*|pause|paused|poll|position|resume|seek|seek_to_.*|"
    r"start|stop|close|subscribe|subscription|topics|unsubscribe"
)
"""Methods that change nothing on the broker; all others are taken to."""
_CHANGES: Final = re.compile(r"(alter|delete|reset|remove|incremental)_.*|send_offsets.*")
_PACKAGES: Final = frozenset({"aiokafka", "kafka"})
_CALLBACKS: Final = frozenset({"callback", "listener"})


class State:
    """What is known of one client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.listener: Any = None
        self.is_served = False
        """Whether its connection was never made, because a replay made it."""

    def describe(self, name: str, arguments: Mapping[str, Any], effect: Effect) -> Any:
        """Describe a call of this client."""
        return describe(self.settings, name, arguments, effect)


def state_of(client: Any) -> State | None:
    """Return what is known of a client; None if it was made before its class was patched."""
    found: State | None = vars(client).get(_STATE)
    return found


def note(client: Any, settings: Mapping[str, Any]) -> State:
    """Note the settings of a client that is being made."""
    state = State(Settings(settings))
    state.settings.hide()
    vars(client)[_STATE] = state
    return state


def run_of(client: Any) -> tuple[Run | None, State | None]:
    """Return the run that a use of a client belongs to, and what is known of the client."""
    run, state = asking_run(CLIENTS), state_of(client)
    if run is not None and state is None:
        run.resolver.leave_out("a client of Kafka that was made before recording began was used: it is not recorded")
        return None, None
    return run, state


def effect_of(name: str) -> Effect:
    """What a method may change on the broker."""
    return Effect.READ if _READS.fullmatch(name) and not _CHANGES.fullmatch(name) else Effect.IRREVERSIBLE


def _show(value: Any) -> Any:
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, (set, frozenset)):
        return sorted(map(_show, value), key=repr)
    if type(value) in (list, tuple):
        return [_show(each) for each in value]
    if type(value) is dict:
        return [[_show(name), _show(each)] for name, each in value.items()]
    if type(value).__module__.partition(".")[0] in _PACKAGES and hasattr(value, "__dict__"):
        return {"class": type(value).__qualname__, **{name: _show(each) for name, each in vars(value).items()}}
    return value


def bind(function: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments that are compared, by name; those that don't fit, as they are."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = {"*": list(args), **kwargs}
    return {
        name: hide_secrets(_show(value))
        for name, value in given.items()
        if value is not None and not _WAITS.fullmatch(name) and not (name in _CALLBACKS and value is not None)
    }


def _call(name: str) -> Callable[[Any, Any, Any, Any], Any]:
    effect = effect_of(name)

    def call(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        run, state = run_of(client)
        if run is None or state is None:
            return wrapped(*args, **kwargs)
        return call_sync(
            lambda: state.describe(name, bind(wrapped, client, args, kwargs), effect), lambda: wrapped(*args, **kwargs)
        )

    return call


def _call_async(name: str) -> Callable[[Any, Any, Any, Any], Any]:
    effect = effect_of(name)

    async def call(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        run, state = run_of(client)
        if run is None or state is None:
            return await wrapped(*args, **kwargs)

        async def live() -> Any:
            with plumbing():
                return await wrapped(*args, **kwargs)

        return await call_async(lambda: state.describe(name, bind(wrapped, client, args, kwargs), effect), live)

    return call


def subscribing(listen: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any, Any], Any]:
    """Return what makes `subscribe` a call; `listen(state, run, listener)` returns what is told of partitions."""

    def subscribe(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
        run, state = run_of(consumer)
        if run is None or state is None:
            return wrapped(*args, **kwargs)
        shown = bind(wrapped, consumer, args, kwargs)
        given = {**dict(zip(_OF_SUBSCRIBE, args, strict=False)), **kwargs}
        if given.get("listener") is not None:
            given["listener"] = listen(state, run, given["listener"])
        return call_sync(lambda: state.describe("subscribe", shown, Effect.READ), lambda: wrapped(**given))

    return subscribe


_OF_SUBSCRIBE: Final = ("topics", "pattern", "listener")


def later(delivery: Coroutine[Any, Any, Any]) -> Any:
    """Return a task of a message's delivery; nobody hears of it who does not wait for it, as of a client's future."""
    task = asyncio.get_running_loop().create_task(delivery)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # the client's own future says nothing
    task.add_done_callback(_see)
    return task


def _see(task: Any) -> None:
    if not task.cancelled():
        task.exception()


def patch_methods(cls: type, patches: Patches, special: Mapping[str, Callable[..., Any]], *, inside: str = "") -> None:
    """Patch each public method of a client's class: by a function of its own, or as a call like any other.

    `inside` are those that stay as they are: they give the client's own knowledge, or call others.
    """
    own = frozenset(inside.split())
    for name, member in list(vars(cls).items()):
        if name in special:
            patches.wrap(cls, name, special[name])
        elif not name.startswith("_") and name not in own and inspect.isfunction(member):
            patches.wrap(cls, name, _call_async(name) if inspect.iscoroutinefunction(member) else _call(name))
