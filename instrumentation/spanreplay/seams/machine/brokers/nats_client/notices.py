"""What a NATS client tells the program's functions by itself: connections that are lost, made again, closed; errors.

Each is a call in a lane of its own, which ends when it happens. In a replay the functions are called as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.lanes import current_crossing, outside_calls
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.brokers.nats_client.asking import describe

__all__ = ["Notices", "close_notices", "end_notices", "start_notices"]

_STATES: Final[Mapping[str, str]] = {
    "disconnected_cb": "RECONNECTING", "reconnected_cb": "CONNECTED", "closed_cb": "CLOSED",
}  # fmt: skip
"""Function → the client's state when it is called."""
_Callback = Callable[..., Awaitable[Any]]
_notices: Final[WeakKeyDictionary[Any, Notices]] = WeakKeyDictionary()


class Notices:
    """Calls the functions that a program gave to a client, outside of the client's own tasks."""

    def __init__(self, callbacks: Mapping[str, _Callback]) -> None:
        self._callbacks = callbacks
        self._told: asyncio.Queue[tuple[str, tuple[Any, ...], asyncio.Future[None]] | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.is_closing = False
        """Whether the program itself ends the connection."""

    def wrap(self, name: str) -> _Callback:
        """Return what the client calls instead of a function."""

        async def call(*args: Any) -> Any:
            run = active_run()
            crossing = None if run is None else current_crossing(run.root_lane)
            if run is None or crossing is None or self._task is None or self._task.done():
                return await self._callbacks[name](*args)
            if self.is_closing:
                with outside_calls(run.root_lane):
                    return await self._callbacks[name](*args)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._told.put_nowait((name, args, done))
            return await done

        return call

    def start(self, client: Any) -> None:
        """Begin to call functions, in the lane of the code that connects."""
        self._task = asyncio.get_running_loop().create_task(self._pump(client))

    async def end(self) -> None:
        """Call none any more."""
        self._told.put_nowait(None)
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def _pump(self, client: Any) -> None:
        while True:
            given: list[tuple[str, tuple[Any, ...], asyncio.Future[None]]] = []

            async def live(given: list[Any] = given) -> Any:
                told = await self._told.get()
                if told is None:
                    return None
                given.append(told)
                return {"name": told[0], "args": list(told[1])}

            value = await call_async(_describe, live)
            if value is None:
                return
            if given:
                await _call(self._callbacks[given[0][0]], *given[0][1:])
                continue
            client._status = getattr(type(client), _STATES.get(value["name"], ""), client._status)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await _call(self._callbacks[value["name"]], tuple(value["args"]), done)
            done.exception()  # the client would hear of it


async def _call(callback: _Callback, args: tuple[Any, ...], done: asyncio.Future[None]) -> None:
    """Call a function, and tell the client how it ended."""
    try:
        done.set_result(await callback(*args))
    except Exception as exc:  # noqa: BLE001 -- the client handles it
        done.set_exception(exc)


def _describe() -> FunctionCall:
    return describe("notice", Effect.READ, {})


def start_notices(client: Any, notices: Notices) -> None:
    """Let a client that is connected tell the program."""
    _notices[client] = notices
    notices.start(client)


def close_notices(client: Any) -> None:
    """Note that the program itself ends the connection."""
    if client in _notices:
        _notices[client].is_closing = True


async def end_notices(client: Any) -> None:
    """End the notices of a client that the program has closed."""
    notices = _notices.pop(client, None)
    if notices is not None:
        await notices.end()
