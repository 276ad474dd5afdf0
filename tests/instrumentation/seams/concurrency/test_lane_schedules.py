"""Lanes have the same names under every schedule."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import Future
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.in_process import MemoryProcessor, here, inside, make_run


def _in_random_order(seed: int) -> dict[str, str]:
    """Ten tasks, each with a child, that are released in an order given by the seed: label → lane."""
    order = list(range(10))
    random.Random(seed).shuffle(order)
    found: dict[str, str] = {}

    async def child() -> str:
        return here()

    async def worker(n: int, gate: asyncio.Event, after: asyncio.Event) -> None:
        await gate.wait()
        found[f"{n}"] = here()
        found[f"{n}.child"] = await asyncio.create_task(child())
        found[f"{n}.thread"] = await asyncio.to_thread(here)
        after.set()

    async def main() -> None:
        gates = [asyncio.Event() for _ in order]
        ends = [asyncio.Event() for _ in order]
        tasks = [asyncio.create_task(worker(n, gates[n], ends[n])) for n in range(10)]
        for n in order:
            gates[n].set()
            await ends[n].wait()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    return found


def test_n1_names_are_the_same_in_twenty_runs_of_any_order() -> None:
    """Released in twenty random orders, the same work has the same lanes."""
    seen = []
    for seed in range(20):
        with inside(make_run(MemoryProcessor())):
            seen.append(_in_random_order(seed))
    assert all(found == seen[0] for found in seen)
    assert len(set(seen[0].values())) == 30


Program = list[Any]
programs: st.SearchStrategy[Program] = st.recursive(
    st.just([]),
    lambda inner: st.lists(st.tuples(st.sampled_from(["task", "pool", "thread"]), inner), max_size=3),
    max_leaves=8,
)


async def _execute(program: Program, switches: random.Random, path: str, found: dict[str, str]) -> None:
    found[path] = here()
    for _ in range(switches.randrange(3)):
        await asyncio.sleep(0)
    waiting: list[Any] = []
    for n, (kind, below) in enumerate(program):
        at = f"{path}.{n}"
        if kind == "task":
            waiting.append(asyncio.create_task(_execute(below, switches, at, found)))
        else:
            waiting.append(_off_the_loop(kind, below, switches, at, found))
    random.Random(switches.random()).shuffle(waiting)
    for one in waiting:
        await one


def _off_the_loop(kind: str, below: Program, switches: random.Random, at: str, found: dict[str, str]) -> Any:
    future: Future[None] = Future()

    def work() -> None:
        asyncio.run(_execute(below, switches, at, found))
        future.set_result(None)

    if kind == "pool":
        return asyncio.get_running_loop().run_in_executor(None, work)
    threading.Thread(target=work).start()
    return asyncio.wrap_future(future)


@settings(max_examples=40, deadline=None)
@given(programs, st.integers(0, 2**32), st.integers(0, 2**32))
def test_n1_lanes_do_not_depend_on_scheduling(program: Program, one: int, other: int) -> None:
    """A random tree of tasks, pool calls and threads has the same lanes under any two schedules, all different."""
    seen: list[dict[str, str]] = []
    for seed in (one, other):
        found: dict[str, str] = {}
        with inside(make_run(MemoryProcessor())):
            asyncio.run(_execute(program, random.Random(seed), "0", found))
        seen.append(found)
    assert seen[0] == seen[1]
    assert len(set(seen[0].values())) == len(seen[0])
