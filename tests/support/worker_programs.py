"""Random programs whose jobs observe which worker of a pool runs them, through state that a thread keeps."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any, Final

import anyio
import anyio.to_thread
import trio
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import ContextThreadPoolExecutor
from starlette.concurrency import run_in_threadpool

import spanreplay

UNIT_S: Final = 0.0005


class _Connection:
    """A connection that a worker opens once."""

    def __init__(self, number: str) -> None:
        self.number = number


class Office:
    """One execution; `observed` are its observations, in order."""

    def __init__(self) -> None:
        self.observed: list[Any] = []
        self._local = threading.local()
        self._latest: contextvars.ContextVar[str] = contextvars.ContextVar("latest", default="none")
        self._seen: weakref.WeakSet[_Connection] = weakref.WeakSet()

        @spanreplay.boundary("tool", name="ask")
        def ask(question: str, units: float) -> str:
            time.sleep(units * UNIT_S)
            return f"{random.SystemRandom().getrandbits(32):08x}"

        self.ask: Callable[[str, float], str] = ask

    def work(self, number: int, units: float) -> tuple[Any, ...]:
        """Run a job: return what it finds in its worker, and leave its own answer there."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = _Connection(self.ask("connect", units / 4))
            self._seen.add(connection)
        before, answer = self._latest.get(), self.ask(f"job {number}", units)
        self._latest.set(f"{number}:{answer}")
        pool, _, name = threading.current_thread().name.rpartition("_")
        name = name if pool else ""  # other threads are numbered per process, not per pool
        return number, name, connection.number, before, answer, connection in self._seen


Jobs = list[float]
"""The duration of each job, in units."""
Program = Callable[[Office, Jobs, int], "Awaitable[None] | None"]


def _one_by_one(office: Office, jobs: Jobs, workers: int) -> None:
    with ThreadPoolExecutor(workers) as pool:
        for number, units in enumerate(jobs):
            office.observed.append(pool.submit(office.work, number, units).result())


def _at_once(office: Office, jobs: Jobs, workers: int) -> None:
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(office.work, number, units) for number, units in enumerate(jobs)]
        office.observed.extend(future.result() for future in as_completed(futures))


def _mapped(office: Office, jobs: Jobs, workers: int) -> None:
    with ThreadPoolExecutor(workers, initializer=lambda: None) as pool:
        office.observed.extend(pool.map(office.work, range(len(jobs)), jobs))


async def _to_thread(office: Office, jobs: Jobs, workers: int) -> None:
    for number, units in enumerate(jobs):
        office.observed.append(await asyncio.to_thread(office.work, number, units))


async def _gathered(office: Office, jobs: Jobs, workers: int) -> None:
    async def one(number: int, units: float) -> None:
        office.observed.append(await asyncio.to_thread(office.work, number, units))
        office.observed.append(await asyncio.to_thread(office.work, number + 100, units))

    await asyncio.gather(*(one(number, units) for number, units in enumerate(jobs)))


async def _own_executor(office: Office, jobs: Jobs, workers: int) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(workers) as pool:
        given = [loop.run_in_executor(pool, office.work, number, units) for number, units in enumerate(jobs)]
        for done in asyncio.as_completed(given):
            office.observed.append(await done)


def _with_anyio(backend: str) -> Program:
    def program(office: Office, jobs: Jobs, workers: int) -> None:
        async def one(number: int, units: float) -> None:
            office.observed.append(await anyio.to_thread.run_sync(office.work, number, units))
            office.observed.append(await anyio.to_thread.run_sync(office.work, number + 100, units))

        async def main() -> None:
            async with anyio.create_task_group() as group:
                for number, units in enumerate(jobs):
                    group.start_soon(one, number, units)
            for number, units in enumerate(jobs):
                office.observed.append(await anyio.to_thread.run_sync(office.work, number + 200, units))

        anyio.run(main, backend=backend)

    return program


def _with_trio(office: Office, jobs: Jobs, workers: int) -> None:
    limiter = trio.CapacityLimiter(workers)

    async def one(number: int, units: float) -> None:
        for again in range(3):
            work = partial(office.work, number + again * 100, units)
            office.observed.append(await trio.to_thread.run_sync(work, limiter=limiter if again == 2 else None))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number, units in enumerate(jobs):
                nursery.start_soon(one, number, units)

    trio.run(main)


async def _with_starlette(office: Office, jobs: Jobs, workers: int) -> None:
    async def one(number: int, units: float) -> None:
        office.observed.append(await run_in_threadpool(office.work, number, units))
        office.observed.append(await run_in_threadpool(office.work, number + 100, units))

    await asyncio.gather(*(one(number, units) for number, units in enumerate(jobs)))


def _in_thread_pool(office: Office, jobs: Jobs, workers: int) -> None:
    with ThreadPool(workers) as pool:
        office.observed.extend(pool.starmap(office.work, enumerate(jobs), chunksize=1))
        office.observed.extend(pool.imap_unordered(lambda job: office.work(*job), enumerate(jobs)))
        given = [pool.apply_async(office.work, job) for job in enumerate(jobs)]
        office.observed.extend(each.get() for each in given)


def _with_langchain(office: Office, jobs: Jobs, workers: int) -> None:
    step: RunnableLambda[Any, Any] = RunnableLambda(lambda job: office.work(*job))
    office.observed.extend(step.batch(list(enumerate(jobs)), config={"max_concurrency": workers}))
    with ContextThreadPoolExecutor(workers) as pool:
        office.observed.extend(pool.map(office.work, range(len(jobs)), jobs))


PROGRAMS: Final[dict[str, Program]] = {
    "one by one": _one_by_one,
    "at once": _at_once,
    "map": _mapped,
    "to_thread": _to_thread,
    "gather": _gathered,
    "run_in_executor": _own_executor,
    "anyio on asyncio": _with_anyio("asyncio"),
    "anyio on trio": _with_anyio("trio"),
    "trio": _with_trio,
    "run_in_threadpool": _with_starlette,
    "ThreadPool": _in_thread_pool,
    "langchain": _with_langchain,
}


def draw_jobs(rng: random.Random) -> tuple[Jobs, int]:
    """Return the durations of some jobs, and the number of workers for them."""
    return [rng.choice((0, 0, rng.random() * 3)) for _ in range(rng.randint(2, 8))], rng.randint(1, 4)


def build(name: str, office: Office, jobs: Jobs, workers: int) -> Callable[[], Any]:
    """Build a program as a function or as a coroutine function."""
    program = PROGRAMS[name]
    if not asyncio.iscoroutinefunction(program):
        return lambda: program(office, jobs, workers)

    async def main() -> None:
        await program(office, jobs, workers)

    return main
