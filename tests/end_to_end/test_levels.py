"""A run recorded at level `calls` replays at that level; manifest, verdict and doctor name what it leaves open."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from spanreplay.model.levels import CALLS, FULL, level_of_recording
from spanreplay.seams.table import SEAMS
from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace, assert_same
from support.units import COMMAND, await_true, serve

AGENT = """
import asyncio, datetime, os, subprocess, sqlite3, sys, threading, uuid
from concurrent.futures import ThreadPoolExecutor
import httpx
import spanreplay

TOPIC = "tea"
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}

def ask_body(text):
    return {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}

def ask(text):
    with httpx.Client(headers=headers) as client:
        return client.post(url, json=ask_body(text)).json()["choices"][0]["message"]["content"]

@spanreplay.boundary("tool", effect="read")
def look_up(number):
    return {"number": number, "id": str(uuid.uuid4())}

answers, lock = {}, threading.Lock()

def work(number):
    found = look_up(number)
    answer = ask(f"about {TOPIC}, {found['id']} at {datetime.datetime.now()}")
    with lock:
        answers[number] = answer

threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

with ThreadPoolExecutor(2) as pool:
    pooled = list(pool.map(ask, [f"pooled {number}" for number in range(4)]))

async def gather():
    async with httpx.AsyncClient(headers=headers) as client:
        async def one(number):
            response = await client.post(url, json=ask_body(f"task {number}"))
            await asyncio.sleep(0.01)
            return response.json()["choices"][0]["message"]["content"]
        return await asyncio.gather(*(one(number) for number in range(3)))

print(sorted(answers.items()), pooled, asyncio.run(gather()))
print(uuid.uuid4(), subprocess.run([sys.executable, "-c", "print(5)"], capture_output=True, text=True).stdout)
database = sqlite3.connect("notes.db")
database.execute("create table if not exists notes (text)")
database.execute("insert into notes values (?)", (pooled[0],))
print(database.execute("select count(*) from notes").fetchone())
"""
"""Threads, a pool and tasks that call a model through httpx, a tool, a program and a database."""


@pytest.fixture
def agent(workplace: Workplace) -> Path:
    """The agent's script."""
    return workplace.write("agent.py", AGENT)


def _of_full_alone() -> set[str]:
    return {name for name in FULL.groups(seam.name for seam in SEAMS) if name not in CALLS}


def test_p7_agent_recorded_at_calls_replays_identical(workplace: Workplace, provider: Provider, agent: Path) -> None:
    """Calls of threads, pools and tasks keep their lanes; the verdict names in one sentence what is open."""
    recorded = workplace.record(agent, SPANREPLAY_LEVEL="calls")
    recording = workplace.recording()
    assert recording.root.manifest["level"] == "calls"
    assert recording.completeness().is_complete
    assert {"timers", "steps", "handovers"}.isdisjoint(recording.root.manifest)
    asked = len(provider.requests)
    provider.stop()
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert asked == len([call for call in recording.calls if call.kind == "llm"]) == 10
    assert replayed.verdict["level"] == {"name": "calls", "leaves_open": CALLS.describe_open()}
    assert "recorded at level calls: the order of timers and tasks, " in replayed.stderr


def test_p7_changed_call_of_a_run_at_calls_diverges(workplace: Workplace, agent: Path) -> None:
    """A changed request is the one cause, at level `calls` too."""
    workplace.record(agent, SPANREPLAY_LEVEL="calls")
    workplace.write("agent.py", AGENT.replace('"pooled {number}"', '"pooled{number}"'))
    replayed = workplace.replay(agent)
    assert replayed.status == 3, replayed.stderr
    assert {kind for kind, _ in replayed.causes()} == {"changed_call"}
    assert replayed.verdict["divergences"][0]["boundary"] == "llm:openai.chat.completions"
    assert replayed.verdict["level"]["name"] == "calls"


def test_p7_a_replay_takes_the_level_of_its_recording(workplace: Workplace, agent: Path) -> None:
    """The replay's environment doesn't matter; the verdict of a full recording doesn't mention a level."""
    workplace.record(agent)
    assert workplace.recording().root.manifest["level"] == "full"
    replayed = workplace.replay(agent, SPANREPLAY_LEVEL="calls")
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert "level" not in replayed.verdict


def test_p7_a_killed_run_is_replayed_at_its_level(workplace: Workplace) -> None:
    """A run without a manifest states its level in its first record."""
    source = "import os, signal, spanreplay\n@spanreplay.boundary('tool')\ndef tool(): return 1\ntool()\n"
    script = workplace.write("agent.py", source + "os.kill(os.getpid(), signal.SIGKILL)\n")
    workplace.record(script, status=-9, SPANREPLAY_LEVEL="calls")
    assert not workplace.recording().root.manifest
    workplace.write("agent.py", source)
    replayed = workplace.replay(script)
    assert replayed.verdict["verdict"] == "incomplete", replayed.stderr
    assert replayed.verdict["level"]["name"] == "calls"


UNPATCHED = """
import asyncio, os, queue, threading, time
from concurrent import futures
for name in ("Lock", "RLock"):
    assert type(getattr(threading, name)).__module__ == "builtins" or name == "RLock", name
for owner, name in (
    (threading.Event, "wait"), (threading.Condition, "wait"), (threading.Semaphore, "acquire"),
    (queue.Queue, "get"), (queue.Queue, "put"), (futures.Future, "result"), (futures.Future, "done"),
    (asyncio.BaseEventLoop, "call_at"), (asyncio.BaseEventLoop, "call_soon_threadsafe"),
):
    assert type(getattr(owner, name)).__name__ == "function", (owner, name)
for name in ("stat", "lstat", "access", "readlink"):  # lists lack the folder of recordings at each level
    assert type(getattr(os, name)).__name__ == "builtin_function_or_method", name
assert type(time.sleep).__name__ == "builtin_function_or_method"

async def count():
    return type(asyncio.get_running_loop()._ready).__name__

import spanreplay

@spanreplay.boundary("tool", effect="read")
async def tool():
    return await count()

async def main():
    await tool()
    return await count()

assert asyncio.run(main()) == "deque"
"""


def test_p7_calls_leaves_locks_queues_waits_looks_and_loops_alone(workplace: Workplace) -> None:
    """The agent gets the standard library's own objects, even in a loop where a call has ended."""
    script = workplace.write("agent.py", UNPATCHED)
    workplace.record(script, SPANREPLAY_LEVEL="calls")
    workplace.record(script, status=1)


def test_p7_a_bad_level_is_one_line(workplace: Workplace) -> None:
    """An unknown level is reported once, and the default is used."""
    script = workplace.write("agent.py", "import spanreplay\nspanreplay.boundary('tool')(lambda: 1)()\n")
    done = workplace.record(script, SPANREPLAY_LEVEL="everything")
    line = "SPANREPLAY_LEVEL='everything' is not one of ('calls', 'full'); using the default"
    assert done.stderr.splitlines() == [line]
    assert workplace.recording().root.manifest["level"] == "full"


def _doctor(workplace: Workplace, *command: str, **environ: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [str(BIN / "spanreplay"), "doctor", "--json", *command],
        cwd=workplace.path,
        env={**workplace.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return {finding["subject"]: finding for finding in json.loads(done.stdout)}


def test_p7_doctor_lists_the_groups_of_each_level(workplace: Workplace) -> None:
    """Without an agent, what each level would patch."""
    found = _doctor(workplace, SPANREPLAY_LEVEL="calls")
    more = [name for name in FULL.groups(seam.name for seam in SEAMS) if name not in CALLS]
    calls = CALLS.groups(seam.name for seam in SEAMS)
    assert found["level calls"]["message"] == f"{len(calls)} groups of patches: {', '.join(calls)}"
    assert found["level full"]["message"] == f"{len(more)} more groups of patches: {', '.join(more)}"
    assert (found["level calls"]["level"], found["level full"]["level"]) == ("ok", "off")
    assert {"timers", "waits of threads", "threads", "looks"} <= set(more)


def test_p7_doctor_counts_what_an_agent_got(workplace: Workplace) -> None:
    """With an agent, the doctor counts the attributes that each group has replaced at its level."""
    script = workplace.write("agent.py", "import spanreplay, threading, queue, asyncio\n")
    full = _doctor(workplace, "--", str(workplace.python), str(script))["patches"]["message"]
    calls = _doctor(workplace, "--", str(workplace.python), str(script), SPANREPLAY_LEVEL="calls")["patches"]["message"]
    assert full.startswith("at level full, ")
    assert calls.startswith("at level calls, ")
    counts = [dict(re.findall(r"([a-z][a-z -]*) (\d+)", message.partition(": ")[2])) for message in (full, calls)]
    assert counts[0].keys() - counts[1].keys() == {
        name for name in FULL.groups(seam.name for seam in SEAMS) if name not in CALLS
    } & set(counts[0])
    assert {"waits of threads", "timers", "looks", "threads"} <= counts[0].keys() - counts[1].keys()
    assert sum(map(int, counts[1].values())) < sum(map(int, counts[0].values()))
    assert int(counts[1]["clock"]) > 10


PICKED = """
import queue, threading
import spanreplay

@spanreplay.boundary("llm", effect="read")
def ask(number):
    return number * 2

tasks, answers = queue.Queue(), {}

def work():
    while (number := tasks.get()) is not None:
        answers[number] = ask(number)

for batch in BATCHES:
    for number in batch:
        tasks.put(number)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(sorted(answers.items()))
"""
"""Two threads read from a queue, and one of them takes everything."""


@pytest.mark.parametrize(("level", "verdict"), [("calls", "identical"), ("full", "diverged")])
def test_p7_which_thread_takes_the_work_is_open_at_calls(workplace: Workplace, level: str, verdict: str) -> None:
    """If another of several equal threads makes a call, it matches at `calls`; at level `full` it has moved."""
    script = workplace.write("agent.py", PICKED.replace("BATCHES", "([0, 1, 2, None], [None])"))
    workplace.record(script, SPANREPLAY_LEVEL=level)
    workplace.write("agent.py", PICKED.replace("BATCHES", "([None], [0, 1, 2, None])"))
    replayed = workplace.replay(script)
    assert replayed.verdict["verdict"] == verdict, replayed.stderr
    assert replayed.verdict["counts"]["moved"] == 3
    assert {d["kind"] for d in replayed.verdict["divergences"]} == (set() if level == "calls" else {"moved"})


def test_p7_a_difference_of_output_names_what_is_open(workplace: Workplace) -> None:
    """If all calls match and the output differs, the verdict names the level that records more."""
    script = workplace.write("agent.py", PICKED.replace("BATCHES", "([0, None],)"))
    workplace.record(script, SPANREPLAY_LEVEL="calls")
    workplace.write("agent.py", PICKED.replace("BATCHES", "([0, None],)") + "print(1)\n")
    replayed = workplace.replay(script)
    assert replayed.causes() == [("output_changed", "process:stdout")]
    assert replayed.verdict["divergences"][0]["hint"] == CALLS.describe_hint()
    assert CALLS.describe_hint().startswith("SPANREPLAY_LEVEL=full records the order of timers and tasks, ")


TRIO = """
import trio
import spanreplay

@spanreplay.boundary("llm", effect="read")
async def ask(number):
    await trio.sleep(0.001)
    return number * 2

answers = {}

async def one(number):
    answers[number] = await ask(number)

async def main():
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(one, number)

trio.run(main)
print(sorted(answers.items()))
"""


@pytest.mark.parametrize(
    "source",
    [TRIO, AGENT.replace("asyncio.run(gather())", "__import__('uvloop').run(gather())")],
    ids=["trio", "uvloop"],
)
def test_p7_other_loops_are_recorded_at_calls(workplace: Workplace, source: str) -> None:
    """Tasks of trio and uvloop keep their lanes, and their runs replay."""
    script = workplace.write("agent.py", source)
    recorded = workplace.record(script, SPANREPLAY_LEVEL="calls")
    assert workplace.recording().completeness().is_complete, recorded.stderr
    replayed = workplace.replay(script)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout


SERVED = """
import spanreplay

@spanreplay.boundary("llm", effect="read")
def ask():
    return 7

async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(ask()).encode()})
"""


@pytest.mark.parametrize(("stated", "level"), [({}, "calls"), ({"SPANREPLAY_LEVEL": "full"}, "full")])
def test_p7_a_server_is_recorded_at_calls_unless_told(stated: dict[str, str], level: str, workplace: Workplace) -> None:
    """The process, its workers and each request share one level, which the verdict of a request names."""
    workplace.write("app.py", SERVED)
    with serve(workplace, "--workers", "2", **stated) as server:
        await_true(lambda: httpx.get(server.url, timeout=TIMEOUT_S).text == "7")
        server.stop()
    assert {level_of_recording(each.root).name for each in workplace.recordings()} == {level}
    replayed = workplace.replay(*COMMAND, source=server.units()[0].run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert ("level" in replayed.verdict) is (level == "calls")


LOOKS = """
import os, subprocess, sys
path = sys.argv[1]
if not os.path.exists(path):
    subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write('made')", path], check=True)
print(open(path).read())
if len(sys.argv) > 2:
    print(os.path.getsize(path), int(os.path.getmtime(path)))
"""


def test_p7_what_was_read_is_there_for_the_looks_of_a_replay(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At `calls`, a file that the run read is found with its size and time, even if it is gone or has been replaced."""
    agent, data = workplace.write("looks.py", LOOKS), tmp_path_factory.mktemp("beside") / "data.txt"
    data.write_text("kept")
    os.utime(data, (1_000_000_000, 1_000_000_000))
    process = workplace.record(agent, str(data), "looks", SPANREPLAY_LEVEL="calls")
    assert process.stdout == "kept\n4 1000000000\n"
    run = workplace.recordings()[-1].run_id
    for change in (data.unlink, lambda: data.write_text("another one")):
        change()
        replayed = workplace.replay(agent, str(data), "looks", source=run)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.stdout == process.stdout


def test_p7_what_a_program_made_is_not_there_before_it(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file read after a program ran may be that program's: it is absent when the replay begins."""
    agent, data = workplace.write("looks.py", LOOKS), tmp_path_factory.mktemp("beside") / "data.txt"
    workplace.record(agent, str(data), SPANREPLAY_LEVEL="calls")
    recording = workplace.recordings()[0]
    data.unlink()
    replayed = workplace.replay(agent, str(data), source=recording.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


COMPUTES = """
import asyncio, hashlib
from spanreplay import boundary

@boundary("tool", effect="read")
def begin():
    return 4_000_000

def compute(rounds):
    return hashlib.pbkdf2_hmac("sha256", b"a", b"b", rounds).hex()

async def main():
    print(await asyncio.wait_for(asyncio.to_thread(compute, begin()), 60))

asyncio.run(main())
"""


def test_p7_no_deadline_passes_while_a_thread_computes(workplace: Workplace) -> None:
    """A replay at `calls` doesn't know when a timer fired: work that takes seconds gets the time to end."""
    agent = workplace.write("computes.py", COMPUTES)
    process = workplace.record(agent, SPANREPLAY_LEVEL="calls")
    replayed = workplace.replay(agent)
    assert replayed.stdout == process.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


SLOW = """
import select
import anyio, anyio.to_thread
from anyio._backends import _asyncio
from spanreplay import boundary

begin = _asyncio.WorkerThread.run

def run(thread):
    select.select([], [], [], 0.25)  # as on a busy machine
    begin(thread)

_asyncio.WorkerThread.run = run

@boundary("tool", effect="read")
def ask():
    return "answer"

async def main():
    with anyio.move_on_after(60) as scope:
        print(await anyio.to_thread.run_sync(ask))
    print(scope.cancel_called)

anyio.run(main)
"""


def test_p7_no_deadline_passes_before_a_thread_has_begun(workplace: Workplace) -> None:
    """A call that a loop has handed to a thread counts as running, even if the thread is slow to start."""
    agent = workplace.write("slow.py", SLOW)
    assert workplace.record(agent, SPANREPLAY_LEVEL="calls").stdout == "answer\nFalse\n"
    replayed = workplace.replay(agent)
    assert replayed.stdout == "answer\nFalse\n"
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


CALLS_ON = """
import asyncio, select
from spanreplay import boundary

@boundary("tool", effect="read")
def ask(number):
    return number

def work():
    total = 0
    for number in range(8):
        select.select([], [], [], 0.45)  # neither computes nor waits for anything that a replay sees
        total += ask(number)
    return total

async def main():
    print(await asyncio.wait_for(asyncio.to_thread(work), 60))

asyncio.run(main())
"""


def test_p7_no_deadline_passes_while_a_thread_makes_calls(workplace: Workplace) -> None:
    """Each call of a thread counts as progress, even if it computes little in between."""
    agent = workplace.write("calls_on.py", CALLS_ON)
    assert workplace.record(agent, SPANREPLAY_LEVEL="calls").stdout == "28\n"
    replayed = workplace.replay(agent)
    assert replayed.stdout == "28\n"
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


LAGGING: Final = """
import asyncio, time
from spanreplay import boundary

@boundary("tool")
async def do(what, seconds):
    await asyncio.sleep(seconds)
    return what

async def slow():
    time.sleep(0.3)  # no loop's clock counts this in a replay
    print(await do("slow", 0.2))

async def quick():
    await asyncio.sleep(0.25)
    print(await do("quick", 0.01))

async def main():
    await asyncio.gather(quick(), slow())
asyncio.run(main())
"""


def test_p7_s29_a_call_waits_for_one_behind_a_timer_at_calls(workplace: Workplace) -> None:
    """The timer is later on the loop's clock than the end of the call, but not than the recording was long."""
    script = workplace.write("agent.py", LAGGING)
    recorded = workplace.record(script, SPANREPLAY_LEVEL="calls")
    assert recorded.stdout == "quick\nslow\n"
    assert_same(workplace.replay(script), recorded.stdout)
