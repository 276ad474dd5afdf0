"""Steps of random programs beyond gathers and races: threads, streams, cancellation, queues, locks.

Each kind is one row: how it is drawn, and how it runs. A step's result is its observations, in order.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

Step = tuple[Any, ...]


class Refused(ValueError):
    """Raised by a boundary."""


@dataclass
class Tools:
    """The functions that a program may call; each is a boundary."""

    ask: Callable[[str, float], Awaitable[str]]
    ask_sync: Callable[[str], str]
    refuse: Callable[[str, float], Awaitable[str]]
    stream: Callable[[str, list[float]], AsyncGenerator[str, None]]
    unit_s: float

    def sleep(self, units: float) -> Awaitable[None]:
        """Sleep for some units of delay."""
        return asyncio.sleep(units * self.unit_s)


def _delay(rng: random.Random, most: float = 4) -> float:
    return rng.random() * most


def _delays(rng: random.Random, most: int = 4) -> list[float]:
    return [_delay(rng) for _ in range(rng.randint(2, most))]


async def _in_threads(tools: Tools, count: int, is_racing: bool) -> str:
    seen: list[str] = []

    async def one(number: int) -> None:
        seen.append(f"{number}:{await asyncio.to_thread(tools.ask_sync, 'thread')}")

    others = [tools.ask("beside threads", 0.5)] if is_racing else []
    await asyncio.gather(*(one(number) for number in range(count)), *others)
    return ",".join(seen)


async def _in_executor(tools: Tools, count: int) -> str:
    seen: list[str] = []

    async def one(number: int) -> None:
        loop = asyncio.get_running_loop()
        seen.append(f"{number}:{await loop.run_in_executor(None, sum, range(number))}")
        seen.append(await tools.ask("behind work", 0.0 if number % 2 else 0.3))

    await asyncio.gather(*(one(number) for number in range(count)))
    return ",".join(seen)


async def _pool(tools: Tools, count: int, how: str) -> str:
    with ThreadPoolExecutor(3) as pool:
        if how == "map":
            return ",".join(pool.map(tools.ask_sync, ["pool"] * count))
        futures = [pool.submit(tools.ask_sync, "pool") for _ in range(count)]
        return ",".join(future.result() for future in concurrent.futures.as_completed(futures))


async def _streams(tools: Tools, *many: list[float]) -> str:
    seen: list[str] = []

    async def read(number: int, delays: list[float]) -> None:
        async for item in tools.stream("stream", delays):
            seen.append(f"{number}:{item}")

    await asyncio.gather(*(read(number, delays) for number, delays in enumerate(many)))
    return ",".join(seen)


async def _abandon(tools: Tools, delays: list[float], how: str) -> str:
    stream = tools.stream("abandoned", [*delays, 0.1])
    seen = [await stream.__anext__()]
    if how == "close":
        await stream.aclose()
    elif how == "leave":
        async for item in stream:
            seen.append(item)
            break
    del stream
    if how == "collect":
        gc.collect(0)
        await asyncio.sleep(0)
    return ",".join([*seen, await tools.ask("behind a stream", 0.2)])


async def _retry(tools: Tools, delays: list[float]) -> str:
    seen: list[str] = []
    for number, delay in enumerate(delays):
        try:
            seen.append(await tools.refuse("again", delay))
        except Refused as exc:
            seen.append(str(exc))
        await tools.sleep(0.1 * 2**number)
    return ",".join(seen)


async def _cancel(tools: Tools, delays: list[float], after: float) -> str:
    seen: list[str] = []

    async def work(number: int, delay: float) -> None:
        try:
            seen.append(f"{number}:{await tools.ask('to be cancelled', delay)}")
        except asyncio.CancelledError:
            seen.append(f"{number}:cancelled")
            raise
        finally:
            await tools.sleep(0.05)
            seen.append(f"{number}:over")

    tasks = [asyncio.create_task(work(number, delay)) for number, delay in enumerate(delays)]
    await tools.sleep(after)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return ",".join(seen)


async def _scope(tools: Tools, delays: list[float], limit: float) -> str:
    seen: list[str] = []

    async def work() -> None:
        for delay in delays:
            seen.append(await tools.ask("in a scope", delay))

    try:
        if sys.version_info >= (3, 11, 7):  # earlier versions may lose their own cancellation after a failed group
            async with asyncio.timeout(limit * tools.unit_s):
                await work()
        else:
            await asyncio.wait_for(work(), limit * tools.unit_s)
    except asyncio.TimeoutError:
        seen.append("timeout")
    return ",".join(seen)


async def _group(tools: Tools, delays: list[float], failing: float) -> str:
    seen: list[str] = []

    async def work(number: int, delay: float) -> None:
        try:
            seen.append(f"{number}:{await tools.ask('in a group', delay)}")
        except asyncio.CancelledError:
            seen.append(f"{number}:cancelled")
            raise

    async def fail() -> None:
        await tools.ask("before it fails", failing)
        raise Refused("the group fails")

    if sys.version_info < (3, 11):
        await asyncio.gather(*(work(n, d) for n, d in enumerate(delays)), fail(), return_exceptions=True)
        return ",".join(seen)
    try:
        async with asyncio.TaskGroup() as group:
            for number, delay in enumerate(delays):
                group.create_task(work(number, delay))
            group.create_task(fail())
    except Exception as exc:  # noqa: BLE001 -- a group of exceptions, which Python 3.10 cannot name
        seen.append(type(exc).__name__)
    return ",".join(seen)


async def _queue(tools: Tools, delays: list[float], workers: int) -> str:
    seen: list[str] = []
    queue: asyncio.Queue[tuple[int, float]] = asyncio.Queue(2)

    async def work(worker: int) -> None:
        while True:
            number, delay = await queue.get()
            try:
                seen.append(f"{worker} took {number}:{await tools.ask('from a queue', delay)}")
            finally:
                queue.task_done()

    tasks = [asyncio.create_task(work(worker)) for worker in range(workers)]
    for number, delay in enumerate(delays):
        await queue.put((number, delay))
    await queue.join()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return ",".join(seen)


async def _lock(tools: Tools, delays: list[float], width: int) -> str:
    seen: list[str] = []
    lock = asyncio.Lock() if width == 0 else asyncio.Semaphore(width)

    async def work(number: int, delay: float) -> None:
        before = await tools.ask("before a lock", delay)
        async with lock:
            seen.append(f"{number}:{before}:{await tools.ask('inside a lock', delay / 3)}")

    await asyncio.gather(*(work(number, delay) for number, delay in enumerate(delays)))
    return ",".join(seen)


async def _condition(tools: Tools, delays: list[float]) -> str:
    seen: list[str] = []
    condition, event, ready = asyncio.Condition(), asyncio.Event(), [0]

    async def wait(number: int) -> None:
        async with condition:
            await condition.wait_for(lambda: ready[0] > 0)
            ready[0] -= 1
            seen.append(f"took {number}")
        await event.wait()
        seen.append(f"{number}:{await tools.ask('behind an event', 0.1)}")

    async def give(delay: float) -> None:
        await tools.ask("before a condition", delay)
        async with condition:
            ready[0] += 1
            condition.notify()

    tasks = [asyncio.create_task(wait(number)) for number in range(len(delays))]
    await asyncio.gather(*(give(delay) for delay in delays))
    event.set()
    await asyncio.gather(*tasks)
    return ",".join(seen)


def _pick(rng: random.Random, *choices: Any) -> Any:
    return rng.choice(choices)


Kind = tuple[Callable[[random.Random], Step], Callable[..., Awaitable[str]]]
KINDS: Final[dict[str, Kind]] = {
    "streams": (lambda r: (_delays(r), _delays(r)), _streams),
    "abandon": (lambda r: (_delays(r), _pick(r, "close", "leave", "collect")), _abandon),
    "retry": (lambda r: (_delays(r),), _retry),
    "cancel": (lambda r: (_delays(r), _delay(r)), _cancel),
    "scope": (lambda r: (_delays(r), _delay(r, 6)), _scope),
    "group": (lambda r: (_delays(r), _delay(r)), _group),
    "queue": (lambda r: (_delays(r, 6), r.randint(1, 4)), _queue),
    "lock": (lambda r: (_delays(r), r.randint(0, 2)), _lock),
    "condition": (lambda r: (_delays(r),), _condition),
}
"""Kinds that use a single thread."""
THREAD_KINDS: Final[dict[str, Kind]] = {
    "threads": (lambda r: (r.randint(1, 4), r.random() < 0.5), _in_threads),
    "executor": (lambda r: (r.randint(1, 4),), _in_executor),
    "pool": (lambda r: (r.randint(1, 5), _pick(r, "map", "as_completed")), _pool),
}


def draw(rng: random.Random, kind: str) -> Step:
    """Return a random step of a kind."""
    return (kind, *{**KINDS, **THREAD_KINDS}[kind][0](rng))


async def run(tools: Tools, step: Step) -> str:
    """Run a step and return its observations."""
    kind, *parts = step
    return await {**KINDS, **THREAD_KINDS}[kind][1](tools, *parts)
