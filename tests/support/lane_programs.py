"""Random programs whose calls are made by tasks, threads and jobs, and the same with two steps exchanged.

A step is a call, a block that the program waits for (as a task, a thread or a job), or several blocks at once.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_HEAD: Final = """
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
from spanreplay import boundary

@boundary("tool", effect="read")
def look(what):
    return what

@boundary("tool", effect="write")
def note(what):
    return what

@boundary("tool", effect="write")
async def send(what):
    await asyncio.sleep(0.001)
    return what

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def agent():
    global pool
    with ThreadPoolExecutor(16) as pool:
        asyncio.run(block_0())

async def step(work):
    await asyncio.sleep(0.0005)
    await work()
"""
_WAITED: Final = (
    "await block_{}()",
    "await asyncio.create_task(block_{}())",
    "await asyncio.create_task(step(block_{}))",
    "await asyncio.gather(block_{}())",
    "await asyncio.to_thread(lambda: asyncio.run(block_{}()))",
    "in_thread(lambda: asyncio.run(block_{}()))",
    "pool.submit(lambda: asyncio.run(block_{}())).result()",
)
_DEPTH_MAX: Final = 3


@dataclass(eq=False)
class Step:
    """A call, or blocks that run; `line` has a place for the number of each block."""

    line: str
    blocks: list[Block] = field(default_factory=list)
    is_acting: bool = False

    def acts(self) -> bool:
        """Whether it changes anything."""
        return self.is_acting or any(step.acts() for block in self.blocks for step in block.steps)


@dataclass(eq=False)
class Block:
    """Steps one after the other, in a coroutine of its own."""

    number: int
    steps: list[Step]

    def list_all(self) -> list[Block]:
        """Return it and the blocks that run in it."""
        return [self, *(each for step in self.steps for block in step.blocks for each in block.list_all())]


def random_program(rng: random.Random) -> Block:
    """Return a program of a few calls in several lanes."""
    return _random_block(rng, 0, itertools.count(), itertools.count())


def exchange(rng: random.Random, program: Block) -> str:
    """Return the source with two neighbouring steps exchanged, of which one changes something; '' if there are none."""
    pairs = [
        (block, at)
        for block in program.list_all()
        for at in range(len(block.steps) - 1)
        if block.steps[at].acts() or block.steps[at + 1].acts()
    ]
    if not pairs:
        return ""
    block, at = rng.choice(pairs)
    steps = block.steps
    block.steps = [*steps[:at], steps[at + 1], steps[at], *steps[at + 2 :]]
    source = write(program)
    block.steps = steps
    return source


def write(program: Block) -> str:
    """Return the source of a program."""
    lines = []
    for block in program.list_all():
        lines += [f"async def block_{block.number}():"]
        lines += [f"    {step.line.format(*(each.number for each in step.blocks))}" for step in block.steps]
    return _HEAD + "\n".join(lines) + "\n"


def _random_block(rng: random.Random, depth: int, numbers: Iterator[int], calls: Iterator[int]) -> Block:
    number = next(numbers)
    return Block(number, [_random_step(rng, depth, numbers, calls) for _ in range(rng.randint(1, 3) + (depth == 0))])


def _random_step(rng: random.Random, depth: int, numbers: Iterator[int], calls: Iterator[int]) -> Step:
    sort = rng.choice(("call", "call", "waited", "waited", "several")) if depth < _DEPTH_MAX else "call"
    if sort == "call":
        call = rng.choice(("look({})", "note({})", "await send({})"))
        return Step(call.format(f'"n{next(calls)}"'), is_acting="look" not in call)
    count = 1 if sort == "waited" else rng.randint(2, 3)
    blocks = [_random_block(rng, depth + 1, numbers, calls) for _ in range(count)]
    line = rng.choice(_WAITED) if count == 1 else f"await asyncio.gather({', '.join(['block_{}()'] * count)})"
    return Step(line, blocks)
