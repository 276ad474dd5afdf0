"""A command and its reply as one call: `sendall` keeps the message, `receive_message` makes the call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.calls.open_call import is_plumbing, is_suppressed
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine.databases.mongodb import messages
from spanreplay.seams.machine.databases.mongodb.messages import Message
from spanreplay.seams.machine.databases.mongodb.stand_ins import is_stand_in

__all__ = ["calling_run", "install", "own"]

_PENDING: Final = "_spanreplay_pending"
_OWN: Final = Message(0, {}, True)
"""Stands for a command of the client's own in a replay, such as the end of its sessions."""
_DONE: Final = {"reply": {"ok": 1.0}}
_owners: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
"""Socket or protocol → a reference to its connection."""


def calling_run() -> Run | None:
    """Return the run to which a command here adds a call; None in the client's own work."""
    run = recorded_run()
    return None if run is None or is_plumbing(run) else run


def own(connection: Any) -> Any:
    """Note a connection of a pool: what is sent through it is a call. Returns the connection."""
    _owners[_way(connection)] = ref(connection)
    return connection


def _refuse(name: str) -> Exception:
    from pymongo.errors import InvalidOperation

    return InvalidOperation(f"this connection is replayed: {name} can't run live on it")


def _take(way: Any, raw: Any) -> tuple[Any, Message] | None:
    """Return the connection and the command, if it is a call here or has to be kept from being sent."""
    owner = _owners.get(way)
    connection = None if owner is None else owner()
    if connection is None or not connection.ready:
        return None
    run = calling_run()
    if run is None:
        return _take_outside(connection)
    try:
        message = messages.parse(raw)
    except Exception:  # noqa: BLE001 -- whatever bson objects to: the server may take it
        message = None
    if message is None:
        run.resolver.leave_out("a message to MongoDB was of a kind that is not recorded")
        return None
    return connection, message


def _take_outside(connection: Any) -> tuple[Any, Message] | None:
    """Return a command that is no call of the agent, if a replay has to keep it from being sent."""
    run = active_run()
    if run is not None and is_plumbing(run):
        return (connection, _OWN) if is_stand_in(connection) else None
    if run is not None and is_suppressed() and current_crossing(run.root_lane) is None:
        run.resolver.leave_out("a command was sent to MongoDB where instrumentation is suppressed")
    if is_stand_in(connection):
        raise _refuse("a command")
    return None


def _describe(message: Message) -> FunctionCall:
    from pymongo import _csot

    return messages.describe(message, is_timed=_csot.get_timeout() is not None)


def _awaits(connection: Any, request_id: Any) -> bool:
    """Whether a batch that was not asked for is received: the next one of an exhaust cursor."""
    return request_id is None and connection.ready and calling_run() is not None


def _way(connection: Any) -> Any:
    """Return the socket or protocol of a connection."""
    return getattr(connection.conn, "get_conn", connection.conn)


# ── Sync ────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def _carrier(connection: Any) -> Iterator[Any]:
    """A block with a connection for a live call: a new one where a replay has none."""
    if not is_stand_in(connection):
        yield connection
        return
    made = connection.pool_ref().connect()
    try:
        yield made
    finally:
        made.close_conn(None)


def _send(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    taken = _take(*args)
    if taken is None:
        return wrapped(*args)
    connection, message = taken

    def send(carrier: Any) -> None:
        wrapped(_way(carrier), args[1])

    def live() -> None:
        with _carrier(connection) as carrier:
            send(carrier)

    if message.has_reply:
        vars(connection)[_PENDING] = message, send
    else:
        call_sync(lambda: _describe(message), live)
    return None


def _receive(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    connection = args[0]
    message, send = vars(connection).pop(_PENDING, (None, None))
    if message is _OWN:
        return messages.build_reply(_DONE)
    if message is None and not _awaits(connection, args[1]):
        return wrapped(*args, **kwargs)
    made: list[Any] = []

    def live() -> Any:
        if send is None and is_stand_in(connection):
            raise _refuse("getMore")
        with _carrier(connection) as carrier:
            if send is not None:
                send(carrier)
            made.append(wrapped(carrier, *args[1:], **kwargs))
        return messages.show_reply(made[0])

    value = call_sync(lambda: messages.describe_awaited() if message is None else _describe(message), live)
    return made[0] if made else messages.build_reply(value)


# ── On an event loop ────────────────────────────────────────────────────────────────────────────────
@asynccontextmanager
async def _carrier_async(connection: Any) -> AsyncIterator[Any]:
    """As `_carrier`, on an event loop."""
    if not is_stand_in(connection):
        yield connection
        return
    made = await connection.pool_ref().connect()
    try:
        yield made
    finally:
        await made.close_conn(None)


async def _send_async(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    taken = _take(*args)
    if taken is None:
        return await wrapped(*args)
    connection, message = taken

    async def send(carrier: Any) -> None:
        await wrapped(_way(carrier), args[1])

    async def live() -> None:
        async with _carrier_async(connection) as carrier:
            await send(carrier)

    if message.has_reply:
        vars(connection)[_PENDING] = message, send
    else:
        await call_async(lambda: _describe(message), live)
    return None


async def _receive_async(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    connection = args[0]
    message, send = vars(connection).pop(_PENDING, (None, None))
    if message is _OWN:
        return messages.build_reply(_DONE)
    if message is None and not _awaits(connection, args[1]):
        return await wrapped(*args, **kwargs)
    made: list[Any] = []

    async def live() -> Any:
        if send is None and is_stand_in(connection):
            raise _refuse("getMore")
        async with _carrier_async(connection) as carrier:
            if send is not None:
                await send(carrier)
            made.append(await wrapped(carrier, *args[1:], **kwargs))
        return messages.show_reply(made[0])

    value = await call_async(lambda: messages.describe_awaited() if message is None else _describe(message), live)
    return made[0] if made else messages.build_reply(value)


_FUNCTIONS: Final = ("sendall", "async_sendall", "receive_message", "async_receive_message")
"""Functions that send and receive bytes, by the names under which a module of pymongo has them."""


def install(module: Any, patches: Patches, *, is_async: bool) -> None:
    """Patch the functions by which a module sends and receives."""
    for name in _FUNCTIONS:
        function = getattr(module, name, None)
        if function is None or getattr(function, "_self_wrapper", None) in (
            _send,
            _receive,
            _send_async,
            _receive_async,
        ):
            continue
        sends = name.endswith("sendall")
        if is_async:
            patches.wrap(module, name, _send_async if sends else _receive_async)
        else:
            patches.wrap(module, name, _send if sends else _receive)
