"""Declared boundaries on functions and coroutines: recorded as they ran, served as recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

import spanreplay
from spanreplay.model import config
from spanreplay.model.errors import ConfigError, ReplayMiss
from support.in_process import MemoryProcessor, inside, make_run, recorded, replayed

DEADLINE_S = 30


class Refused(Exception):
    """An exception of the agent, importable by path."""


@dataclasses.dataclass
class Order:
    """A value that crosses a boundary."""

    row: int
    notes: list[str]


class Opaque:
    """A value without a codec."""

    def __init__(self) -> None:
        self.handle = object()


class Counter:
    """Counts how often a body ran."""

    def __init__(self) -> None:
        self.calls = 0

    @spanreplay.boundary("tool", name="add", effect="pure")
    def add(self, row: int, *more: int, factor: int = 1, **options: int) -> int:
        """Count one more call."""
        self.calls += 1
        return (row + sum(more) + sum(options.values())) * factor


def test_s27_body_does_not_run_in_a_replay() -> None:
    """A served call returns the recorded value; its body does not run."""
    counter = Counter()
    recording = recorded(lambda: counter.add(2))
    replay = replayed(lambda: counter.add(2), recording)
    assert (replay.result, counter.calls) == (2, 1)
    assert replay.verdict["verdict"] == "identical"


def test_call_is_recorded_whole() -> None:
    """The record has the called function, its arguments by name, its outcome, and its caller."""
    recording = recorded(lambda: Counter().add(2, 3, factor=2, bonus=1))
    (call,) = recording.calls
    assert (call.boundary, call.effect, call.lane, call.index, call.outcome) == ("tool:add", "pure", "main", 0, "ok")
    assert json.loads(call.request) == {"arguments": {"row": 2, "more": [3], "factor": 2, "options": {"bonus": 1}}}
    assert json.loads(call.response) == {"value": 12}
    assert "test_declared.py" in call.code
    assert recording.completeness().is_complete


@pytest.mark.parametrize(
    "other",
    [
        lambda c: c.add(row=1),
        lambda c: c.add(1, factor=1),
        lambda c: c.add(factor=1, row=1),
        lambda c: Counter().add(1),
    ],
    ids=["by_name", "default_given", "other_order", "other_object"],
)
def test_same_arguments_written_otherwise_are_the_same_call(other: Callable[[Counter], int]) -> None:
    """f(1), f(x=1) and an explicitly passed default have one key; `self` is not part of it."""
    recording = recorded(lambda: Counter().add(1))
    assert replayed(lambda: other(Counter()), recording).verdict["verdict"] == "identical"


def test_other_arguments_are_a_changed_call() -> None:
    """A differing argument is reported with its path and both values, and nothing is served."""
    recording = recorded(lambda: Counter().add(1))
    counter = Counter()
    replay = replayed(lambda: counter.add(2), recording)
    assert isinstance(replay.error, ReplayMiss)
    assert counter.calls == 0
    (divergence,) = replay.verdict["divergences"]
    assert divergence["kind"] == "changed_call"
    assert divergence["diff"] == [{"path": "arguments.row", "recorded": 1, "now": 2}]


def test_value_comes_back_with_its_type_and_on_its_own() -> None:
    """Each served value is a new object of the recorded type, so that changing one affects no other."""

    @spanreplay.boundary("tool")
    def look_up() -> Order:
        return Order(7, ["a"])

    def twice() -> tuple[Order, Order]:
        first = look_up()
        first.notes.append("changed by the agent")
        return first, look_up()

    replay = replayed(twice, recorded(twice))
    assert replay.result == (Order(7, ["a", "changed by the agent"]), Order(7, ["a"]))


def test_arguments_are_recorded_as_they_were_when_the_call_began() -> None:
    """A body that changes its argument changes neither the record nor the key."""

    @spanreplay.boundary("tool")
    def drain(rows: list[int]) -> int:
        return sum(rows.pop() for _ in range(len(rows)))

    recording = recorded(lambda: drain([1, 2]))
    assert json.loads(recording.calls[0].request) == {"arguments": {"rows": [1, 2]}}
    assert replayed(lambda: drain([1, 2]), recording).result == 3


@spanreplay.boundary("tool", name="refuse")
def refuse(exc: str) -> None:
    """Raise an exception."""
    raise _raised[exc]


@spanreplay.boundary("tool", name="arefuse")
async def arefuse(exc: str) -> None:
    """Raise an exception in a coroutine."""
    raise _raised[exc]


_raised: dict[str, BaseException] = {
    "own": Refused("no", 3),
    "key": KeyError("row"),
    "os": FileNotFoundError(2, "No such file", "/nowhere"),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt("now"),
}


def _catch(name: str) -> BaseException:
    try:
        refuse(name)
    except BaseException as exc:  # noqa: BLE001 -- what is under test
        return exc
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("name", _raised)
def test_s61_exception_goes_on_unchanged_and_comes_back_alike(name: str) -> None:
    """Recording raises the very object that the body raised; a replay raises one of the same type and args."""
    seen: list[BaseException] = []
    recording = recorded(lambda: seen.append(_catch(name)))
    assert seen[0] is _raised[name]
    again = replayed(lambda: _catch(name), recording).result
    assert type(again) is type(_raised[name])
    assert again.args == _raised[name].args
    assert recording.calls[0].outcome == ("error" if isinstance(again, Exception) else "cancelled")


async def _acatch(name: str) -> BaseException:
    try:
        await arefuse(name)
    except BaseException as exc:  # noqa: BLE001 -- what is under test
        return exc
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("name", _raised)
def test_s61_coroutine_that_ends_the_process_replays_at_once(name: str) -> None:
    """A coroutine's SystemExit or KeyboardInterrupt is raised at once: only a cancellation has to be waited for."""

    async def main() -> BaseException:
        return await _acatch(name)

    recording = recorded(main)
    replay = replayed(main, recording)
    assert type(replay.result) is type(_raised[name])
    assert replay.verdict["verdict"] == "identical"


def test_exception_of_a_call_that_does_not_fit_is_the_functions_own() -> None:
    """Wrong arguments raise the plain function's TypeError, both when recorded and when replayed."""

    def wrong() -> str:
        try:
            Counter().add()  # type: ignore[call-arg]  # what is under test
        except TypeError as exc:
            return str(exc)
        return ""

    recording = recorded(wrong)
    assert "missing 1 required positional argument: 'row'" in replayed(wrong, recording).result


def test_unserialisable_argument_makes_the_run_incomplete_with_its_path() -> None:
    """An argument without a codec is a hole with its path; the replay is never called identical."""

    @spanreplay.boundary("tool", name="f")
    def f(options: dict[str, Any]) -> int:
        return 1

    recording = recorded(lambda: f({"client": [Opaque()]}))
    (reason,) = recording.completeness().reasons
    assert "tool:f" in reason
    assert "$.options.client[0]" in reason
    assert "Opaque" in reason
    assert replayed(lambda: f({"client": [Opaque()]}), recording).verdict["verdict"] == "incomplete"


def test_unserialisable_result_reaches_the_agent_and_stops_its_replay() -> None:
    """A result without a codec is returned unchanged; its replay stops there, loudly, and is incomplete."""
    made = Opaque()

    @spanreplay.boundary("tool", name="f")
    def f() -> Any:
        return {"made": made}

    seen: list[Any] = []
    recording = recorded(lambda: seen.append(f()))
    assert seen[0]["made"] is made
    assert any("value" in r and "$.made" in r for r in recording.completeness().reasons)
    replay = replayed(f, recording)
    assert isinstance(replay.error, ReplayMiss)
    assert "Opaque at $.made" in str(replay.error)
    assert replay.verdict["verdict"] == "incomplete"
    assert replay.verdict["divergences"] == []


def test_unserialisable_exception_stops_its_replay() -> None:
    """An exception whose args have no codec is raised unchanged, and can't be recreated in a replay."""
    failure = ValueError(Opaque())

    @spanreplay.boundary("tool", name="f")
    def f() -> None:
        raise failure

    def caught() -> BaseException | None:
        try:
            f()
        except ValueError as exc:
            return exc
        return None

    seen: list[Any] = []
    recording = recorded(lambda: seen.append(caught()))
    assert seen == [failure]
    assert not recording.completeness().is_complete
    assert isinstance(replayed(caught, recording).error, ReplayMiss)


def test_nested_calls_are_covered_by_the_outer_one() -> None:
    """Calls inside a served call are not made again, and count as covered, not as missing."""
    bodies: list[str] = []

    @spanreplay.boundary("tool", name="inner")
    def inner() -> int:
        bodies.append("inner")
        return 1

    @spanreplay.boundary("tool", name="outer")
    def outer() -> int:
        bodies.append("outer")
        return inner() + inner()

    recording = recorded(outer)
    assert [(c.boundary, c.parent) for c in recording.calls] == [
        ("tool:outer", -1),
        ("tool:inner", 1),
        ("tool:inner", 1),
    ]
    bodies.clear()
    replay = replayed(outer, recording)
    assert (replay.result, bodies) == (2, [])
    assert replay.verdict["verdict"] == "identical"
    assert replay.verdict["counts"] == {**replay.verdict["counts"], "exact": 1, "covered": 2, "missing": 0}


def test_coroutines_keep_their_own_answers() -> None:
    """Concurrent identical calls are paired with the task that made them, in whatever order they end."""
    order = [0, 1, 2]
    bodies = 0

    async def main() -> list[str]:
        ends = [asyncio.Event() for _ in order]
        begun: list[asyncio.Event] = []

        @spanreplay.boundary("tool", name="ask")
        async def ask() -> str:
            nonlocal bodies
            bodies += 1
            mine = len(begun)
            begun.append(ends[mine])
            await ends[mine].wait()
            return f"answer {bodies} {mine}"

        tasks = [asyncio.create_task(ask()) for _ in order]
        for n in order:
            await asyncio.sleep(0)
            ends[n].set()
        return list(await asyncio.gather(*tasks))

    recording = recorded(main)
    answers = [json.loads(call.response)["value"] for call in recording.calls]
    order.reverse()
    replay = replayed(main, recording)
    assert replay.result == answers
    assert len(set(answers)) == 3
    assert replay.verdict["verdict"] == "identical"
    assert bodies == 3


def _cancelled_while_waiting() -> Any:
    begun = asyncio.Event()

    @spanreplay.boundary("tool", name="wait")
    async def wait() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def main() -> str:
        task = asyncio.create_task(wait())
        waiting = asyncio.create_task(begun.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
        task.cancel("enough")
        waiting.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "went on"

    return main


def test_n2_cancelled_call_waits_until_it_is_cancelled_again() -> None:
    """In a replay a call that was cancelled when recorded blocks until the program cancels it again."""
    recording = recorded(_cancelled_while_waiting())
    assert recording.calls[0].outcome == "cancelled"
    replay = replayed(_cancelled_while_waiting(), recording)
    assert replay.result == "cancelled"
    assert replay.verdict["verdict"] == "identical"


def test_n2_cancelled_call_that_nothing_cancels_is_an_order_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay does not wait forever for a cancellation; it reports `order_stall`."""

    @spanreplay.boundary("tool", name="stop")
    async def stop() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await stop()

    recording = recorded(main)
    monkeypatch.setattr(config, "CANCEL_WAIT_MS", 1)
    replay = replayed(main, recording)
    assert isinstance(replay.error, ReplayMiss)
    assert replay.kinds() == ["order_stall"]


def test_without_a_run_a_boundary_is_its_function() -> None:
    """If nothing is recorded, a decorated function behaves as if undecorated."""
    counter = Counter()
    assert (counter.add(1), counter.calls) == (1, 1)
    assert asyncio.run(_acatch("key")) is _raised["key"]


def test_decorated_functions_look_like_themselves() -> None:
    """Name, signature and kind of function are unchanged, because frameworks inspect them."""

    @spanreplay.boundary("tool")
    async def coroutine(x: int) -> int:
        """Doc."""
        return x

    @spanreplay.boundary("tool")
    def generator(x: int) -> Any:
        yield x

    @spanreplay.boundary("tool")
    async def async_generator(x: int) -> Any:
        yield x

    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(async_generator)
    assert (coroutine.__name__, coroutine.__doc__) == ("coroutine", "Doc.")
    assert list(inspect.signature(coroutine).parameters) == ["x"]


def test_static_and_class_methods_are_boundaries_too() -> None:
    """The decorator works below @staticmethod and @classmethod too; `cls` is not an argument."""

    class Tools:
        @staticmethod
        @spanreplay.boundary("tool", name="static")
        def static(x: int) -> int:
            return x

        @classmethod
        @spanreplay.boundary("tool", name="class")
        def classy(cls, x: int) -> int:
            return x + 1

    recording = recorded(lambda: (Tools.static(1), Tools.classy(1)))
    assert [json.loads(c.request) for c in recording.calls] == [{"arguments": {"x": 1}}] * 2
    assert replayed(lambda: (Tools.static(1), Tools.classy(1)), recording).result == (1, 2)


def test_partial_objects_are_boundaries_too() -> None:
    """A callable without a name is named after its function."""
    add = spanreplay.boundary("tool")(functools.partial(Order, notes=[]))
    recording = recorded(lambda: add(row=1))
    assert recording.calls[0].name == "Order"


@pytest.mark.parametrize("effect", ["pure", "read", "write", "irreversible"])
def test_n14_call_of_each_effect_class_is_recorded_as_such_and_served(effect: str) -> None:
    """The effect class is in the record; in a replay the body does not run, whatever the class."""
    bodies: list[str] = []

    def make(stated: str) -> Callable[[], str]:
        @spanreplay.boundary("tool", name="act", effect=stated)
        def act() -> str:
            bodies.append(stated)
            return "done"

        return act

    recording = recorded(make(effect))
    (call,) = recording.calls
    assert (call.effect, bodies) == (effect, [effect])
    replay = replayed(make(effect), recording)
    assert (replay.result, replay.kinds(), bodies) == ("done", [], [effect])


@pytest.mark.parametrize("wrong", [{"kind": "tol"}, {"kind": "tool", "effect": "deadly"}], ids=["kind", "effect"])
def test_unknown_kind_and_effect_are_refused(wrong: dict[str, str]) -> None:
    """An unknown word is refused when the function is decorated, with the list of valid ones."""
    with pytest.raises(ConfigError, match="is not one of"):
        spanreplay.boundary(**wrong)


def test_write_is_announced_before_it_starts() -> None:
    """A call with a side effect writes a started record first; a read does not."""
    memory = MemoryProcessor()
    run = make_run(memory)
    seen: list[int] = []

    @spanreplay.boundary("tool", effect="write")
    def write() -> None:
        seen.append(len(memory.payloads))

    @spanreplay.boundary("tool", effect="read")
    def read() -> None:
        seen.append(len(memory.payloads))

    with inside(run):
        write()
        read()
        run.finish()
    # root, started | write, read
    assert seen == [2, 3]
    assert [c.outcome for c in memory.recording(run.run_id).calls] == ["ok", "ok"]


def test_failure_of_ours_never_reaches_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """If recording itself fails, the agent gets its result, and the run states what is missing."""
    monkeypatch.setenv("SPANREPLAY_GUARD", "production")

    class Hostile:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("do not look at me")

        @__class__.setter
        def __class__(self, value: Any) -> None:
            raise RuntimeError("nor touch me")

    value = Hostile()

    f: Callable[[Any], Any] = spanreplay.boundary("tool", name="f")(lambda argument: argument)
    seen: list[Any] = []
    recording = recorded(lambda: seen.append(f(value)))
    assert seen[0] is value
    assert not recording.completeness().is_complete
