"""Declared generators, sync and async: items, values sent and exceptions thrown in, and how they end."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import spanreplay
from spanreplay.model.errors import ReplayMiss
from spanreplay.replayer.resolve.plan import Plan
from support.in_process import recorded, replayed


class Log:
    """A log of the bodies' work; a replay must add nothing."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @spanreplay.boundary("tool", name="inner")
    def inner(self) -> None:
        """A call made by a body."""
        self.lines.append("inner")

    @spanreplay.boundary("tool", name="count")
    def count(self, limit: int) -> Generator[Any, Any, str]:
        """Yield numbers; answer values sent and exceptions thrown in."""
        self.lines.append("body")
        n = 0
        try:
            while n < limit:
                try:
                    sent = yield n
                except ValueError as exc:
                    sent = f"caught {exc}"
                if sent is not None:
                    self.lines.append(str(sent))
                    n += 10
                n += 1
        finally:
            self.inner()
        return f"end {n}"

    @spanreplay.boundary("tool", name="acount")
    async def acount(self, limit: int) -> AsyncGenerator[Any, Any]:
        """The same, async."""
        self.lines.append("body")
        n = 0
        try:
            while n < limit:
                try:
                    sent = yield n
                except ValueError as exc:
                    sent = f"caught {exc}"
                if sent is not None:
                    self.lines.append(str(sent))
                    n += 10
                n += 1
        finally:
            self.inner()


def read_all(log: Log) -> Any:
    """Every item and the return value."""
    items = []
    generator = log.count(3)
    while True:
        try:
            items.append(next(generator))
        except StopIteration as stop:
            return items, stop.value


def send(log: Log) -> Any:
    """Read items, with values sent in between."""
    generator = log.count(20)
    return [next(generator), generator.send("x"), next(generator), list(generator)]


def throw_and_go_on(log: Log) -> Any:
    """Throw an exception that the body catches, and read on."""
    generator = log.count(20)
    return [next(generator), generator.throw(ValueError("bad")), list(generator)]


def throw_and_fail(log: Log) -> Any:
    """Throw an exception that the body does not catch: the very object is raised."""
    generator = log.count(20)
    next(generator)
    thrown = KeyError("mine")
    try:
        generator.throw(thrown)
    except KeyError as exc:
        return exc is thrown
    return None


def leave_early(log: Log) -> Any:
    """Close a generator after two items."""
    generator = log.count(20)
    found = [next(generator), next(generator)]
    generator.close()
    return found


def leave_unread(log: Log) -> Any:
    """Break out of a loop and drop the generator."""
    for item in log.count(20):
        if item == 1:
            return item
    return None


SYNC = (read_all, send, throw_and_go_on, throw_and_fail, leave_early, leave_unread)


async def aread_all(log: Log) -> Any:
    """Every item."""
    return [item async for item in log.acount(3)]


async def asend(log: Log) -> Any:
    """Read items, with values sent in between."""
    generator = log.acount(20)
    return [await anext(generator), await generator.asend("x"), [item async for item in generator]]


async def athrow_and_go_on(log: Log) -> Any:
    """Throw an exception that the body catches, and read on."""
    generator = log.acount(20)
    return [await anext(generator), await generator.athrow(ValueError("bad")), [item async for item in generator]]


async def athrow_and_fail(log: Log) -> Any:
    """Throw an exception that the body does not catch: the very object is raised."""
    generator = log.acount(20)
    await anext(generator)
    thrown = KeyError("mine")
    try:
        await generator.athrow(thrown)
    except KeyError as exc:
        return exc is thrown
    return None


async def aleave_early(log: Log) -> Any:
    """Close a generator after two items."""
    generator = log.acount(20)
    found = [await anext(generator), await anext(generator)]
    await generator.aclose()
    return found


async def aleave_unread(log: Log) -> Any:
    """Break out of a loop and drop the generator."""
    async for item in log.acount(20):
        if item == 1:
            return item
    return None


ASYNC = (aread_all, asend, athrow_and_go_on, athrow_and_fail, aleave_early, aleave_unread)


def bind(use: Callable[[Log], Any], log: Log, kept: list[Any] | None = None) -> Callable[[], Any]:
    """Bind a log to the use; the returned function takes no arguments and keeps its result."""
    if inspect.iscoroutinefunction(use):

        async def main() -> Any:
            result = await use(log)
            if kept is not None:
                kept.append(result)
            return result

        return main

    def plain() -> Any:
        result = use(log)
        if kept is not None:
            kept.append(result)
        return result

    return plain


def plainly(use: Callable[[Log], Any], log: Log) -> Any:
    """The result of the use if nothing is recorded."""
    made = use(log)
    return asyncio.run(made) if asyncio.iscoroutine(made) else made


@pytest.mark.parametrize("use", [*SYNC, *ASYNC], ids=lambda use: use.__name__)
def test_s61_generator_records_unchanged_and_replays_alike(use: Callable[[Log], Any]) -> None:
    """However a generator is driven, it behaves as if undecorated; its replay gives the same and runs no body."""
    plain, live, later = Log(), Log(), Log()
    expected = plainly(use, plain)
    kept: list[Any] = []
    recording = recorded(bind(use, live, kept))
    assert kept == [expected]
    assert live.lines == plain.lines
    assert recording.completeness().is_complete, recording.completeness().reasons
    replay = replayed(bind(use, later), recording)
    assert (replay.error, replay.result) == (None, expected)
    assert later.lines == []
    assert replay.verdict["verdict"] == "identical", replay.verdict["divergences"]
    assert replay.verdict["counts"]["covered"] == 1


def test_record_of_a_generator_says_what_went_in_and_out() -> None:
    """Items, values sent in, the end and the return value are in the response."""
    response = json.loads(recorded(bind(send, Log())).calls[0].response)
    assert response["items"][:3] == [0, 11, 12]
    assert response["sent"] == {"0": "x"}
    assert (response["end"], response["value"]) == ("complete", "end 20")


@pytest.mark.parametrize(
    ("use", "end"),
    [(leave_early, "closed"), (leave_unread, "closed"), (throw_and_fail, "error"), (aleave_early, "closed")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_end_of_a_generator_is_recorded(use: Callable[[Log], Any], end: str) -> None:
    """Closed, dropped and failed generators are recorded differently."""
    assert json.loads(recorded(bind(use, Log())).calls[0].response)["end"] == end


def test_reading_further_than_recorded_is_a_stream_overrun() -> None:
    """Items that were never recorded are not made up."""
    recording = recorded(bind(leave_early, Log()))
    replay = replayed(lambda: list(Log().count(20)), recording)
    assert isinstance(replay.error, ReplayMiss)
    assert replay.kinds()[0] == "stream_overrun"


@pytest.mark.parametrize(("on_change", "goes_on"), [("stop", False), ("serve", True)], ids=["stop", "serve"])
def test_s28_sending_something_else_is_a_changed_call(on_change: str, goes_on: bool) -> None:
    """Values sent into a generator are part of the request, so another value is never answered silently."""

    def use(text: str | None) -> Callable[[], Any]:
        def main() -> Any:
            generator = Log().count(20)
            next(generator)
            return next(generator) if text is None else generator.send(text)

        return main

    recording = recorded(use("buy"))
    replay = replayed(use("sell"), recording, Plan(on_change=on_change))
    assert (replay.result == 11) is goes_on
    assert isinstance(replay.error, ReplayMiss) is not goes_on
    (divergence,) = replay.verdict["divergences"]
    assert divergence["kind"] == "changed_call"
    assert divergence["diff"] == [{"path": "sent[0]", "recorded": "buy", "now": "sell"}]
    assert replayed(use(None), recording).kinds()[0] == "changed_call"


def test_body_that_fails_when_it_is_left_fails_in_the_replay_too() -> None:
    """An exception from a generator's `finally` is recorded, raised unchanged, and raised again in a replay."""
    failure = OSError("disk full")

    @spanreplay.boundary("tool", name="f")
    def f() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            raise failure

    seen: list[BaseException] = []

    def leave() -> str:
        generator = f()
        next(generator)
        try:
            generator.close()
        except OSError as exc:
            seen.append(exc)
            return str(exc)
        return ""

    recording = recorded(leave)
    assert seen == [failure]
    assert replayed(leave, recording).result == "disk full"


@pytest.mark.parametrize("sort", ["sync", "async"])
def test_unserialisable_item_marks_the_run_and_stops_its_replay_there(sort: str) -> None:
    """Earlier items are served; the item itself is never replaced by something else."""

    @spanreplay.boundary("tool", name="f")
    def f() -> Generator[Any, None, None]:
        yield 1
        yield {"made": object()}

    @spanreplay.boundary("tool", name="f")
    async def af() -> AsyncGenerator[Any, None]:
        yield 1
        yield {"made": object()}

    seen: list[Any] = []

    async def aread() -> None:
        seen.extend([item async for item in af()])

    def read() -> None:
        for item in f():
            seen.append(item)

    use = read if sort == "sync" else aread
    recording = recorded(use)
    assert len(seen) == 2
    assert any("item 1" in r and "$.made" in r for r in recording.completeness().reasons)
    seen.clear()
    replay = replayed(use, recording)
    assert isinstance(replay.error, ReplayMiss)
    assert seen == ([1] if sort == "sync" else [])
    assert replay.verdict["verdict"] == "incomplete"


def test_unserialisable_return_value_is_not_none_in_a_replay() -> None:
    """A generator's return value without a codec stops the replay where it is returned."""

    @spanreplay.boundary("tool", name="f")
    def f() -> Generator[int, None, object]:
        yield 1
        return object()

    def use() -> object:
        return yield_from(f())

    def yield_from(generator: Generator[int, None, object]) -> object:
        try:
            while True:
                next(generator)
        except StopIteration as stop:
            return stop.value

    recording = recorded(use)
    assert not recording.completeness().is_complete
    replay = replayed(use, recording)
    assert isinstance(replay.error, ReplayMiss)
    assert replay.verdict["verdict"] == "incomplete"


def test_n2_cancelled_stream_waits_until_it_is_cancelled_again() -> None:
    """An async generator that was cancelled serves its items and then blocks until the program's own timeout."""

    @spanreplay.boundary("tool", name="f")
    async def f() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.get_running_loop().create_future()
        yield 2

    async def read(found: list[int]) -> None:
        async for item in f():
            found.append(item)

    async def main() -> Any:
        found: list[int] = []
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(read(found), 0.05)
            found.append(-1)
        return found

    recording = recorded(main)
    assert recording.calls[0].outcome == "cancelled"
    replay = replayed(main, recording)
    assert replay.result == [1]
    assert replay.verdict["verdict"] == "identical"


def test_miss_inside_a_context_manager_goes_out_unchanged() -> None:
    """A ReplayMiss thrown through a served generator is not taken for an exception of the agent."""

    @contextmanager
    @spanreplay.boundary("tool", name="session")
    def session() -> Generator[str, None, None]:
        yield "open"

    def use(rows: int) -> None:
        with session():
            for _ in range(rows):
                Log().inner()

    recording = recorded(lambda: use(1))
    replay = replayed(lambda: use(2), recording)
    assert isinstance(replay.error, ReplayMiss)
    assert replay.kinds() == ["extra_call"]


def test_generator_that_never_ran_is_no_call() -> None:
    """Making a generator without reading it crosses no boundary."""
    assert recorded_calls(lambda: Log().count(3)) == 0


def recorded_calls(function: Callable[[], Any]) -> int:
    """Count the calls of a function, without the one that is always made."""

    def main() -> None:
        Log().inner()
        function()

    return len(recorded(main).calls) - 1


@spanreplay.boundary("tool")
def say_in_pieces(key: str) -> Generator[str, None, None]:
    """A tool that streams a key."""
    yield "the key is "
    yield key[:30]
    yield key[30:]


def test_r1_key_that_a_generator_yields_in_pieces_is_not_recorded() -> None:
    """Items are redacted together, so neither half of a key is in the recording."""
    key = "sk-proj-" + "Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"
    calls = recorded(lambda: list(say_in_pieces(bytes(key, "ascii").decode()))).calls
    items = json.loads(next(call.response for call in calls if "the key is" in call.response))["items"]
    assert items[0] == "the key is "
    assert items[1].startswith("rdx-")
    assert items[2] == ""
