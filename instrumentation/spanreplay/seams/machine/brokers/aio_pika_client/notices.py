"""What aio-pika tells the program's functions by itself: connections and channels that are lost, or are there again.

Each is a call in a lane of its function, which ends when it happens. In a replay the function is called as it was.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model.call import Effect, Kind
from spanreplay.model.own_threads import living
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases.postgres import is_replayed_here

__all__ = ["end_notices", "hear_of"]

_told: Final[WeakKeyDictionary[Any, list[Told]]] = WeakKeyDictionary()
"""Connection or channel → who hears of it."""
_NOTICE: Final = FunctionCall(Kind.TOOL.value, "amqp.notice", Effect.READ.value, {"operation": "notice"})


class Told:
    """One of the program's functions in a collection of aio-pika's; equal to the function."""

    def __init__(self, callback: Callable[..., Any], sender: Any) -> None:
        self._callback = callback
        self._happened: asyncio.Queue[tuple[tuple[Any, ...], asyncio.Future[None]] | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._pump(sender))

    def __eq__(self, other: object) -> bool:
        return self._callback == (other._callback if isinstance(other, Told) else other)

    def __hash__(self) -> int:
        return hash(self._callback)

    def __call__(self, sender: Any, *args: Any) -> Any:
        run = active_run()
        crossing = None if run is None else current_crossing(run.root_lane)
        if run is None or crossing is None or self._task.done():
            return self._callback(sender, *args)
        if is_replayed_here():
            return None  # the recording says when
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._happened.put_nowait((args, done))
        return done

    async def end(self) -> None:
        """Call the function no more."""
        self._happened.put_nowait(None)
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def _pump(self, sender: Any) -> None:
        while True:
            given: list[tuple[tuple[Any, ...], asyncio.Future[None]]] = []

            async def live(given: list[Any] = given) -> Any:
                happened = await self._happened.get()
                if happened is None:
                    return None
                given.append(happened)
                return list(happened[0])

            value = await call_async(lambda: _NOTICE, live)
            if value is None:
                return
            args, done = given[0] if given else (tuple(value), None)
            try:
                result = self._callback(sender, *args)
                if inspect.isawaitable(result):
                    await result
            except Exception as exc:  # noqa: BLE001 -- aio-pika logs it
                if done is not None:
                    done.set_exception(exc)
            else:
                if done is not None:
                    done.set_result(None)


def _is_of_client(callback: Any) -> bool:
    function = getattr(callback, "__func__", callback)
    return any(str(getattr(each, "__module__", "")).startswith("aio_pika") for each in (function, type(callback)))


def hear_of(sender: Any, callback: Any) -> Any:
    """Return what a collection calls for one of the program's functions; the client's own stay as they are."""
    if sender is None or _is_of_client(callback):
        return callback
    try:
        made = Told(callback, sender)
    except RuntimeError:  # no event loop runs
        return callback
    _told.setdefault(sender, []).append(made)
    return made


async def end_notices(owner: Any) -> None:
    """End what hears of a connection, with its channels, or of a channel."""
    for sender in living(_told):
        if sender is owner or getattr(sender, "_connection", None) is owner:
            for each in _told.pop(sender, ()):
                await each.end()
