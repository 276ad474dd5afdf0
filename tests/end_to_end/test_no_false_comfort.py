"""A green verdict hides nothing: changed code that did not run, plans that match nothing, holes."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from support.replaying import BIN, Workplace

AGENT = """
import spanreplay

def price(shares):
    return shares * 2

@spanreplay.boundary("tool", effect="irreversible")
def place_order(symbol, shares):
    return f"bought {shares} {symbol} for {price(shares)}"

@spanreplay.boundary("tool", effect="read")
def look(symbol):
    return symbol

print(look("ACME"), place_order("ACME", 5))
"""


@pytest.fixture
def recorded(workplace: Workplace) -> Workplace:
    """A recorded agent with two tools."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    return workplace


def _replay(workplace: Workplace, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "spanreplay"), "replay", "latest", *options, "--", str(workplace.python), "agent.py"]
    return subprocess.run(
        command, cwd=workplace.path, env=workplace.environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "change", [("bought", "REFUSED"), ("shares * 2", "shares * 3")], ids=["the tool itself", "a function that it calls"]
)
def test_p12_an_edited_tool_that_was_served_is_named(recorded: Workplace, change: tuple[str, str]) -> None:
    """Text, JUnit and GitHub name the tool, its line and the option that runs it; a flag makes that a failure."""
    recorded.write("agent.py", AGENT.replace(*change))
    junit = recorded.path / "junit.xml"
    done = _replay(recorded, "--junit", str(junit), "--github")
    line = "not exercised: place_order (agent.py:7 changed since the recording); run it with --live tool:place_order"
    assert done.returncode == 0, done.stderr
    assert f"\n  {line}\n" in done.stderr
    assert "look (" not in done.stderr
    assert f"::warning file=agent.py,line=7,title=spanreplay%3A not exercised::{line}" in done.stderr
    skipped = ET.parse(junit).getroot().findall(".//skipped")  # noqa: S314 -- our own output
    assert line in [each.get("message") for each in skipped]
    assert _replay(recorded, "--fail-on-unexercised").returncode == 3


def test_p12_comments_and_positions_are_no_change(recorded: Workplace) -> None:
    """A comment above a tool, or a changed tool that runs live, gives no warning."""
    recorded.write("agent.py", AGENT.replace("def price", "# what it costs\n\ndef price"))
    done = _replay(recorded, "--fail-on-unexercised")
    assert (done.returncode, "not exercised" in done.stderr) == (0, False)
    recorded.write("agent.py", AGENT.replace("shares * 2", "2 * shares"))
    done = _replay(recorded, "--live", "tool:place_order", "--fail-on-unexercised")
    assert (done.returncode, "not exercised" in done.stderr) == (0, False)


@pytest.mark.parametrize("option", ["--live", "--stub", "--on-change"])
def test_p12_a_selector_that_fits_nothing_is_refused(recorded: Workplace, option: str) -> None:
    """A misspelt name exits with 2 before the agent runs, and the recorded name is suggested."""
    done = _replay(recorded, option, "tool:plase_order" + ("=serve" if option == "--on-change" else ""))
    assert done.returncode == 2
    assert "'tool:plase_order' fits no recorded call; the recording has tool:place_order" in done.stderr
    assert done.stdout == ""


def test_p12_a_patch_that_fits_nothing_is_refused(recorded: Workplace) -> None:
    """Patching an argument that the tool doesn't have exits with 2; patching one that it has is accepted."""
    refused = _replay(recorded, "--set", "tool:place_order[1].sharez = 9")
    assert refused.returncode == 2, refused.stderr
    assert "symbol" in refused.stderr
    assert "shares" in refused.stderr
    assert _replay(recorded, "--set", "tool:place_order[1].shares = 9").returncode == 3


def test_u5_json_on_standard_output_is_json_alone(recorded: Workplace) -> None:
    """`--json -` redirects the agent's output to standard error."""
    done = _replay(recorded, "--json", "-")
    assert json.loads(done.stdout)["verdict"] == "identical"
    assert "bought 5 ACME" in done.stderr


def test_u5_no_frame_of_ours_stands_before_a_verdict(recorded: Workplace) -> None:
    """An unanswered call is reported by the verdict alone; with SPANREPLAY_DEBUG the traceback is shown."""
    recorded.write("agent.py", AGENT.replace('("ACME", 5)', '("ACME", 6)'))
    done = _replay(recorded)
    assert done.returncode == 3
    assert done.stderr.startswith("✘ diverged at call 2")
    assert "Traceback" not in done.stderr
    asked = subprocess.run(
        [str(BIN / "spanreplay"), "replay", "latest", "--", str(recorded.python), "agent.py"],
        cwd=recorded.path,
        env={**recorded.environ, "SPANREPLAY_DEBUG": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" in asked.stderr
    assert "ReplayMiss" in asked.stderr


def test_u5_an_exception_around_a_call_shows_the_agents_frames(recorded: Workplace) -> None:
    """An exception that the agent raises because of an unanswered call is printed without frames of ours."""
    changed = 'try:\n    place_order("ACME", 6)\nexcept BaseException as exc:\n    raise RuntimeError("no") from exc\n'
    recorded.write("agent.py", AGENT.replace('print(look("ACME"), place_order("ACME", 5))', changed))
    done = _replay(recorded)
    assert "RuntimeError: no" in done.stderr
    assert 'agent.py", line' in done.stderr
    assert "spanreplay/runtime/calls/function_calls.py" not in done.stderr
    assert "instrumentation/spanreplay" not in done.stderr


IN_ORDER: Final = """
import asyncio
from spanreplay import boundary

@boundary("tool", effect="write")
async def do(what):
    return what

async def work(name):
    await do(f"{name}: check")
    await do(f"{name}: pay")

async def main():
    await work("first")
    await asyncio.gather(*(asyncio.create_task(work(each)) for each in "ab"))

asyncio.run(main())
print("done")
"""


@pytest.mark.parametrize("level", ["calls", "full"])
def test_p12_s28_calls_of_one_lane_in_another_order_are_a_difference(level: str, tmp_path: Path) -> None:
    """Also where the order of tasks and threads is not recorded: within each of them it is."""
    workplace = Workplace(tmp_path, {"SPANREPLAY_LEVEL": level})
    workplace.write("agent.py", IN_ORDER)
    workplace.record("agent.py")
    assert workplace.replay("agent.py").verdict["verdict"] == "identical"
    swapped = IN_ORDER.replace("check", "X").replace("pay", "check").replace("X", "pay")
    workplace.write("agent.py", swapped)
    replayed = workplace.replay("agent.py")
    assert replayed.causes()[0] == ("moved", "tool:do"), replayed.stderr


ONE_AFTER_THE_OTHER: Final = {
    "tasks": """
import asyncio
from spanreplay import boundary

@boundary("tool", effect="write")
async def do(what):
    return what

async def step(what):
    return await do(what)

async def main():
    for what in ("check", "pay"):
        await asyncio.create_task(step(what))

asyncio.run(main())
""",
    "jobs": """
from concurrent.futures import ThreadPoolExecutor
from spanreplay import boundary

@boundary("tool", effect="write")
def do(what):
    return what

with ThreadPoolExecutor(2) as pool:
    for what in ("check", "pay"):
        pool.submit(do, what).result()
""",
}


@pytest.mark.parametrize("kind", ONE_AFTER_THE_OTHER)
def test_p12_s28_equal_tasks_in_another_order_are_a_difference_if_code_has_changed(kind: str, tmp_path: Path) -> None:
    """Which of two equal tasks makes a call is not recorded at `calls`; but one waited for the other."""
    workplace = Workplace(tmp_path, {"SPANREPLAY_LEVEL": "calls"})
    workplace.write("agent.py", ONE_AFTER_THE_OTHER[kind])
    workplace.record("agent.py")
    assert workplace.replay("agent.py").verdict["verdict"] == "identical"
    workplace.write("agent.py", ONE_AFTER_THE_OTHER[kind].replace('"check", "pay"', '"pay", "check"'))
    replayed = workplace.replay("agent.py")
    assert replayed.causes()[0] == ("moved", "tool:do"), replayed.stderr
    assert "agent.py has changed since the recording" in replayed.stderr


TURNS: Final = """
import queue, sys, threading
from spanreplay import boundary

@boundary("tool", effect="write")
def do(what):
    return what

jobs = queue.Queue()
turns = {0: threading.Event(), 1: threading.Event()}
ORDER = [0, 0, 0, 1] if "other" in sys.argv else [0, 1, 0, 0]

def work(number):
    while turns[number].wait():
        turns[number].clear()
        job = jobs.get()
        if job is None:
            break
        do(job)
        over.set()

over = threading.Event()
threads = [threading.Thread(target=work, args=(number,), name="worker") for number in turns]
for each in threads:
    each.start()
for job, number in zip("abcd", ORDER):
    over.clear()
    jobs.put(job)
    turns[number].set()
    over.wait()
for number in turns:
    jobs.put(None)
    turns[number].set()
for each in threads:
    each.join()
print("done")
"""


def test_p12_n12_workers_that_take_each_others_items_are_no_difference_at_calls(tmp_path: Path) -> None:
    """Which of two equal threads takes the next item is not recorded there; each item is done once."""
    workplace = Workplace(tmp_path, {"SPANREPLAY_LEVEL": "calls"})
    workplace.write("agent.py", TURNS)
    workplace.record("agent.py")
    replayed = workplace.replay("agent.py", "other", options=("--stub", "tool"))
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.verdict["counts"]["moved"] == 3


CHECK_AND_PAY: Final = """
import asyncio, sys
from spanreplay import boundary

@boundary("tool", effect="read")
def look(account):
    return 12

@boundary("tool", effect="read")
def rate(account):
    return 2

@boundary("tool", effect="irreversible")
def pay(account):
    return "paid"

@boundary("tool", effect="write")
async def tell(who):
    await asyncio.sleep(0)
    return "told"

@boundary("tool", effect="irreversible")
async def send(what):
    await asyncio.sleep(0)
    return "sent"

async def main():
    first = await tell("ann")
    second = await send("money")
    print(first, second)

seen = look(1)
at = rate(1)
done = pay(1)
print(seen, at, done)
asyncio.run(main())
"""
SWAPS: Final = {
    "pay before look": (
        "seen = look(1)\nat = rate(1)\ndone = pay(1)",
        "done = pay(1)\nseen = look(1)\nat = rate(1)",
    ),
    "send before tell": (
        '    first = await tell("ann")\n    second = await send("money")',
        '    second = await send("money")\n    first = await tell("ann")',
    ),
}


def _insist_moved(workplace: Workplace, source: str, swaps: Mapping[str, tuple[str, str]]) -> None:
    """Replay the recorded agent with each of these texts replaced; each time, calls have moved, and nothing else."""
    for name, (before, after) in swaps.items():
        assert before in source, name
        workplace.write("agent.py", source.replace(before, after))
        replayed = workplace.replay("agent.py", options=("--stub", "tool"))
        assert {kind for kind, _ in replayed.causes()} == {"moved"}, (name, replayed.stderr)
        assert "now behind it" in replayed.stderr


@pytest.mark.parametrize("level", ["calls", "full"])
def test_p12_s28_different_calls_in_another_order_are_a_difference(level: str, tmp_path: Path) -> None:
    """Each call and the output are as recorded, but money is sent before anyone is told. Two looks may swap places."""
    workplace = Workplace(tmp_path, {"SPANREPLAY_LEVEL": level})
    workplace.write("agent.py", CHECK_AND_PAY)
    workplace.record("agent.py")
    _insist_moved(workplace, CHECK_AND_PAY, SWAPS)
    workplace.write("agent.py", CHECK_AND_PAY.replace("seen = look(1)\nat = rate(1)", "at = rate(1)\nseen = look(1)"))
    assert workplace.replay("agent.py").verdict["verdict"] == "identical"
    workplace.write("agent.py", CHECK_AND_PAY.replace("at = rate(1)", "at = 2"))
    assert workplace.replay("agent.py", options=("--stub", "tool")).causes() == [("missing_call", "tool:rate")]


ACROSS: Final = """
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
from spanreplay import boundary

@boundary("tool", effect="write")
def note(what):
    return what

@boundary("tool", effect="irreversible")
async def send(what):
    await asyncio.sleep(0)
    return what

async def inner(what):
    return await asyncio.create_task(send_it(what))

async def send_it(what):
    return await send(what)

async def check():
    return note("checked")

async def main():
    await asyncio.create_task(check())
    await asyncio.create_task(inner("money"))

pool = ThreadPoolExecutor(2)
note("before the task")
asyncio.run(inner("one"))
note("before the job")
pool.submit(note, "the job").result()
thread = threading.Thread(target=note, args=("the thread",))
thread.start()
thread.join()
note("after the thread")
asyncio.run(main())
"""
_TASK: Final = ('note("before the task")\n', 'asyncio.run(inner("one"))\n')
_JOB: Final = ('note("before the job")\n', 'pool.submit(note, "the job").result()\n')
_THREAD: Final = (
    'thread = threading.Thread(target=note, args=("the thread",))\nthread.start()\nthread.join()\n',
    'note("after the thread")\n',
)
_TASKS: Final = (
    "    await asyncio.create_task(check())\n",
    '    await asyncio.create_task(inner("money"))\n',
)
ACROSS_SWAPS: Final = {
    "a task and the code that waits for it": (_TASK[0] + _TASK[1], _TASK[1] + _TASK[0]),
    "a job and the code that waits for it": (_JOB[0] + _JOB[1], _JOB[1] + _JOB[0]),
    "a thread and the code that waits for it": (_THREAD[0] + _THREAD[1], _THREAD[1] + _THREAD[0]),
    "two tasks": (_TASKS[0] + _TASKS[1], _TASKS[1] + _TASKS[0]),
}


@pytest.mark.parametrize("level", ["calls", "full"])
def test_p12_s28_calls_of_lanes_that_wait_for_each_other_have_an_order(level: str, tmp_path: Path) -> None:
    """What a program does before it starts a task, job or thread comes before what that does."""
    workplace = Workplace(tmp_path, {"SPANREPLAY_LEVEL": level})
    workplace.write("agent.py", ACROSS)
    workplace.record("agent.py")
    assert workplace.replay("agent.py").verdict["verdict"] == "identical"
    _insist_moved(workplace, ACROSS, ACROSS_SWAPS)


SET_ORDER: Final = """
import sys
from spanreplay import boundary

@boundary("tool", effect="write")
def do(what):
    return what

for each in ("b", "a") if "other" in sys.argv else ("a", "b"):  # as in a set of objects
    do(each)
"""


@pytest.mark.parametrize(("level", "verdict"), [("calls", "identical"), ("full", "diverged")])
def test_p12_n12_unchanged_code_that_goes_through_a_set_is_the_same_at_calls(
    level: str, verdict: str, tmp_path: Path
) -> None:
    """There the calls are counted as in another order; at `full` that is a difference."""
    workplace = Workplace(tmp_path, {"SPANREPLAY_LEVEL": level})
    workplace.write("agent.py", SET_ORDER)
    workplace.record("agent.py")
    replayed = workplace.replay("agent.py", "other", options=("--stub", "tool"))
    assert replayed.verdict["verdict"] == verdict, replayed.stderr
    assert replayed.verdict["counts"].get("reordered", 0) == (2 if level == "calls" else 0)
