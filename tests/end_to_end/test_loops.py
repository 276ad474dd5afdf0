"""Event loops in several threads, and threads that call into a loop, interact in the recorded order."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

HEAD = """
import asyncio, hashlib, random, threading
import spanreplay

@spanreplay.boundary("llm", effect="read")
async def ask(n):
    await asyncio.sleep(random.SystemRandom().random() / 100)
    return n * n

seen = []

def together(call, names):
    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
"""The agents' common beginning: a slow call, and a list that all threads append to."""

OVERTAKEN = (
    HEAD
    + """
loops, told, is_ready = {}, {}, threading.Barrier(2)

async def work(name):
    loops[name] = asyncio.get_running_loop()
    for n in range(3):
        told[name] = loops[name].create_future()
        is_ready.wait()
        if name == "slow":
            threading.Thread(target=loops[name].call_soon_threadsafe, args=(tell,)).start()
        await told[name]
        seen.append((name, n))
        await ask(n)

def tell():
    told["slow"].set_result(None)
    loops["quick"].call_soon_threadsafe(told["quick"].set_result, None)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 800_000)  # computes for a while, and lets others run

def run(name):
    asyncio.run(work(name))

together(run, ["slow", "quick"])
print(seen)
"""
)
"""The slow loop gets its result first but continues last, because it computes in between."""

BRIDGE = (
    HEAD
    + """
loop = asyncio.new_event_loop()
runner = threading.Thread(target=loop.run_forever, daemon=True)
runner.start()

def call(name):
    for n in range(6):
        asked = asyncio.run_coroutine_threadsafe(ask(n), loop)
        seen.append((name, asked.result() if n % 2 else asked.result(timeout=60)))

together(call, "abcd")
loop.call_soon_threadsafe(loop.stop)
runner.join()
print(seen)
"""
)

PORTAL = (
    HEAD
    + """
from anyio.from_thread import start_blocking_portal

with start_blocking_portal() as portal:
    def call(name):
        for n in range(6):
            seen.append((name, portal.call(ask, n)))

    together(call, "abcd")
print(seen)
"""
)


@pytest.mark.parametrize("script", [OVERTAKEN, BRIDGE, PORTAL], ids=["overtaken", "bridge", "portal"])
def test_n2_s68_loops_and_threads_meet_in_the_recorded_order(script: str, workplace: Workplace) -> None:
    """All append to one list: two replays produce the recorded list."""
    agent = workplace.write("agent.py", script)
    recorded = workplace.record(agent)
    for _ in range(2):
        replayed = workplace.replay(agent)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.stdout == recorded.stdout
