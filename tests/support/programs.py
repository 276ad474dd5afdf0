"""Random asynchronous agent programs; the result of one is its observations, in order."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

import spanreplay
from support import program_steps
from support.program_steps import Refused, Step, Tools

UNIT_S = 10.0
"""One unit of delay; takes no real time, because programs are recorded on an instant loop."""


@dataclass
class World:
    """The environment of one execution: delays that follow a schedule, answers that never repeat."""

    jitter: random.Random
    observed: list[Any] = field(default_factory=list)
    bodies: int = 0

    def answer(self) -> str:
        """Return a new answer, as a model would."""
        self.bodies += 1
        return f"{random.SystemRandom().getrandbits(48):012x}"


async def _first(calls: list[Any]) -> str:
    tasks = [asyncio.create_task(call) for call in calls]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return "|".join(sorted(t.result() for t in done))


async def _in_time(call: Coroutine[Any, Any, str], limit_s: float) -> str:
    try:
        return await asyncio.wait_for(call, limit_s)
    except asyncio.TimeoutError:
        return "timeout"


def build(program: list[Step], world: World, unit_s: float = UNIT_S, *, is_eager: bool = False) -> Callable[[], Any]:
    """Build the program as a coroutine function; `unit_s` is the duration of one unit of delay."""

    @spanreplay.boundary("tool", name="ask")
    async def ask(question: str, units: float) -> str:
        answer = world.answer()
        await asyncio.sleep(units * unit_s)
        return answer

    @spanreplay.boundary("tool", name="ask_sync")
    def ask_sync(question: str) -> str:
        answer = world.answer()
        time.sleep(random.SystemRandom().random() / 2000)
        return answer

    @spanreplay.boundary("tool", name="refuse")
    async def refuse(question: str, units: float) -> str:
        answer = await ask("inside", units)
        if int(answer, 16) % 2:
            raise Refused(answer)
        return answer

    @spanreplay.boundary("llm", name="stream")
    async def stream(question: str, delays: list[float]) -> AsyncGenerator[str, None]:
        for delay in delays:
            await asyncio.sleep(delay * unit_s)
            yield world.answer()

    tools = Tools(ask, ask_sync, refuse, stream, unit_s)

    async def run_steps(steps: list[Step], path: str) -> str:
        last = ""
        for number, step in enumerate(steps):
            last = await run_step(step, f"{path}.{number}")
            world.observed.append((path, number, last))
        return last

    async def run_step(step: Step, path: str) -> str:
        kind, *parts = step
        if kind == "ask":
            return await ask("same question", parts[0])
        if kind == "gather":
            return "+".join(await asyncio.gather(*(run_steps(p, f"{path}g{i}") for i, p in enumerate(parts[0]))))
        if kind == "as_completed":
            found = [await next_one for next_one in asyncio.as_completed([ask("same question", u) for u in parts[0]])]
            return ",".join(found)
        if kind == "first":
            return await _first([ask("same question", u) for u in parts[0]])
        if kind == "sleep":
            await asyncio.sleep(parts[0] * unit_s)
            return "slept"
        if kind == "race":
            timer: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(parts[1] * unit_s))
            call: asyncio.Task[Any] = asyncio.create_task(ask("same question", parts[0]))
            done, _ = await asyncio.wait([timer, call], return_when=asyncio.FIRST_COMPLETED)
            winners = ("timer " if timer in done else "") + ("call" if call in done else "")
            await asyncio.gather(timer, call)
            return winners
        if kind == "timeout":
            return await _in_time(ask("same question", parts[0]), parts[1] * unit_s)
        return await program_steps.run(tools, step)

    async def main() -> list[Any]:
        if is_eager and sys.version_info >= (3, 12):
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await run_steps(program, "main")
        return world.observed

    return main


CORE = ("ask", "as_completed", "first", "timeout", "sleep", "race")
ALL = (*CORE, *program_steps.KINDS, *program_steps.KINDS, *program_steps.THREAD_KINDS)


def random_program(rng: random.Random, depth: int = 2, kinds: tuple[str, ...] = CORE) -> list[Step]:
    """Return a program of one to three steps; delays within a race differ, so that only its schedule decides it."""
    return [_random_step(rng, depth, kinds) for _ in range(rng.randint(1, 3))]


def _delay(rng: random.Random, most: int) -> float:
    return rng.randint(0, most) + rng.random()  # no two delays are equal: a race needs a margin to have a winner


def _delays(rng: random.Random) -> list[float]:
    return [_delay(rng, 7) for _ in range(rng.randint(2, 5))]


def _random_step(rng: random.Random, depth: int, kinds: tuple[str, ...]) -> Step:
    kind = rng.choice([*kinds, *(["gather"] * (len(kinds) // 3) if depth else [])])
    if kind not in CORE and kind != "gather":
        return program_steps.draw(rng, kind)
    if kind == "ask":
        return ("ask", _delay(rng, 4))
    if kind == "gather":
        return ("gather", [random_program(rng, depth - 1, kinds) for _ in range(rng.randint(2, 4))])
    if kind == "sleep":
        return ("sleep", _delay(rng, 3))
    if kind in ("timeout", "race"):
        return (kind, _delay(rng, 6), _delay(rng, 5))
    return (kind, _delays(rng))


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, to make a recording with exact times without waiting.

    `turn_s` returns the duration of an event loop iteration; with 0, nothing arrives while the program still reacts.
    """

    def __init__(self, turn_s: Callable[[], float] = float) -> None:
        super().__init__()
        self._now_s = 1_000.0
        self._turn_s = turn_s
        selector = self._selector  # type: ignore[attr-defined]  # asyncio's own name, in every version
        self._poll = selector.select
        selector.select = self._select

    def time(self) -> float:
        """Return the seconds on the loop's own clock."""
        return self._now_s

    def _select(self, timeout: float | None = None) -> Any:
        self._now_s += (timeout or 0.0) + self._turn_s()
        return self._poll(0 if timeout is not None else None)


def run_instantly(main: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, turn_s: Callable[[], float] = float) -> Any:
    """Run a coroutine function to its end on an instant loop; calls are stamped with the loop's clock."""
    loop = InstantLoop(turn_s)
    with monkeypatch.context() as patch:
        patch.setattr("spanreplay.model.ids.now_ns", lambda: round(loop.time() * 1e9))
        try:
            return loop.run_until_complete(main())
        finally:
            loop.close()
