"""Sets of tasks and futures have the same order in every run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spanreplay.runtime.order import lane_futures
from spanreplay.runtime.run import Run
from support.in_process import MemoryProcessor, inside, make_run
from support.pythons import since

DEADLINE_S = 30
MANY = 40


@pytest.fixture
def run() -> Iterator[Run]:
    """An active run with patched lanes."""
    with inside(make_run(MemoryProcessor())) as made:
        yield made


async def value(number: int) -> int:
    """The number, after an iteration of the loop."""
    await asyncio.sleep(0)
    return number


def _ballast(seed: int) -> list[Any]:
    """Objects that move later ones to other addresses."""
    return [bytearray(random.Random(seed * 1000 + n).randrange(500)) for n in range(200)]


def test_s68_set_of_tasks_has_the_order_of_their_creation(run: Run) -> None:
    """A program's own set of tasks iterates in creation order, wherever they are in memory."""

    async def main(seed: int) -> list[int]:
        kept = _ballast(seed)
        tasks = {asyncio.create_task(value(n)) for n in range(MANY)}
        found = [await task for task in tasks]
        return found if kept else []

    assert [asyncio.run(main(seed)) for seed in range(5)] == [list(range(MANY))] * 5


def test_s68_done_and_pending_have_the_order_of_their_creation(run: Run) -> None:
    """The tasks or futures in the result of asyncio.wait iterate in the order in which they were passed."""

    async def main() -> tuple[list[Any], list[Any]]:
        loop = asyncio.get_running_loop()
        tasks, futures = (
            [asyncio.create_task(value(n)) for n in range(MANY)],
            [loop.create_future() for _ in range(MANY)],
        )
        done, pending = await asyncio.wait(tasks)
        assert not pending
        for number, future in enumerate(futures):
            future.set_result(number) if number % 2 else None
        finished, open_ones = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        assert list(open_ones) == futures[0::2]
        assert isinstance(open_ones, set)
        assert open_ones.pop() is futures[0]
        assert list(open_ones) == futures[2::2]
        return [task.result() for task in done], [future.result() for future in finished]

    assert asyncio.run(main()) == (list(range(MANY)), list(range(1, MANY, 2)))


def test_s68_pool_futures_that_are_done_come_in_the_order_of_their_ends(run: Run) -> None:
    """Futures that were done before as_completed was called come in the order in which they ended."""
    order = random.Random(7).sample(range(MANY), MANY)
    release = [threading.Event() for _ in range(MANY)]
    with ThreadPoolExecutor(MANY) as pool:
        futures = [pool.submit(lambda n: release[n].wait(DEADLINE_S) and n, n) for n in range(MANY)]
        for number in order:
            release[number].set()
            futures[number].result(DEADLINE_S)
        assert [future.result() for future in concurrent.futures.as_completed(futures)] == order
        assert [future.result() for future in set(futures)] == list(range(MANY))
        assert [future.result() for future in concurrent.futures.wait(futures).done] == list(range(MANY))


@since(3, 11)
def test_s68_task_group_cancels_in_the_order_of_creation(run: Run) -> None:
    """A failing group cancels its tasks in the order of their creation."""
    cancelled: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(number)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(MANY):
                group.create_task(wait(number))
            group.create_task(fail())

    with pytest.raises(Exception, match="unhandled errors"):
        asyncio.run(main())
    assert cancelled == list(range(MANY))


def test_a8_first_children_of_many_tasks_differ_in_their_hashes() -> None:
    """A thousand tasks that each start one child have a thousand hashes, and sets of the children keep one order."""

    async def parent(number: int, found: dict[int, asyncio.Task[int]]) -> None:
        found[number] = asyncio.create_task(value(number))
        await found[number]

    async def main(seed: int) -> tuple[int, list[int]]:
        kept, found = _ballast(seed), dict[int, asyncio.Task[int]]()
        await asyncio.gather(*(parent(n, found) for n in range(1000)))
        walked = [task.result() for task in set(found.values())]
        return len({hash(task) for task in found.values()}), walked if kept else []

    def once(seed: int) -> tuple[int, list[int]]:
        with inside(make_run(MemoryProcessor())):
            return asyncio.run(main(seed))

    first, second = once(1), once(2)
    assert first[0] == 1000
    assert first == second


@pytest.mark.parametrize("name", [None, "named"])
def test_task_is_what_it_is_without_us(run: Run, name: str | None) -> None:
    """A task of ours is an asyncio.Task with the name that asyncio gives it, and equals only itself."""

    async def main() -> None:
        first, second = asyncio.create_task(value(1), name=name), asyncio.create_task(value(2))
        assert isinstance(first, asyncio.Task)
        assert first.get_name() == name if name else first.get_name().startswith("Task-")
        assert first != second
        assert first in asyncio.all_tasks()
        assert [await first, await second] == [1, 2]

    asyncio.run(main())


def test_task_factory_of_the_agent_makes_the_tasks(run: Run) -> None:
    """If the agent has set a task factory, its tasks are left unchanged."""
    made: list[Any] = []

    def factory(loop: Any, coro: Any, **options: Any) -> Any:
        made.append(asyncio.Task(coro, loop=loop, **options))
        return made[-1]

    async def main() -> bool:
        asyncio.get_running_loop().set_task_factory(factory)
        task = asyncio.create_task(value(1))
        return await task == 1 and task is made[-1] and type(task) is asyncio.Task

    assert asyncio.run(main())


@since(3, 12)
def test_s68_eager_tasks_have_their_numbers_before_they_run(run: Run) -> None:
    """Eager tasks, and tasks created during their creation, are ordered like others."""

    async def nest(number: int) -> list[int]:
        inner = {asyncio.create_task(value(number * 100 + n)) for n in range(3)}
        return [await task for task in inner]

    async def main() -> list[list[int]]:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # 3.12
        tasks = {asyncio.create_task(nest(n)) for n in range(5)}
        assert all(isinstance(task, lane_futures.LaneTask) for task in tasks)
        return [await task for task in tasks]

    assert asyncio.run(main()) == [[n * 100, n * 100 + 1, n * 100 + 2] for n in range(5)]


def test_future_that_was_cancelled_says_so_to_who_asked(run: Run) -> None:
    """`when_told` calls its callback once: when the future is cancelled, or immediately if it is done."""
    told: list[str] = []
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        blocker = pool.submit(gate.wait, DEADLINE_S)
        waiting = pool.submit(value, 1)
        lane_futures.when_told(waiting, lambda: told.append("cancelled"))
        assert waiting.cancel()
        gate.set()
        blocker.result(DEADLINE_S)
        lane_futures.when_told(blocker, lambda: told.append("done"))
    assert told == ["cancelled", "done"]
