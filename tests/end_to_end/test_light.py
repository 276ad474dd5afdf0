"""While an agent is recorded, no part of the replayer is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

from support.replaying import Workplace

AGENT = """
import asyncio, json, os, sqlite3, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import httpx
import spanreplay

with spanreplay.run(name="job", input=1):
    with httpx.Client() as client:
        client.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json={"model": "m", "messages": []})
with ThreadPoolExecutor(2) as pool:
    list(pool.map(time.sleep, [0.01, 0.01]))
thread = threading.Thread(target=time.time)
thread.start()
thread.join(1)
asyncio.run(asyncio.wait_for(asyncio.sleep(0.01), 1))
subprocess.run(["true"])
sqlite3.connect("data.db").execute("create table t (n)")
with open("written.txt", "w") as file:
    file.write(str(os.path.exists("data.db")))
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[:2] == ["spanreplay", "replayer"])))
"""


def test_u1_recording_loads_nothing_of_a_replay(workplace: Workplace) -> None:
    """An agent with calls, threads, tasks, programs, files and units has no replayer module in its process."""
    done = workplace.record(workplace.write("agent.py", AGENT))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_u1_the_garbage_collector_looks_through_no_more_objects_than_without_us(workplace: Workplace) -> None:
    """What is loaded before the agent starts is spared: a full collection in the agent's loop costs no more."""
    program = workplace.write("agent.py", "import gc\nprint(len(gc.get_objects()))\n")
    plain = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert int(workplace.record(program).stdout) <= int(plain.stdout)
