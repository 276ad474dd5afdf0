"""What the agent does with the connections and cursors of an asynchronous driver, as calls.

As in `dbapi_calls.py`, with methods that are coroutines. A driver's awaitable is a `Pending`: to await it is a call, in
the task that does so; to leave its `async with` block closes what it gave, or gives it back.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import call_async
from spanreplay.runtime.context_variables import set_variable
from spanreplay.seams.machine.databases import dbapi_values as values
from spanreplay.seams.machine.databases.dbapi_arguments import held_arguments
from spanreplay.seams.machine.databases.dbapi_calls import (
    FETCHES,
    Asking,
    ask,
    before_call,
    close,
    count_together,
    describe_ask,
    describe_rows,
    joined,
    real_of,
    take_pending,
    wanted_rows,
)
from spanreplay.seams.machine.databases.dbapi_family import Behind, behind
from spanreplay.seams.machine.databases.dbapi_setup import SetUp
from spanreplay.seams.machine.effects import describe_effect

__all__ = ["Pending", "act", "call_method", "close_root", "enter", "is_coroutine", "iterate", "leave", "pend", "within"]

_CLOSES: Final = ("close", "ensure_closed")
_MARK: Final = "_is_coroutine"
"""Attribute by which coroutine functions of Cython pass as such; False for its other functions."""

within: Final[ContextVar[bool]] = ContextVar("spanreplay_within_a_driver", default=False)
"""Whether a driver acts on our behalf: the connections that its pools make meanwhile are its own."""


async def act(live: Callable[[], Awaitable[Any]]) -> Any:
    """Let a driver act on our behalf."""
    before = within.get()
    set_variable(within, True)
    try:
        return await live()
    finally:
        set_variable(within, before)  # not by its token: a coroutine may be closed in another context


def is_coroutine(function: Any) -> bool:
    """Whether a function is a coroutine function."""
    return inspect.iscoroutinefunction(function) or bool(getattr(function, _MARK, False))


async def _resolve(
    held: Behind, what: str, describe: Callable[[], Any], live: Callable[[], Awaitable[Any]], *, is_setup: bool
) -> Any:
    """Ask the driver's object inside a call, or serve what was recorded."""
    asking = Asking(held, what)

    async def run_live() -> Any:
        asking.insist()
        return asking.record(await act(live))

    try:
        if recorded_run() is None:
            return asking.give(await run_live())
        answer = await _call(held.family.setup, describe, run_live, is_setup=is_setup)
    except BaseException:
        held.state.clear()  # whatever it is now
        raise
    return asking.give(answer)


async def _call(
    setup: SetUp | None, describe: Callable[[], Any], live: Callable[[], Awaitable[Any]], *, is_setup: bool
) -> Any:
    if setup is None:
        return await call_async(describe, live)
    return await setup.call_async(describe, live, is_setup=is_setup)


def _is_setup(held: Behind, what: str) -> bool:
    """Whether a call that begins now sets a connection up; the code that makes it may soon be on no stack."""
    setup = held.family.setup
    return setup is not None and setup.is_open(what)


# ── Methods ─────────────────────────────────────────────────────────────────────────────────────────
def call_method(stand_in: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method: return a coroutine, or what another method returns."""
    held = behind(stand_in)
    if name == "release":
        for each in (*args, *kwargs.values()):
            _give_back(held, each)
    is_closing = name in _CLOSES and not held.is_closed and not args and not kwargs
    if not is_coroutine(held.find(name)) and not (name in FETCHES and held.pending):
        return close(held, lambda: held.real.close()) if is_closing else ask(stand_in, name, args, kwargs)
    if is_closing:
        return _close(held, lambda: getattr(held.real, name)())
    is_setup = _is_setup(held, name)
    if name in FETCHES and not kwargs:
        return _fetch(stand_in, name, args, is_setup=is_setup)
    return _ask(held, name, args, kwargs, is_setup=is_setup)


def _give_back(held: Behind, connection: Any) -> None:
    """Note that a connection is given back to its pool."""
    if values.is_held(connection):
        held.family.holders.pop(behind(connection).number, None)


async def _ask(held: Behind, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_setup: bool) -> Any:
    args = before_call(held, name, args, kwargs)

    def live() -> Any:
        given, named = held_arguments(args, kwargs, real_of)
        return getattr(held.real, name)(*given, **named)

    return await _resolve(held, name, lambda: describe_ask(held, name, args, kwargs), live, is_setup=is_setup)


async def _close(held: Behind, live: Callable[[], Awaitable[Any]]) -> Any:
    """Close for the first time: no call for a cursor, and part of the set-up for a connection."""
    held.is_closed = True
    if held.is_cursor:
        return await live() if held.real is not None else None
    setup = held.family.setup
    driver = held.family.driver.name if setup is None else setup.driver

    def describe() -> Any:
        described = describe_effect(f"{driver}.setup.close", {"operation": "close"}, Effect.READ)
        return described._replace(beside={"driver": driver})

    return await _resolve(held, "close", describe, live, is_setup=False)


# ── Blocks, awaitables ──────────────────────────────────────────────────────────────────────────────
def enter(stand_in: Any) -> Coroutine[Any, Any, Any]:
    """Enter `async with` a connection, cursor or another object."""
    held = behind(stand_in)
    if held.is_cursor:
        return _enter_cursor(stand_in, held)
    return _ask(held, "__aenter__", (), {}, is_setup=_is_setup(held, "__aenter__"))


async def _enter_cursor(stand_in: Any, held: Behind) -> Any:
    if held.real is not None:
        await held.real.__aenter__()
    return stand_in


def leave(stand_in: Any, kind: Any, value: Any, trace: Any) -> Coroutine[Any, Any, Any]:
    """Leave it."""
    held = behind(stand_in)
    if held.is_cursor:
        return _close(held, lambda: held.real.__aexit__(kind, value, trace))
    held.is_closed = True
    return _leave(held, kind, lambda: held.real.__aexit__(kind, value, trace))


def _leave(held: Behind, kind: Any, live: Callable[[], Awaitable[Any]]) -> Coroutine[Any, Any, Any]:
    """Leave an `async with` block, whose end may commit, or give a connection back to its pool."""
    shown = {"error": "" if kind is None else kind.__name__}
    described = describe_effect(f"{held.prefix}.exit", shown)
    return _resolve(held, "exit", lambda: described, live, is_setup=_is_setup(held, "__aexit__"))


class Pending(Coroutine[Any, Any, Any]):
    """Stands for an awaitable of a driver."""

    __slots__ = ("_ask", "_began", "_entered", "_leave", "_make", "_real")

    def __init__(
        self,
        make: Callable[[], Any],
        ask: Callable[[Callable[[], Awaitable[Any]]], Coroutine[Any, Any, Any]],
        leave: Callable[[Any, Any, Callable[[], Awaitable[Any]]], Coroutine[Any, Any, Any]],
    ) -> None:
        """`make` gives the driver's own; `ask` and `leave` make calls of what is done with it."""
        self._make, self._ask, self._leave = make, ask, leave
        self._began: Coroutine[Any, Any, Any] | None = None
        self._entered: Any = None
        self._real: Any = None

    async def _live(self, *, enters: bool) -> Any:
        self._real = self._make()
        return await (self._real.__aenter__() if enters else self._real)

    def _begin(self, *, enters: bool = False) -> Coroutine[Any, Any, Any]:
        if self._began is None:
            self._began = self._ask(lambda: self._live(enters=enters))
        return self._began

    def __await__(self) -> Any:
        return self._begin().__await__()

    def send(self, value: Any) -> Any:
        """Go on."""
        return self._begin().send(value)

    def throw(self, *args: Any) -> Any:
        """Go on with an exception."""
        return self._begin().throw(*args)

    def close(self) -> None:
        """End it."""
        if self._began is not None:
            self._began.close()

    def __aenter__(self) -> Coroutine[Any, Any, Any]:
        return self._enter(self._begin(enters=True))

    async def _enter(self, began: Coroutine[Any, Any, Any]) -> Any:
        self._entered = await began
        return self._entered

    def __aexit__(self, kind: Any, value: Any, trace: Any) -> Coroutine[Any, Any, Any]:
        entered, self._entered = self._entered, None
        return self._leave(entered, kind, lambda: self._real.__aexit__(kind, value, trace))


async def _give(result: Any) -> Any:
    return result


def pend(held: Behind, what: str, real: Any, result: list[Any] | None) -> Pending:
    """Return what stands for an awaitable that a method or attribute gave; `result` is that of one that is done."""

    def ask_for(live: Callable[[], Awaitable[Any]]) -> Coroutine[Any, Any, Any]:
        if result is not None:
            return _give(result[0])
        described = describe_effect(f"{held.prefix}.{what}", {"awaited": what}, Effect.READ)
        return _resolve(held, what, lambda: described, live, is_setup=_is_setup(held, what))

    def leave_it(entered: Any, kind: Any, live: Callable[[], Awaitable[Any]]) -> Coroutine[Any, Any, Any]:
        if values.is_held(entered) and behind(entered).is_cursor:
            return _close(behind(entered), live)
        _give_back(held, entered)
        return _leave(held, kind, live)

    return Pending(lambda: real, ask_for, leave_it)


def close_root(stand_in: Any, live: Callable[[], Awaitable[Any]]) -> Coroutine[Any, Any, Any]:
    """Close a connection or pool at the end of the block that made it."""
    return _close(behind(stand_in), live)


# ── Rows ────────────────────────────────────────────────────────────────────────────────────────────
async def _fetch(stand_in: Any, name: str, args: tuple[Any, ...], *, is_setup: bool) -> Any:
    """Return rows: first those that were read already."""
    held = behind(stand_in)
    if name == "fetchone":
        return held.pending.pop() if held.pending else await _next_row(held, is_setup=is_setup)
    if not held.pending:
        return await _ask(held, name, args, {}, is_setup=is_setup)
    size = None if name == "fetchall" else wanted_rows(stand_in, args)
    left = take_pending(held, size)
    given = args if size is None else (max(size - len(left), 1),)
    rest = await _ask(held, name, given, {}, is_setup=is_setup)
    if len(left) == size:  # the driver was only asked for its type of sequence
        held.pending = [*reversed(rest), *held.pending]
        rest = rest[:0]
    return joined(left, rest)


async def _next_row(held: Behind, *, is_setup: bool) -> Any:
    """Return the next row; with it further ones are read, the more the longer this goes on."""
    count = count_together(held)

    async def live() -> Any:
        found: list[Any] = []
        while len(found) < count:
            row = await held.real.fetchone()
            found.append(row)
            if row is None:
                break
        return found

    rows = await _resolve(held, "fetchone", lambda: describe_rows(held, "fetchone", count), live, is_setup=is_setup)
    held.pending = rows[:0:-1]
    return rows[0]


async def iterate(stand_in: Any) -> Any:
    """Return the next row of a cursor, or the next value of another object. Raises: StopAsyncIteration."""
    held = behind(stand_in)
    if held.is_cursor:
        row = await _fetch(stand_in, "fetchone", (), is_setup=_is_setup(held, "__anext__"))
        if row is None:
            raise StopAsyncIteration
        return row

    async def live() -> Any:
        if held.rows is None:
            held.rows = aiter(held.real)
        return [each async for each in _first(held.rows)]

    found = await _resolve(held, "rows", lambda: describe_rows(held, "next", 1), live, is_setup=False)
    if not found:
        held.rows = None
        raise StopAsyncIteration
    return found[0]


async def _first(rows: Any) -> Any:
    try:
        yield await anext(rows)
    except StopAsyncIteration:
        return
