"""Steps before a command, each a read: a name is looked up, a server selected, a connection checked out.

While recording, what a step found is read before the lane's next call, as a text. A step that fails is a call with its
exception. In a replay, a step is not made: what it found is made of the recorded text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from spanreplay.model import guard, ids
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.reads import Source, make_loose
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases.mongodb.commands import calling_run
from spanreplay.seams.machine.databases.postgres import is_replayed_here

__all__ = ["CONNECT", "HOSTS", "OPTIONS", "SELECT", "Step", "Way", "make", "make_async"]

_FAILED: Final = ""
"""The text of a step that raised: a call with its exception follows."""


class Step(NamedTuple):
    """A kind of step."""

    name: str
    """Of the call that a failure is."""
    source: Source


HOSTS: Final = Step("resolve", make_loose("environment", "pymongo.hosts"))
OPTIONS: Final = Step("resolve", make_loose("environment", "pymongo.options"))
SELECT: Final = Step("select_server", make_loose("environment", "pymongo.server"))
CONNECT: Final = Step("connect", make_loose("environment", "pymongo.connection"))


class Way(NamedTuple):
    """How one step is made."""

    describe: Callable[[Any], str]
    """What it found → its text."""
    build: Callable[[str], Any]
    """The text → what it found, in a replay; a coroutine of it on an event loop."""
    default: Callable[[], str]
    """Returns the text of a step that the recording does not have."""
    operation: str = ""


def _describe_failure(step: Step, operation: str) -> FunctionCall:
    arguments = {"operation": operation} if operation else {}
    return FunctionCall(Kind.TOOL.value, f"pymongo.{step.name}", Effect.READ.value, arguments)


def _make_missing() -> Exception:
    """Return the exception of a failure that a replay makes live: there is nobody to ask."""
    from pymongo.errors import ServerSelectionTimeoutError

    return ServerSelectionTimeoutError("this client is replayed: no server is asked")


def make(step: Step, way: Way, live: Callable[[], Any]) -> Any:
    """Make a step, or serve what was recorded of it."""
    is_noted = calling_run() is not None
    if is_replayed_here():
        text = str(read(step.source, way.default)) if is_noted else way.default()
        if text == _FAILED:
            _fail(step, way.operation, _make_missing())
        with plumbing():
            return way.build(text)
    began_ns = ids.now_ns()
    try:
        with plumbing():
            found = live()
    except BaseException as exc:
        if is_noted:
            read(step.source, lambda: _FAILED)
            _fail(step, way.operation, exc, began_ns)
        raise
    if is_noted:
        guard.guarded("a server of MongoDB", read, step.source, lambda: way.describe(found))
    return found


def _set_back(began_ns: int) -> None:
    """Let the running call begin when its step did: a replay waits as long."""
    run = active_run()
    crossing = None if run is None else current_crossing(run.root_lane)
    if crossing is not None and began_ns:
        crossing.start_ns = began_ns


def _fail(step: Step, operation: str, exc: BaseException, began_ns: int = 0) -> None:
    def live() -> None:
        _set_back(began_ns)
        raise exc

    call_sync(lambda: _describe_failure(step, operation), live)


async def make_async(step: Step, way: Way, live: Callable[[], Awaitable[Any]]) -> Any:
    """As `make`, on an event loop."""
    is_noted = calling_run() is not None
    if is_replayed_here():
        text = str(read(step.source, way.default)) if is_noted else way.default()
        if text == _FAILED:
            await _fail_async(step, way.operation, _make_missing())
        with plumbing():
            return await way.build(text)
    began_ns = ids.now_ns()
    try:
        with plumbing():
            found = await live()
    except BaseException as exc:
        if is_noted:
            read(step.source, lambda: _FAILED)
            await _fail_async(step, way.operation, exc, began_ns)
        raise
    if is_noted:
        guard.guarded("a server of MongoDB", read, step.source, lambda: way.describe(found))
    return found


async def _fail_async(step: Step, operation: str, exc: BaseException, began_ns: int = 0) -> None:
    async def live() -> None:
        _set_back(began_ns)
        if isinstance(exc, Exception):
            await asyncio.sleep(0)  # it did not come at once: a replay waits for its turn
        raise exc

    await call_async(lambda: _describe_failure(step, operation), live)
