"""An agent limits how long it waits for a call; the limit changes, and with it how the call would end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

AGENT: Final = """
import asyncio
from spanreplay import boundary

LIMIT = {limit}

@boundary("tool", effect="read")
async def search(what):
    await asyncio.sleep(0.6)
    return "found " + what

async def main():
    try:
        async with asyncio.timeout(LIMIT):
            print(await search("a shop"))
    except TimeoutError:
        print("nothing")
    print(await asyncio.wait_for(search("another shop"), 30))

asyncio.run(main())
"""


@pytest.fixture(params=["calls", "full"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Workplace:
    """A folder whose recordings have this level."""
    return Workplace(tmp_path, {"SPANREPLAY_LEVEL": request.param})


def _change(place: Workplace, limit: float, note: str = "") -> None:
    place.write("agent.py", AGENT.format(limit=limit) + note)


def _record(place: Workplace, limit: float) -> None:
    """Record the agent; a change elsewhere in its code changes nothing."""
    _change(place, limit)
    place.record("agent.py")
    _change(place, limit, "print  # a change elsewhere")
    assert place.replay("agent.py").verdict["verdict"] == "identical"


def test_p12_n2_a_shorter_limit_than_the_call_took_is_a_difference(place: Workplace) -> None:
    """At `calls` the agent runs into it. A longer one changes nothing."""
    _record(place, 20)
    _change(place, 60)
    assert place.replay("agent.py").verdict["verdict"] == "identical"
    _change(place, 0.2)
    replayed = place.replay("agent.py")
    assert replayed.verdict["verdict"] == "diverged"
    assert ("a timer of 0.2 s goes off before its end now" in replayed.stderr) != ("nothing" in replayed.stdout)


def test_p12_n2_a_pause_beside_a_call_is_no_limit_of_it(place: Workplace) -> None:
    """A heartbeat that the changed code has beside its calls ends none of them."""
    _change(place, 20)
    place.record("agent.py")
    beating = "async def beat():\n    while True:\n        await asyncio.sleep(0.1)\n\nasync def main():\n"
    started = beating + "    beats = asyncio.create_task(beat())\n"
    place.write("agent.py", AGENT.format(limit=20).replace("async def main():\n", started))
    assert place.replay("agent.py").verdict["verdict"] == "identical"


def test_p12_n2_a_longer_limit_than_one_that_was_run_into_is_a_difference(place: Workplace) -> None:
    """Nobody knows what the call would have given: it was cancelled."""
    _record(place, 0.2)
    _change(place, 5)
    replayed = place.replay("agent.py", options=("--stub", "tool"))
    assert replayed.verdict["verdict"] == "diverged"
    if place.environ["SPANREPLAY_LEVEL"] == "full":
        assert "a wait for it ran out after 0.2 s when recorded, and would last 5 s now" in replayed.stderr
    else:
        assert re.search(r"it was cancelled after 0\.\d+ s when recorded, and would be after 5 s now", replayed.stderr)


_TOOL: Final = """
import subprocess, sys, threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, TimeoutError, as_completed, wait
from spanreplay import boundary

@boundary("tool", effect="read")
def search(what):
    threading.Event().wait(0.6)
    return "found " + what

def look(limit):
    with ThreadPoolExecutor() as pool:
        job = pool.submit(search, "a shop")
{body}

SLOW = [sys.executable, "-c", "import time; time.sleep(0.6)"]

{whole}
print(look(LIMIT))
"""
WAITS: Final = {
    "result": "        return job.result(limit)",
    "wait": "        return len(wait([job], timeout=limit).done)",
    "first": "        return len(wait([job], limit, FIRST_COMPLETED).done)",
    "as-completed": "        return [each.result() for each in as_completed([job], limit)]",
}
"""How a program may wait for a job, each with a limit."""
WHOLE: Final = {
    "join": """
def look(limit):
    thread = threading.Thread(target=search, args=("a shop",))
    thread.start()
    thread.join(limit)
    return thread.is_alive()
""",
    "run": """
def look(limit):
    return subprocess.run(SLOW, timeout=limit).returncode
""",
    "communicate": """
def look(limit):
    with subprocess.Popen(SLOW, stdout=subprocess.PIPE) as program:
        try:
            return program.communicate(timeout=limit)
        finally:
            program.kill()
""",
    "process-wait": """
def look(limit):
    with subprocess.Popen(SLOW) as program:
        return program.wait(limit)
""",
}
"""Other ways to wait: for a thread, for a program."""


def _of(name: str, limit: float | None, note: str = "") -> str:
    body, whole = WAITS.get(name, "        pass"), WHOLE.get(name, "")
    source = _TOOL.format(body=body, whole=whole).replace("LIMIT", str(limit))
    called = f"print(look({limit}))"
    caught = f"try:\n    {called}\nexcept (TimeoutError, subprocess.TimeoutExpired):\n    print('nothing')\n"
    return source.replace(called, caught) + note


@pytest.mark.parametrize("name", [*WAITS, *WHOLE])
def test_p12_n2_a_limit_of_a_wait_for_a_thread_or_a_program_that_decides_is_a_difference(
    name: str, tmp_path: Path
) -> None:
    """A shorter one than the wait took, and a longer one than one that was run into; others change nothing."""
    place = Workplace(tmp_path, {"SPANREPLAY_LEVEL": "full"})
    place.write("agent.py", _of(name, 20))
    place.record("agent.py")
    for limit in (60, None):
        place.write("agent.py", _of(name, limit))
        assert place.replay("agent.py").verdict["verdict"] == "identical"
    place.write("agent.py", _of(name, 0.05))
    shorter = place.replay("agent.py")
    assert shorter.verdict["verdict"] == "diverged"
    assert re.search(r"lasted [\d.]+ s when recorded, and would run out after 0\.0\d+ s now", shorter.stderr)


@pytest.mark.parametrize("name", [*WAITS, *WHOLE])
def test_p12_n2_a_longer_limit_of_a_wait_that_ran_out_is_a_difference(name: str, tmp_path: Path) -> None:
    """Only one that reaches to the end of what was awaited."""
    place = Workplace(tmp_path, {"SPANREPLAY_LEVEL": "full"})
    place.write("agent.py", _of(name, 0.15))
    place.record("agent.py")
    place.write("agent.py", _of(name, 0.15, "print  # a change elsewhere"))
    assert place.replay("agent.py").verdict["verdict"] == "identical"
    place.write("agent.py", _of(name, 5))
    longer = place.replay("agent.py")
    assert longer.verdict["verdict"] == "diverged"
    assert "ran out after 0.15 s when recorded, and would last 5 s now" in longer.stderr


@pytest.mark.parametrize("name", [*WAITS, "join"])
def test_p12_n2_a_longer_limit_that_would_run_out_too_is_none(name: str, tmp_path: Path) -> None:
    """The job took a second longer than the wait for it; half of that changes nothing."""
    place = Workplace(tmp_path, {"SPANREPLAY_LEVEL": "full"})
    longer = _of(name, 0.15).replace("wait(0.6)", "wait(1.2)")
    place.write("agent.py", longer)
    place.record("agent.py")
    place.write("agent.py", longer.replace("0.15", "0.5"))
    replayed = place.replay("agent.py")
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


ASYNC: Final = {
    "program": """
    program = await asyncio.create_subprocess_exec(*SLOW, stdout=-1)
    try:
        return await asyncio.wait_for(program.communicate(), limit)
    except asyncio.TimeoutError:
        program.kill()
        await program.wait()
        return "nothing"
""",
    "tasks": """
    task = asyncio.create_task(search("a shop"))
    done, rest = await asyncio.wait([task], timeout=limit)
    await task
    return len(done)
""",
    "shielded": """
    task = asyncio.create_task(search("a shop"))
    try:
        return await asyncio.wait_for(asyncio.shield(task), limit)
    except asyncio.TimeoutError:
        return "late: " + await task
""",
}
_ASYNC: Final = """
import asyncio, sys
from spanreplay import boundary

SLOW = [sys.executable, "-c", "import time; time.sleep(0.6)"]

@boundary("tool", effect="read")
async def search(what):
    await asyncio.sleep(0.6)
    return "found " + what

async def look(limit):{body}

print(asyncio.run(look({limit})))
"""


@pytest.mark.parametrize("name", ASYNC)
def test_p12_n2_a_longer_limit_of_a_task_that_ran_out_is_a_difference(name: str, tmp_path: Path) -> None:
    """Also where no call was cancelled; one that is still too short for the call is none."""
    place = Workplace(tmp_path, {"SPANREPLAY_LEVEL": "full"})
    place.write("agent.py", _ASYNC.format(body=ASYNC[name], limit=0.15))
    place.record("agent.py")
    for limit, verdict in ((0.1501, "identical"), (5, "diverged")):
        place.write("agent.py", _ASYNC.format(body=ASYNC[name], limit=limit))
        replayed = place.replay("agent.py")
        assert replayed.verdict["verdict"] == verdict, replayed.stderr
    assert "ran out after 0.15 s when recorded, and would last 5 s now" in replayed.stderr
