"""A replayed program that waits for an event that its changed code prevents ends with `order_stall`; it never hangs."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

HEAD = """
import asyncio, os, threading
import spanreplay

changed = bool(os.environ.get("CHANGED"))

@spanreplay.boundary("tool", name="signal", effect="read")
def signal():
    return "go"

@spanreplay.boundary("tool", name="ask", effect="read")
def ask():
    return "answer"
"""
WAITS = {
    # way → agent
    "event_of_a_loop": """
async def producer(event):
    if not changed:
        signal()
        event.set()

async def main():
    event = asyncio.Event()
    ask()
    task = asyncio.create_task(producer(event))
    await event.wait()
    await task

asyncio.run(main())
""",
    "queue_polled_by_a_loop": """
async def main():
    found = []
    ask()
    def produce():
        found.append(signal())
    if not changed:
        asyncio.get_running_loop().call_later(0.05, produce)
    while not found:
        await asyncio.sleep(0.01)

asyncio.run(main())
""",
    "event_of_threads": """
event = threading.Event()
def producer():
    if not changed:
        signal()
        event.set()
ask()
thread = threading.Thread(target=producer, name="producer")
thread.start()
event.wait()
thread.join()
""",
    "thread_that_never_ends": """
import queue
jobs = queue.Queue()
def consumer():
    while jobs.get() is not None:
        pass
ask()
thread = threading.Thread(target=consumer)
thread.start()
if not changed:
    jobs.put(signal())
    jobs.put(None)
thread.join()
""",
}


@pytest.mark.parametrize("way", WAITS)
@pytest.mark.sampled(2)
def test_s29_wait_for_ever_ends_with_order_stall(way: str, workplace: Workplace) -> None:
    """Exit 3, and the one cause names the missing recorded call and its lane."""
    agent = workplace.write("agent.py", HEAD + WAITS[way])
    workplace.record(agent)
    same = workplace.replay(agent)
    assert (same.status, same.verdict["verdict"]) == (0, "identical"), same.stderr
    stuck = workplace.replay(agent, CHANGED="1")
    assert stuck.status == 3, stuck.stderr
    assert stuck.causes() == [("order_stall", "tool:signal")], stuck.verdict["divergences"]
    first = stuck.verdict["divergences"][0]
    assert "tool:signal" in first["message"]
    assert f"lane {first['lane']}" in first["message"]


POLLING = """
import asyncio
import spanreplay

@spanreplay.boundary(effect="write")
async def acknowledge():
    await asyncio.sleep(0)

@spanreplay.boundary(effect="write")
async def publish():
    await asyncio.sleep(0)

async def work():
    await acknowledge()
    await publish()

async def main():
    task = asyncio.create_task(work())
    while not task.done():
        await asyncio.sleep(0.1)

asyncio.run(main())
"""


def test_s28_a_call_that_is_left_out_under_a_loop_that_polls_ends_the_replay(workplace: Workplace) -> None:
    """Timers that only look whether work is done don't keep a replay waiting for a call that is not made any more."""
    workplace.write("agent.py", POLLING)
    workplace.record("agent.py", SPANREPLAY_LEVEL="calls")
    workplace.write("agent.py", POLLING.replace("    await acknowledge()\n", ""))
    replayed = workplace.replay("agent.py", SPANREPLAY_REPLAY_TIMEOUT="300")
    assert replayed.verdict["verdict"] == "diverged", replayed.stderr
    assert "had not ended after" not in str(replayed.verdict)
