"""What an MCP server tells and asks its client while a call runs: progress, logs, questions for a person or a model.

These messages are inputs of the agent, kept with the call that runs (`runtime/calls/passed.py`). A replay gives them to
the session again, whose own code calls the agent's callbacks. What the session answers to a question is a call of its
own, so that another answer is a difference.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls import passed
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.calls.open_call import no_plumbing
from spanreplay.runtime.lanes import Lane, current_crossing, current_lane, inside_lane
from spanreplay.runtime.run import active_run

__all__ = ["Heard", "answer", "find", "make", "note"]

_LABEL: Final = "mcp:heard"
_PROGRESS: Final = "notifications/progress"
_PATIENCE_S: Final = 30.0
"""How long a replay waits at most until the agent's callbacks have dealt with a message."""


class Heard:
    """What one client session hears from its server; used by one event loop."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._calls: dict[Any, Any] = {}
        """Id of a request → its call, for those in flight."""
        self._last: Any = None
        self.message = _Message()
        """The latest."""

    # ── while recording ─────────────────────────────────────────────────────────────────────────────
    async def follow(self, request_id: Any, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send a request; what the server sends meanwhile belongs to this call."""
        run = active_run()
        self._last = self._calls[request_id] = None if run is None else current_crossing(run.root_lane)
        try:
            return await send()
        finally:
            self._calls.pop(request_id, None)

    def note(self, message: dict[str, Any]) -> None:
        """Keep a message of the server with the call that it is about, else with the latest in flight, or the last."""
        run = active_run()
        about = (message.get("params") or {}).get("progressToken") if message.get("method") == _PROGRESS else None
        crossing = self._calls.get(about) or next(reversed(self._calls.values()), None) or self._last
        self.message = _Message()
        if run is not None and crossing is not None:
            self.message.row = passed.keep(run, crossing, "", passed.MESSAGE, message)

    # ── handlers ────────────────────────────────────────────────────────────────────────────────────
    def in_lane(self, handle: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the handler of the latest message in a lane of its own, whoever has sent the message."""
        lane, message = self._lane.child(_LABEL), self.begin()

        @functools.wraps(handle)
        async def run(*args: Any) -> None:
            try:
                with inside_lane(lane), no_plumbing():
                    await handle(*args)
            finally:
                message.settle()

        return run

    def begin(self) -> _Message:
        """Note that the latest message is about to be dealt with, once more; return it."""
        self.message.busy += 1
        return self.message

    # ── in a replay ─────────────────────────────────────────────────────────────────────────────────
    def expect(self) -> _Message:
        """Note that the recording is about to give a message; return it."""
        self.message = _Message()
        return self.message


class _Message:
    """One message while it is dealt with."""

    def __init__(self) -> None:
        self.row: list[Any] | None = None
        """What is kept of it with its call."""
        self.busy = 0
        """How many handlers work on it."""
        self._idle: Any = None

    def settle(self) -> None:
        """Note that one handler has ended."""
        self.busy -= 1
        if self.busy > 0:
            return
        if self.row is not None:  # no effect if the call has ended before, and is written
            self.row[1] = passed.HEARD
        if self._idle is not None:
            self._idle.set()

    async def wait(self) -> None:
        """Wait until the handlers have ended."""
        import anyio

        if self.busy > 0:
            self._idle = anyio.Event()
            with anyio.move_on_after(_PATIENCE_S):
                await self._idle.wait()


_heard: Final[WeakKeyDictionary[Any, Heard]] = WeakKeyDictionary()


def make(owner: Any) -> None:
    """Begin to keep what a session's owner (itself, or its dispatcher) hears."""
    run = active_run()
    if run is not None:
        _heard[owner] = Heard(current_lane(run.root_lane))


def find(owner: Any) -> Heard | None:
    """Return what `make` made, while something is recorded or replayed."""
    return None if active_run() is None else _heard.get(owner)


def _is_from_server(message: Any) -> bool:
    """Whether a message is the server's own, no answer to a request."""
    return hasattr(message, "method")


def note(heard: Heard, message: Any) -> None:
    """Keep a message; in a replay, this one is given by the recording."""
    run = active_run()
    if run is not None and run.resolver.keeps and _is_from_server(message):
        shown = message.model_dump(by_alias=True, mode="json", exclude_none=True)
        guard.guarded("keeping a message of an MCP server", heard.note, shown)


async def answer(method: str, params: Any, given: dict[str, Any]) -> None:
    """Record, or compare, what a session answers to its server's request."""
    arguments = {"method": method, "params": params, "answer": given}
    call = FunctionCall(Kind.MCP.value, method, Effect.WRITE.value, arguments)
    await call_async(lambda: call, _nothing)


async def _nothing() -> None:
    return None
