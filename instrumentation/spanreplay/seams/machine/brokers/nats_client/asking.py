"""Requests of nats-py as calls, and its messages as plain values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.lanes import outside_calls
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.asked import asking_run
from spanreplay.seams.machine.brokers.carried_out import carrying_out, refuse
from spanreplay.seams.machine.brokers.covered import is_covered

__all__ = ["CLIENTS", "STAND_IN", "ask", "asks_now", "describe", "make_message", "pack_message", "run_own"]

STAND_IN: Final = "_spanreplay_stand_in"
"""Attribute of a client that is connected to nobody."""
CLIENTS: Final = frozenset({"nats-py"})


def asks_now() -> bool:
    """Whether a request that begins here is a call, not part of another one."""
    return is_covered("nats-py") and asking_run(CLIENTS) is not None


def describe(name: str, effect: Effect, arguments: Mapping[str, Any]) -> FunctionCall:
    """Describe a request."""
    return FunctionCall(Kind.TOOL.value, f"nats.{name}", effect.value, dict(arguments) or {"operation": name})


async def ask(
    description: Callable[[], FunctionCall],
    method: Callable[[], Awaitable[Any]],
    pack: Callable[[Any], Any] = lambda _: None,
    unpack: Callable[[Any], Any] | None = None,
    *,
    client: Any = None,
) -> Any:
    """Make a method a call. In a replay, it runs on a client that is connected to nobody, unless `unpack` is given."""
    made: list[Any] = []

    async def live() -> Any:
        if client is not None and vars(client).get(STAND_IN):
            raise refuse(description().name)
        made.append(await method())
        return guard.guarded("an answer of NATS", pack, made[0])

    value = await call_async(lambda: description()._replace(prints=unpack is not None), live)
    if made:
        return made[0]
    if unpack is not None:
        return unpack(value)
    with carrying_out(f"tool:{description().name}"):
        return await method()


def pack_message(message: Any) -> dict[str, Any]:
    """Return a message as a plain value."""
    return {
        "subject": message.subject,
        "reply": message.reply,
        "data": message.data,
        "headers": None if message.headers is None else dict(message.headers),
        "sid": message._sid,
    }


def make_message(client: Any, value: Mapping[str, Any]) -> Any:
    """Return a recorded message as the client makes it of what it receives."""
    subject, reply = value["subject"].encode(), value["reply"].encode()
    return client._build_message(value["sid"], subject, reply, value["data"], value["headers"])


# ── The program's own functions ─────────────────────────────────────────────────────────────────────
def run_own(function: Callable[[], Any]) -> Any:
    """Let a function start what belongs to the program: its tasks are not inside the call that makes them."""
    run = active_run()
    if run is None:
        return function()
    with outside_calls(run.root_lane):
        return function()
