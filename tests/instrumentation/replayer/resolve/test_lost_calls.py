"""A recording that lacks calls: replaying the same program ends incomplete at the first lost call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final

import pytest

import spanreplay
from spanreplay.model.call import Recording
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.verdict import EXIT_CODES
from support.in_process import Replayed, recorded, replayed

ANSWERS: Final = itertools.count(1)


@spanreplay.boundary("tool", name="place_order", effect="irreversible")
def place_order(notional: int) -> int:
    """A tool; each call has a different answer."""
    return next(ANSWERS)


@spanreplay.boundary("tool", name="look", effect="read")
def look(notional: int) -> int:
    """Another tool with the same arguments."""
    return next(ANSWERS)


@spanreplay.boundary("llm", name="ask", effect="read")
async def ask(question: str) -> int:
    """A call that tasks make concurrently."""
    await asyncio.sleep(0)
    return next(ANSWERS)


def in_line(given: list[int]) -> None:
    """Equal requests in sequence, and equal requests under two names."""
    for notional in (1, 2):
        given += [place_order(notional), look(notional), look(notional)]


async def at_once(given: list[int]) -> None:
    """Equal requests of concurrent tasks."""

    async def work(number: int) -> None:
        given.append(await ask("same"))
        given.append(await ask(f"of {number}"))

    given.append(await ask("first"))
    await asyncio.gather(work(1), work(2))


PROGRAMS: Final[dict[str, Callable[[list[int]], Any]]] = {"in line": in_line, "at once": at_once}


def _without(recording: Recording, lost: Collection[int]) -> Recording:
    """The recording as if these calls had never reached it."""
    return Recording(recording.root, tuple(replace(c) for n, c in enumerate(recording.calls) if n not in lost))


def _replay(
    program: Callable[[list[int]], Any], recording: Recording, plan: Plan | None = None
) -> tuple[Any, Replayed]:
    given: list[int] = []
    return given, replayed(_bind(program, given), recording, plan or Plan())


def _bind(program: Callable[[list[int]], Any], given: list[int]) -> Callable[[], Any]:
    async def in_loop() -> None:
        await program(given)

    return in_loop if asyncio.iscoroutinefunction(program) else lambda: program(given)


@pytest.mark.parametrize("name", PROGRAMS)
def test_p12_lost_calls_are_a_hole_and_no_divergence(name: str) -> None:
    """Whichever calls a recording lacks, the same program is incomplete (4), never diverged (3), and no other
    call's answer stands for a lost one."""
    program, given = PROGRAMS[name], list[int]()
    recording = recorded(_bind(program, given))
    count = len(recording.calls)
    for size in range(1, count + 1):
        for lost in itertools.combinations(range(count), size):
            served, replay = _replay(program, _without(recording, lost))
            verdict = replay.verdict
            assert (verdict["verdict"], EXIT_CODES[verdict["verdict"]]) == ("incomplete", 4), (lost, verdict)
            assert verdict["divergences"] == []
            assert verdict["reasons"] == [f"{count - size} of {count} calls are here"]
            assert len(served) < count
            assert name != "in line" or served == given[: len(served)]


def test_p12_a_lost_call_that_goes_live_is_no_divergence() -> None:
    """A plan that makes calls live makes a lost one live too, because the recorded run had it."""
    recording = recorded(_bind(in_line, []))
    _, replay = _replay(in_line, _without(recording, (1,)), Plan(live=("tool:look",)))
    kinds = {(each["kind"], each["index"]) for each in replay.verdict["divergences"]}
    assert ("extra_call", 0) not in kinds
    _, whole = _replay(in_line, recording, Plan(live=("tool:look",)))
    assert kinds == {(each["kind"], each["index"]) for each in whole.verdict["divergences"] if each["index"]}


def test_p12_what_differs_before_a_hole_has_diverged() -> None:
    """A program that changed before the hole has diverged, whatever is missing later."""

    def changed(given: list[int]) -> None:
        given.append(place_order(7))
        in_line(given)

    recording = recorded(_bind(in_line, []))
    _, replay = _replay(changed, _without(recording, (3, 4)))
    assert replay.verdict["verdict"] == "diverged"
    assert replay.verdict["divergences"][0]["kind"] == "changed_call"
