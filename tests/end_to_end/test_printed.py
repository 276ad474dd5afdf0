"""Output that calls and threads print appears again in the same order, although no body runs."""

from __future__ import annotations

import pytest

from support.installing import install
from support.replaying import Workplace

TOOLS = """
import asyncio, logging, sys
import spanreplay
from langchain_core.tools import tool

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")

@spanreplay.boundary("tool")
def inner(n):
    print("inner", n)
    return n

@spanreplay.boundary("tool")
def outer(n):
    print("before", n)
    total = inner(n) + inner(n + 1)
    logging.getLogger("shop").info("behind %s", n)
    return total

@spanreplay.boundary("tool")
def fails():
    print("about to fail")
    raise KeyError("gone")

@spanreplay.boundary("retriever", effect="read")
def pages():
    for n in range(3):
        print("reading page", n)
        yield n
    print("no more pages")

@spanreplay.boundary("tool", effect="read")
async def lines():
    for n in range(2):
        await asyncio.sleep(0)
        print("line", n)
        yield n
    print("no more lines")

@tool
def place(shares: int) -> str:
    "Place an order."
    print("placing", shares, end="; ")
    sys.stdout.write("placed\\n")
    return f"ok {shares}"

async def read():
    return [n async for n in lines()]

print(outer(1))
try:
    fails()
except KeyError as error:
    print("caught", error)
for page in pages():
    print("page", page)
print(place.invoke({"shares": 5}), asyncio.run(read()))
"""

TASKS = """
import asyncio
import spanreplay

@spanreplay.boundary("tool", effect="read")
async def fetch(name, seconds):
    print("fetching", name)
    await asyncio.sleep(seconds)
    print("half of", name)
    await asyncio.sleep(seconds)
    print("fetched", name)
    return name

async def main():
    names = await asyncio.gather(fetch("a", 0.03), fetch("b", 0.01), fetch("c", 0.02))
    print(names)
    slow = asyncio.create_task(fetch("slow", 30))
    await asyncio.sleep(0.01)
    slow.cancel()
    print(await asyncio.gather(slow, return_exceptions=True))

asyncio.run(main())
"""

THREADS = """
import threading, time
from concurrent.futures import ThreadPoolExecutor, as_completed
import spanreplay

barrier = threading.Barrier(4)

@spanreplay.boundary("llm", effect="read")
def ask(n):
    if n < 4:
        barrier.wait()
    print("asking", n)
    time.sleep(0.001 * (n % 3))
    return n * n

def work(n):
    print(n, "gives", ask(n))
    print(n, "is over")
    return n

with ThreadPoolExecutor(4) as pool:
    for future in as_completed([pool.submit(work, n) for n in range(12)]):
        print("done", future.result())
"""


def test_s20_tools_that_print_replay_byte_for_byte(workplace: Workplace) -> None:
    """The output printed in functions, generators, coroutines, nested and failing calls is printed again."""
    agent = workplace.write("agent.py", TOOLS)
    recorded = workplace.record(agent)
    assert "placing 5; placed" in recorded.stdout
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.verdict["counts"]["served"] == 5


TEE = """
import sys
import spanreplay

class Tee:
    def __init__(self, *files):
        self.files = files
    def write(self, text):
        for file in self.files:
            file.write(text)
    def flush(self):
        for file in self.files:
            file.flush()

@spanreplay.boundary("tool")
def order(n):
    print("ordering", n)
    sys.__stdout__.write("straight\\n")
    return n

log = open("agent.log", "w")
sys.stdout = Tee(sys.__stdout__, log)
print(order(1), order(2))
sys.stdout = sys.__stdout__
log.close()
print(repr(open("agent.log").read()))
"""


def test_s20_what_a_tool_prints_goes_to_the_object_that_the_agent_put_there(workplace: Workplace) -> None:
    """An agent that copies its output into a log file finds its tools' output there, in a replay too."""
    agent = workplace.write("agent.py", TEE)
    recorded = workplace.record(agent)
    assert r"'ordering 1\nordering 2\n1 2\n'" in recorded.stdout
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_s2_what_a_live_call_prints_is_printed_once(workplace: Workplace) -> None:
    """The body of a live call prints for itself; the output of the served calls inside it is printed again."""
    agent = workplace.write("agent.py", TOOLS)
    recorded = workplace.record(agent)
    replayed = workplace.replay(agent, "--live", "tool:outer")
    assert replayed.stdout.splitlines()[:3] == ["before 1", "inner 1", "inner 2"]
    assert replayed.stdout.count("\n") == recorded.stdout.count("\n")


def test_s68_coroutines_print_in_the_recorded_order(workplace: Workplace) -> None:
    """Parallel coroutines print at their start, half-way and at their end; one is cancelled half-way."""
    agent = workplace.write("agent.py", TASKS)
    recorded = workplace.record(agent)
    assert recorded.stdout.splitlines()[:3] == ["fetching a", "fetching b", "fetching c"]
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


@pytest.mark.slow
def test_s68_threads_print_in_the_recorded_order(workplace: Workplace) -> None:
    """Four threads whose calls return at the same moment print in the recorded order in every replay."""
    agent = workplace.write("agent.py", THREADS)
    for _ in range(3):
        recorded = workplace.record(agent)
        replayed = workplace.replay(agent)
        assert replayed.stdout == recorded.stdout
        assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_s68_a_line_less_in_a_thread_is_the_only_difference(workplace: Workplace) -> None:
    """If a thread no longer prints a line, the others don't wait for it forever, and the report shows the line."""
    agent = workplace.write("agent.py", THREADS)
    workplace.record(agent)
    workplace.write("agent.py", THREADS.replace('    print(n, "is over")\n', '    n == 5 or print(n, "is over")\n'))
    replayed = workplace.replay(agent)
    assert replayed.status == 3
    assert replayed.causes() == [("output_changed", "process:stdout")]
    assert "5 is over" not in replayed.stdout


def test_r1_a_secret_that_a_tool_prints_is_in_no_file(workplace: Workplace) -> None:
    """The call's record redacts it too; a replay prints its token."""
    secret = "sk-proj-" + "Zq8" * 16
    source = "import spanreplay\n@spanreplay.boundary('tool')\ndef connect():\n    print('key', KEY, flush=True)\n"
    agent = workplace.write("agent.py", f"import os\nKEY = os.environ['A_KEY']\n{source}    return 1\nconnect()\n")
    recorded = workplace.record(agent, A_KEY=secret)
    assert secret in recorded.stdout
    files = [path for path in (workplace.path / ".spanreplay").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    replayed = workplace.replay(agent, A_KEY="another")
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout.startswith("key rdx-")


PAINT = """
import threading
import time

class Console:
    def __init__(self):
        self._lock = threading.RLock()

    def show(self, *lines):
        with self._lock:
            for line in lines:
                print(line)

    def show_later(self, *lines):
        time.sleep(2)  # which a replay cuts short
        self.show(*lines)
"""
PAINTERS = """
import subprocess
import threading

import paintlib

subprocess.run(["true"])

console = paintlib.Console()

def compute():
    total = 0
    for number in range(5_000_000):
        total += number
    console.show("computed", total)

threads = [threading.Thread(target=compute), threading.Thread(target=console.show_later, args=("waited", "enough"))]
for each in threads:
    each.start()
for each in threads:
    each.join()
print("done")
"""


def test_p10_s26_a_library_that_prints_under_its_own_lock_prints_in_the_recorded_order(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A thread that takes the library's lock early doesn't block the thread whose turn it is to print."""
    site = tmp_path_factory.mktemp("venv") / "site-packages"
    install(site, "paintlib", {"paintlib/__init__.py": PAINT})
    agent = workplace.write("agent.py", PAINTERS)
    recorded = workplace.record(agent, PYTHONPATH=str(site))
    replayed = workplace.replay(agent, PYTHONPATH=str(site))
    assert (replayed.stdout, replayed.verdict["verdict"]) == (recorded.stdout, "identical"), replayed.stderr
