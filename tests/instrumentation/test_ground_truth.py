"""Parents, lanes and order in a recording match the program's own observations."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

import spanreplay
from spanreplay.model.call import CallRecord, Recording
from support.in_process import recorded

PROGRAMS: Final = int(os.environ.get("SPANREPLAY_TEST_TRUTH_PROGRAMS", "1000"))
BATCH: Final = 100
"""Programs in one test."""
_above: ContextVar[int] = ContextVar("above", default=-1)


@dataclass
class Seen:
    """The program's knowledge of one call: ticks between which it began and ended, owner, and parent."""

    asked: int
    above: int
    owner: object
    begun: int = -1
    ending: int = -1
    ended: int = -1


@dataclass
class Log:
    """The program's own log; a tick is a step of its own clock."""

    calls: dict[int, Seen] = field(default_factory=dict)
    ticks: Iterator[int] = field(default_factory=lambda: itertools.count())
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count())

    def ask(self) -> int:
        """Return the number of a call that is about to be made by the current task or piece of thread work."""
        number = next(self.numbers)
        owner: object = _work.owner
        if owner is None:
            owner = asyncio.current_task()
        self.calls[number] = Seen(next(self.ticks), _above.get(), owner)
        return number

    @contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """Note that the call's body runs."""
        call = self.calls[number]
        call.begun = next(self.ticks)
        token = _above.set(number)
        owner, _work.owner = _work.owner, (number if _work.owner is not None else None)
        try:
            yield
        finally:
            _work.owner = owner
            _above.reset(token)
            call.ending = next(self.ticks)

    def over(self, number: int) -> None:
        """Note that the call is over."""
        self.calls[number].ended = next(self.ticks)


class _Work(threading.local):
    owner: object | None = None


_work = _Work()


def _draw(rng: random.Random, depth: int) -> list[Any]:
    kinds = ["leaf", "leaf", "thread", *(["branch", "gather", "gather", "cancel"] if depth else [])]
    return [_draw_step(rng, rng.choice(kinds), depth) for _ in range(rng.randint(1, 3))]


def _draw_step(rng: random.Random, kind: str, depth: int) -> tuple[Any, ...]:
    if kind == "leaf":
        return (kind, rng.randint(0, 8))
    if kind == "thread":
        return (kind, rng.randint(1, 3))
    if kind == "gather":
        return (kind, [_draw(rng, depth - 1) for _ in range(rng.randint(2, 4))])
    return (kind, _draw(rng, depth - 1))


def _build(seed: int, log: Log) -> Any:
    rng = random.Random(seed)

    @spanreplay.boundary("tool", name="leaf")
    async def leaf(number: int, turns: int) -> int:
        with log.inside(number):
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns > 5:
                await asyncio.sleep(0.0002 * turns)
            return number

    @spanreplay.boundary("tool", name="leaf_sync")
    def leaf_sync(number: int) -> int:
        with log.inside(number):
            return number

    @spanreplay.boundary("tool", name="branch")
    async def branch(number: int, plan: list[Any]) -> int:
        with log.inside(number):
            await run(plan)
            return number

    async def call(function: Any, *args: Any) -> None:
        number = log.ask()
        try:
            await function(number, *args)
        finally:
            log.over(number)

    def work(owner: object, above: int, count: int) -> None:
        _work.owner, token = owner, _above.set(above)
        try:
            for _ in range(count):
                number = log.ask()
                leaf_sync(number)
                log.over(number)
        finally:
            _work.owner = None
            _above.reset(token)

    async def run(plan: list[Any]) -> None:
        for kind, *parts in plan:
            if kind == "leaf":
                await call(leaf, parts[0])
            elif kind == "branch":
                await call(branch, parts[0])
            elif kind == "thread":
                await asyncio.to_thread(work, object(), _above.get(), parts[0])
            elif kind == "gather":
                await asyncio.gather(*(run(inner) for inner in parts[0]))
            else:
                task = asyncio.create_task(run(parts[0]))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    plan = [("leaf", 1), *_draw(rng, 3)]

    async def main() -> None:
        await run(plan)

    return main


def _number(call: CallRecord) -> int:
    return int(json.loads(call.request)["arguments"]["number"])


def _check_order(events: list[tuple[int, int, int]]) -> None:
    """Assert for each (clock, not before, not after) that no two contradict the program's observations."""
    latest = -1
    for _, not_before, not_after in sorted(events):
        assert latest < not_after
        latest = max(latest, not_before)


def _check(recording: Recording, log: Log) -> None:
    calls = {_number(call): call for call in recording.calls}
    assert calls.keys() == log.calls.keys()
    by_seq = {call.seq: number for number, call in calls.items()}
    events = []
    for number, call in calls.items():
        seen = log.calls[number]
        assert by_seq.get(call.parent, -1) == seen.above
        events.append((call.seq, seen.asked, seen.begun))
        events.append((call.end_seq, seen.ending, seen.ended))
    _check_order(events)
    owners: dict[tuple[int, int], set[str]] = {}
    lanes: dict[str, set[tuple[int, int]]] = {}
    places: dict[str, list[tuple[int, int]]] = {}
    for number, call in calls.items():
        seen = log.calls[number]
        owner = (id(seen.owner), seen.above)  # a call's body is a separate lane
        owners.setdefault(owner, set()).add(call.lane)
        lanes.setdefault(call.lane, set()).add(owner)
        places.setdefault(f"{call.lane} {call.boundary}", []).append((seen.asked, call.index))
    assert {len(found) for found in owners.values()} == {len(found) for found in lanes.values()} == {1}
    for asked in places.values():
        assert [index for _, index in sorted(asked)] == list(range(len(asked)))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_s60_order_parents_and_lanes_are_those_that_the_program_saw(first: int) -> None:
    """Starts, ends, parents and lanes of random programs with tasks, threads and cancellation match their own logs."""
    for seed in range(first, min(first + BATCH, PROGRAMS)):
        log = Log()
        try:
            _check(recorded(_build(seed, log)), log)
        except AssertionError as exc:
            raise AssertionError(f"program {seed} was recorded otherwise") from exc


def test_s60_a_recording_in_another_order_is_found_out() -> None:
    """The check above fails if two ends are exchanged."""
    with pytest.raises(AssertionError):
        _check_order([(1, 5, 6), (2, 1, 2)])
