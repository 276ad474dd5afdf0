"""Calls that begin inside our own code: in a signal handler, or in objects that the garbage collector closes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
TIMEOUT_S = 600
AGENT = '''
import asyncio, gc, random, signal, sys, time

import spanreplay
from support.in_process import recorded

CALLS, made, is_inside, is_over = 1500, [], [], []

@spanreplay.boundary("tool", name="ask")
def ask(number):
    return number

@spanreplay.boundary("tool", name="ask_later")
async def ask_later(number):
    await asyncio.sleep(0)
    return number

def interrupt(*_):
    """Whatever the agent does at any moment; itself it is not interrupted."""
    if is_inside or is_over:
        return
    is_inside.append(True)
    try:
        made.append(ask(-1))
        time.time(), random.random()
    finally:
        is_inside.clear()

class Left:
    """Garbage that only the collector finds."""
    def __init__(self):
        self.itself = self
    def __del__(self):
        interrupt()

def step(number):
    if sys.argv[1] == "collector":
        Left()
    time.time(), random.random()

def sync():
    for number in range(CALLS):
        step(number)
        ask(number)

async def several():
    async def one():
        for number in range(CALLS // 10):
            step(number)
            await ask_later(number)
    await asyncio.gather(*(one() for _ in range(10)))

def main():
    ask(0), asyncio.run(ask_later(0))  # what the first call loads is loaded
    if sys.argv[1] == "collector":
        gc.set_threshold(7, 5, 5)
    else:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    try:
        sync() if sys.argv[2] == "sync" else asyncio.run(several())
    finally:
        is_over.append(True)
        signal.setitimer(signal.ITIMER_REAL, 0)

run = recorded(main)
assert run.root.manifest["calls"] == len(run.calls), run.root.manifest["calls"]
ends = {call.end_seq for call in run.calls}
print(len(run.calls) - CALLS - 2 - len(made), len(made) > 20, len(ends) == len(run.calls))
'''


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGALRM")
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("what", ["signal", "collector"])
def test_n1_what_interrupts_a_recorded_call_may_make_calls(what: str, kind: str) -> None:
    """Neither call waits for the other: the agent goes on, and each is recorded once, with its own position."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-c", AGENT, what, kind], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.stdout.split() == ["0", "True", "True"], done.stderr[-2000:]
