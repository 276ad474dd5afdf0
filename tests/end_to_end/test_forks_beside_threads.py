"""A program that forks while its threads make calls continues as it does without a recorder."""

from __future__ import annotations

import json

import pytest

from support.replaying import Workplace

AGENT = """
import json, multiprocessing, threading
from concurrent.futures import ThreadPoolExecutor
from spanreplay import boundary

@boundary("tool", effect="read")
def ask(number):
    return number

def work():
    while not is_over.is_set():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ask, 1).result()

def child(number):
    thread = threading.Thread(target=ask, args=(number,))
    thread.start()
    thread.join()
    ask(number)

is_over = threading.Event()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
context, ends = multiprocessing.get_context("fork"), []
for number in range(40):
    process = context.Process(target=child, args=(number,))
    process.start()
    process.join(60)
    ends.append(process.exitcode)
    process.kill()
is_over.set()
for thread in threads:
    thread.join()
print(json.dumps(ends))
"""


@pytest.mark.parametrize("level", ["calls", "full"])
def test_a_fork_beside_threads_that_make_calls_does_not_hang(workplace: Workplace, level: str) -> None:
    """Every lock of ours that a thread holds at the fork is free in the new process."""
    recorded = workplace.record(workplace.write("agent.py", AGENT), SPANREPLAY_LEVEL=level)
    assert json.loads(recorded.stdout) == [0] * 40, recorded.stderr
