"""Garbage collection can run at any point; before Python 3.12 also while a context variable is being set."""

from __future__ import annotations

import json
import re
from typing import Final

import pytest

from support.replaying import Workplace

AGENT: Final = """
import asyncio, contextvars, gc, sys
import spanreplay

gc.set_threshold(int(sys.argv[1]), 1000, 1000)
mine = [contextvars.ContextVar(f"mine{n}", default=None) for n in range(12)]

class Client:
    # as SDKs have it: who forgets to close it has it closed by the collector
    def __init__(self):
        self.itself = self

    async def aclose(self):
        pass

    def __del__(self):
        try:
            asyncio.get_running_loop().create_task(self.aclose())
        except RuntimeError:
            pass

@spanreplay.boundary(kind="tool")
def pieces(number):
    yield from range(3)

@spanreplay.boundary(kind="tool")
async def ask(number):
    return number

async def one(number):
    for turn in range(8):
        Client()
        left = [pieces(number)]
        next(left[0])
        left.append(left)
        for place, variable in enumerate(mine):
            variable.set((number, turn, place))
        await ask(number)
        assert [variable.get() for variable in mine] == [(number, turn, place) for place in range(12)]
        await asyncio.sleep(0)

async def main():
    for number in range(0, 100, 5):
        await asyncio.gather(*(one(number + each) for each in range(5)))

asyncio.run(main())
print("done", gc.isenabled())
"""


@pytest.mark.parametrize("threshold", [13, 20, 50])
@pytest.mark.sampled(1)
def test_n1_finalizers_that_come_while_context_variables_are_set_harm_nobody(
    workplace: Workplace, threshold: int
) -> None:
    """With a self-closing client and an abandoned generator, the agent keeps the context variables that it set."""
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent, str(threshold))
    assert recorded.stdout == "done True\n", recorded.stderr
    (recording,) = workplace.recordings()
    assert recording.completeness().is_complete, recording.completeness().reasons
    replayed = workplace.replay(agent, str(threshold), source=recording.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


CALLING: Final = """
import asyncio, gc, sys, threading
import spanreplay

gc.set_threshold(int(sys.argv[1]), 1000, 1000)

@spanreplay.boundary(kind="tool")
def part(number):
    return [number]

@spanreplay.boundary(kind="tool")
def note(number):
    return part(number)

@spanreplay.boundary(kind="tool")
def pieces():
    try:
        yield 1
    finally:
        part(2)

class Client:
    def __init__(self):
        self.itself = self

    async def aclose(self):
        note(3)

    def __del__(self):
        note(1)
        threading.Thread(target=int).start()
        try:
            asyncio.get_running_loop().create_task(self.aclose())
        except RuntimeError:
            pass

async def one(number):
    for turn in range(4):
        Client()
        left = [pieces()]
        next(left[0])
        left.append(left)
        note(turn + 10)
        await asyncio.to_thread(note, 10)

async def main():
    for number in range(0, 100, 5):
        await asyncio.gather(*(one(number + each) for each in range(5)))

asyncio.run(main())
print("done")
"""


@pytest.mark.parametrize("threshold", [11, 30])
def test_n1_finalizers_may_call_what_is_recorded_at_any_moment(workplace: Workplace, threshold: int) -> None:
    """Finalizers don't fail or block, even while the first call imports its dependencies.

    Their calls and the tasks they create stay in their usual lanes.
    """
    recorded = workplace.record(workplace.write("agent.py", CALLING), str(threshold))
    assert recorded.stdout == "done\n", recorded.stderr
    assert "Exception ignored" not in recorded.stderr, recorded.stderr
    lanes: dict[tuple[str, int], list[str]] = {}
    for call in workplace.recording().calls:
        number = json.loads(call.request).get("arguments", {}).get("number", 0)
        lanes.setdefault((call.name, number), []).append(call.lane)
    assert all(re.search(r"/tool:note#\d+$", lane) for lane in lanes["part", 1]), lanes["part", 1]
    assert all(re.search(r"/tool:pieces#\d+$", lane) for lane in lanes["part", 2]), lanes["part", 2]
    assert all(re.search(r"/t:Client.aclose#\d+$", lane) for lane in lanes["note", 3]), lanes["note", 3]
