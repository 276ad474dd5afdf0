"""The memory that recording takes in the agent's process doesn't grow with the number of calls.

SPANREPLAY_TEST_CALLS sets how many calls the memory measurement makes.
"""

from __future__ import annotations

import json
import os

import pytest

from spanreplay.recording.seal.check import find_tampering
from support.replaying import Workplace

AGENT = """
import asyncio, datetime, gc, json, sys, threading
import spanreplay
from spanreplay.model import config

@spanreplay.boundary("tool", effect="read")
def tool(number):
    return {"number": number, "text": f"answer {number}"}

def call(numbers):
    for number in numbers:
        tool(number)

def start_threads(numbers):
    for number in numbers:
        thread = threading.Thread(target=tool, args=(number,))
        thread.start()
        thread.join()

async def make_tasks(numbers):
    async def one(number):
        tool(number)
        datetime.datetime.now()
    for number in numbers:
        await asyncio.create_task(one(number))

def use_files(numbers):
    for number in numbers:
        tool(number)
        with open("notes.txt", "w") as notes:
            notes.write(str(number))
        with open("notes.txt") as notes:
            assert notes.read() == str(number)

def use_locks(numbers):
    for number in numbers:
        lock = threading.Lock()
        with lock, shared:
            tool(number)

shared = threading.Lock()
config.LANES_MAX = config.LANE_ENDS_MAX = 50
works = {"calls": call, "threads": start_threads, "files": use_files, "locks": use_locks}
work = {**works, "tasks": lambda numbers: asyncio.run(make_tasks(numbers))}[sys.argv[1]]
blocks = []
for at in range(3):
    work(range(at * ROUND, at * ROUND + ROUND))
    gc.collect()
    blocks.append(sys.getallocatedblocks())
print(json.dumps(blocks))
"""
ROUND = 2000


# At level full, the order of threads and loops is kept too, up to separate limits (config.TIMERS_MAX, STEPS_MAX)
@pytest.mark.parametrize(
    ("how", "level"),
    [
        *((how, "calls") for how in ("calls", "threads", "tasks", "files", "locks")),
        *((how, "full") for how in ("calls", "files", "locks")),
    ],
)
@pytest.mark.sampled(4)
def test_p8_nothing_is_kept_of_a_call_that_has_ended(workplace: Workplace, how: str, level: str) -> None:
    """The third 2,000 calls leave less than one memory block per two calls; all are sealed, in order."""
    script = workplace.write("agent.py", AGENT.replace("ROUND", str(ROUND)))
    recorded = workplace.record(script, how, SPANREPLAY_LEVEL=level)
    _, before, after = json.loads(recorded.stdout)
    assert (after - before) / ROUND < 0.5
    recording = workplace.recording()
    assert len(recording.calls) == 3 * ROUND
    assert recording.completeness().is_complete, recording.completeness()
    assert find_tampering(recording) == ""
    assert recording.root.manifest["leaves"] == 3 * ROUND
    assert sum(recording.root.manifest["lanes"].values()) == 3 * ROUND


MANY = """
import json, os, sys
import spanreplay

@spanreplay.boundary("tool", effect="read")
def tool(number):
    return {"number": number, "text": f"answer {number}"}

def read_resident_mb():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

calls, resident = int(sys.argv[1]), []
for part in range(10):
    for number in range(calls // 10):
        tool(part * calls + number)
    resident.append(read_resident_mb())
print(json.dumps(resident))
"""
CALLS = int(os.environ.get("SPANREPLAY_TEST_CALLS", "50000"))


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system does not say how much memory is used")  # noqa: PTH110
def test_p8_the_memory_of_a_process_stays_where_it_was(workplace: Workplace) -> None:
    """During the second half of the calls the process grows by at most 16 MB."""
    script = workplace.write("agent.py", MANY)
    process = workplace.spawn([str(workplace.python), str(script), str(CALLS)], SPANREPLAY_LEVEL="calls")
    stdout, stderr = process.communicate(timeout=1800)
    assert process.returncode == 0, stderr
    resident = json.loads(stdout)
    assert max(resident) - resident[4] <= 16, resident
