"""Agents on trio and anyio, unmodified: recorded, and replayed in another process with the provider stopped."""

from __future__ import annotations

import pytest

from support.agents import AGENTS
from support.provider import Provider
from support.replaying import Workplace


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("trio_agent.py",), ("anyio_agent.py", "trio"), ("anyio_agent.py", "asyncio")],
    ids=["trio", "anyio_on_trio", "anyio_on_asyncio"],
)
def test_s68_structured_agents_replay_byte_for_byte(
    provider: Provider, workplace: Workplace, command: tuple[str, ...]
) -> None:
    """Each task gets its own answer in the recorded order; timeouts and back-offs replay without waiting."""
    agent = AGENTS / "structured" / command[0]
    recorded = workplace.record(agent, *command[1:])
    recording = workplace.recording()
    assert recording.completeness().reasons == ()
    asked = len(provider.requests)
    provider.stop()
    replayed = workplace.replay(agent, *command[1:])
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["divergences"] == []
    assert replayed.status == 0, replayed.stderr
    assert len(provider.requests) == asked


SLOW_THREAD = """
import os, select, threading
import trio
import spanreplay

is_late = os.path.exists("late")
ended = [threading.Event() for _ in range(3)]

@spanreplay.boundary("tool", name="ask")
def ask(number):
    return number

def work(number):
    if number == 2:
        trio.from_thread.run_sync(is_ready.set)
    ask(number)
    if is_late and number == 1:
        select.select([], [], [], 0.7)  # not ours: it is real time
    if not is_late and number:
        ended[number - 1].wait(20)
    ended[number].set()
    return number

async def in_thread(number):
    print(await trio.to_thread.run_sync(work, number))

async def main():
    global is_ready
    is_ready = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(in_thread, number)
        await is_ready.wait()
        if not is_late:
            ended[2].wait(20)  # the loop stands still: all three results come in one turn
            select.select([], [], [], 0.2)

trio.run(main)
"""


def test_s68_thread_that_takes_long_keeps_its_place_among_those_of_its_turn(workplace: Workplace) -> None:
    """Results that trio received in one iteration are delivered one by one in a replay, in the same order."""
    agent = workplace.write("agent.py", SLOW_THREAD)
    recorded = workplace.record(agent)
    assert sorted(recorded.stdout.split()) == ["0", "1", "2"]
    (workplace.path / "late").touch()
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
