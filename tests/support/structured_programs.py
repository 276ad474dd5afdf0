"""Random programs for trio, and for anyio on both of its loops; the result is their observations, in order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import anyio
import trio

import spanreplay
from support.programs import World

Step = tuple[Any, ...]
FLAVOURS: Final = ("trio", "anyio-asyncio", "anyio-trio")
UNIT_S: Final = 0.0005
"""One unit of delay, in real time."""


def run_flavour(flavour: str, main: Callable[[], Any]) -> Any:
    """Run a coroutine function to its end on a flavour's loop."""
    if flavour == "trio":
        return trio.run(main)
    return anyio.run(main, backend=flavour.partition("-")[2])


class Program:
    """A random program of one flavour, in one world."""

    def __init__(self, flavour: str, steps: list[Step], world: World, unit_s: float = UNIT_S) -> None:
        self.unit_s = unit_s
        self.api: Any = trio if flavour == "trio" else anyio
        self.steps = steps
        self.world = world
        self.too_slow = trio.TooSlowError if flavour == "trio" else TimeoutError
        self.open_group = trio.open_nursery if flavour == "trio" else anyio.create_task_group
        self.open_channel: Any = (
            trio.open_memory_channel if flavour == "trio" else anyio.create_memory_object_stream[Any]
        )
        self.limiter: Any = None

        @spanreplay.boundary("tool", name="ask")
        async def ask(question: str, units: float) -> str:
            answer = world.answer()
            await self.api.sleep(units * unit_s * world.jitter.uniform(0.5, 1.5))
            return answer

        @spanreplay.boundary("tool", name="compute")
        def compute(question: str) -> str:
            return world.answer()

        self.ask: Any = ask
        self.compute: Any = compute

    async def main(self) -> list[Any]:
        """Run the program and return its observations."""
        self.limiter = self.api.CapacityLimiter(2)
        await self.run_steps(self.steps, "main")
        return self.world.observed

    async def run_steps(self, steps: list[Step], path: str) -> None:
        """Run the steps one after another."""
        for number, (kind, *parts) in enumerate(steps):
            seen = await getattr(self, f"do_{kind}")(f"{path}.{number}", *parts)
            self.world.observed.append((path, number, seen))

    async def do_ask(self, path: str, units: float) -> Any:
        return await self.ask("same question", units)

    async def do_sleep(self, path: str, units: float) -> Any:
        await self.api.sleep(units * self.unit_s)
        return "slept"

    async def do_group(self, path: str, branches: list[list[Step]]) -> Any:
        async with self.open_group() as group:
            for number, steps in enumerate(branches):
                group.start_soon(self.run_steps, steps, f"{path}g{number}")
        return "joined"

    async def do_timeout(self, path: str, units: float, limit: float) -> Any:
        with self.api.move_on_after(limit * self.unit_s) as scope:
            return await self.ask("same question", units)
        return "caught" if scope.cancelled_caught else "?"

    async def do_fail(self, path: str, units: float, limit: float) -> Any:
        try:
            with self.api.fail_after(limit * self.unit_s):
                return await self.ask("same question", units)
        except self.too_slow:
            return "too slow"

    async def do_first(self, path: str, delays: list[float]) -> Any:
        """Let the first answer cancel the other tasks, which observe it."""
        found: list[Any] = []

        async with self.open_group() as group:

            async def one(number: int, units: float) -> None:
                try:
                    found.append((number, await self.ask("same question", units)))
                    group.cancel_scope.cancel()
                finally:
                    found.append(number)

            for number, units in enumerate(delays):
                group.start_soon(one, number, units)
        return found

    async def do_channel(self, path: str, delays: list[float], consumers: int) -> Any:
        """Send answers through a channel to several consumers, in the order of arrival."""
        found: list[Any] = []
        send, receive = self.open_channel(1)

        async def produce(units: float, channel: Any) -> None:
            async with channel:
                await channel.send(await self.ask("same question", units))

        async def consume(number: int, channel: Any) -> None:
            async with channel:
                async for item in channel:
                    found.append((number, item))
                    await self.ask("what then", 1)

        async with self.open_group() as group, send, receive:
            for number in range(consumers):
                group.start_soon(consume, number, receive.clone())
            for units in delays:
                group.start_soon(produce, units, send.clone())
        return found

    async def do_threads(self, path: str, count: int, is_limited: bool) -> Any:
        """Make calls from threads, some of which call back into the loop; observe which is first."""
        found: list[Any] = []

        def work(number: int) -> str:
            first = self.compute("same question")
            if number % 2:
                first += self.api.from_thread.run(self.ask, "from a thread", 1.0)
            return str(first + self.compute("same question"))

        async def one(number: int) -> None:
            limiter = self.limiter if is_limited else None
            found.append((number, await self.api.to_thread.run_sync(work, number, limiter=limiter)))
            found.append((number, await self.ask("after", number % 3)))

        async with self.open_group() as group:
            for number in range(count):
                group.start_soon(one, number)
        return found

    async def do_event(self, path: str, units: float, waiters: int) -> Any:
        """Wake up several tasks with an event; each of them makes a call."""
        found: list[Any] = []
        event = self.api.Event()

        async def wait(number: int) -> None:
            await event.wait()
            found.append((number, await self.ask("same question", 0.5)))

        async with self.open_group() as group:
            for number in range(waiters):
                group.start_soon(wait, number)
            await self.ask("same question", units)
            event.set()
        return found


def random_steps(rng: random.Random, depth: int = 2, *, with_threads: bool = False) -> list[Step]:
    """Return a program of one to three steps."""
    return [_random_step(rng, depth, with_threads) for _ in range(rng.randint(1, 3))]


def _delay(rng: random.Random, most: int) -> float:
    return rng.randint(0, most) + rng.random()


def _random_step(rng: random.Random, depth: int, with_threads: bool) -> Step:
    kinds = ["ask", "sleep", "timeout", "fail", "first", "channel", "event"]
    kinds += ["group"] * (3 * bool(depth)) + ["threads"] * (2 * with_threads)
    kind = rng.choice(kinds)
    if kind == "group":
        return ("group", [random_steps(rng, depth - 1, with_threads=with_threads) for _ in range(rng.randint(2, 4))])
    if kind in ("ask", "sleep"):
        return (kind, _delay(rng, 4))
    if kind in ("timeout", "fail"):
        return (kind, _delay(rng, 5), _delay(rng, 5))
    if kind == "first":
        return (kind, [_delay(rng, 6) for _ in range(rng.randint(2, 5))])
    if kind == "channel":
        return (kind, [_delay(rng, 6) for _ in range(rng.randint(2, 5))], rng.randint(1, 3))
    if kind == "threads":
        return (kind, rng.randint(1, 4), rng.random() < 0.5)
    return (kind, _delay(rng, 4), rng.randint(1, 4))
