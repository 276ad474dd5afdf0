"""kill -9 at random points: everything that the agent had received is recorded, and replays without a live call."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spanreplay.model.call import Outcome, Recording
from support.replaying import BIN, Workplace
from support.route_server import RouteServer

AGENT = """
import asyncio, os, sys, uuid
import httpx
import spanreplay

@spanreplay.boundary("tool", name="write", effect="irreversible")
def write(n):
    with open("effects", "a") as stream:
        stream.write(f"{n}\\n")
    return f"wrote {n} {uuid.uuid4().hex}"

@spanreplay.boundary("tool", name="ask", effect="read")
async def ask(n):
    await asyncio.sleep(0)
    return f"asked {n} {uuid.uuid4().hex}"

@spanreplay.boundary("tool", name="items", effect="read")
def items(n):
    for _ in range(3):
        yield f"item {n} {uuid.uuid4().hex}"

def say(text):
    print(text, flush=True)

async def main():
    async with httpx.AsyncClient(timeout=None) as client:
        for n in range(100_000):
            say(write(n))
            for answer in await asyncio.gather(ask(n), ask(n)):
                say(answer)
            for item in items(n):
                say(item)
            say((await client.get(os.environ["URL"] + f"/x?n={n}")).text)

asyncio.run(main())
"""
LINES_MAX = 60


@pytest.fixture
def server() -> Iterator[RouteServer]:
    """A server that numbers its answers."""
    count = iter(range(1_000_000))
    with RouteServer({"/x": lambda handler: handler.send(f"served {next(count)}".encode())}) as running:
        yield running


@pytest.fixture
def workplace(tmp_path: Path, server: RouteServer) -> Workplace:
    """A directory to record in."""
    return Workplace(tmp_path, {"URL": server.url})


def kill_after(workplace: Workplace, agent: Path, lines: int) -> list[str]:
    """Run the agent and kill it after so many printed lines; return all whole lines that it printed."""
    process = workplace.spawn([str(workplace.python), str(agent)])
    assert process.stdout is not None
    found = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    rest = process.stdout.read()  # `communicate` would miss the part that `readline` has buffered
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    return [line.rstrip("\n") for line in [*found, *rest.splitlines(keepends=True)] if line.endswith("\n")]


def answers_of(recording: Recording) -> set[str]:
    """Return every text that a finished call answered."""
    found: set[str] = set()
    for call in recording.calls:
        if call.outcome == Outcome.OPEN.value or not call.response:
            continue
        response = json.loads(call.response)
        found.update(response.get("items", []))
        found.add(str(response.get("value")))
        found.add("".join(str(chunk[1]) for chunk in response.get("chunks", [])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.sampled(4)
def test_s48_killed_agent_lost_nothing_that_it_had(seed: int, workplace: Workplace, server: RouteServer) -> None:
    """Every printed result is in the recording, which is incomplete and says why; its replay ends there, exit 4."""
    agent = workplace.write("agent.py", AGENT)
    printed = kill_after(workplace, agent, random.Random(seed).randint(1, LINES_MAX))
    recording = workplace.recording()
    had = list(printed)
    while had and had[-1].startswith("item"):
        had.pop()  # a stream is a call that has not ended: its record is written when it does
    assert set(had) <= answers_of(recording)
    completeness = recording.completeness()
    assert not completeness.is_complete
    assert "the run did not end: its process was killed or is still running" in completeness.reasons
    assert all("was started and never finished" in reason for reason in completeness.reasons[1:])

    shown = subprocess.run(
        [str(BIN / "spanreplay"), "ls", "--json"],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [row["status"] for row in json.loads(shown.stdout)] == ["incomplete"]

    server.stop()
    effects = (workplace.path / "effects").read_bytes()
    replayed = workplace.replay(agent)
    assert replayed.status == 4, replayed.stderr
    assert replayed.verdict["verdict"] == "incomplete"
    assert replayed.verdict["divergences"] == []
    assert replayed.stdout.splitlines()[: len(printed)] == printed[: len(replayed.stdout.splitlines())]
    assert len(replayed.stdout.splitlines()) >= len(printed) - 3
    assert (workplace.path / "effects").read_bytes() == effects
    assert replayed.verdict["counts"]["live"] == 0
    assert replayed.verdict["sockets_denied"] == []
