"""A command that replays ends its agent when it is ended itself, even an agent that ignores signals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.units import COMMAND, Server, prepare, serve

APP: Final = """
import os, signal, time

from fastapi import FastAPI

app = FastAPI()

@app.get("/")
async def answer():
    if os.environ.get("IS_STUCK"):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("stuck", flush=True)
        while True:
            time.sleep(0.01)
    return "fine"
"""
FORMS: Final[dict[str, Callable[[Recording, str], list[str]]]] = {
    "replay": lambda unit, command: ["replay", unit.run_id, "--", *command.split()],
    "suite": lambda unit, command: ["suite", "--run", unit.run_id, "--", *command.split()],
    "trace": lambda unit, command: ["trace", str(unit.root.env["unit"]["trace"]), "--service", f"app:app={command}"],
}


def record(provider: Provider, path: Path) -> tuple[Server, Recording]:
    """Record one request, with the trace of its caller."""
    with serve(prepare(path, provider, APP)) as server:
        traced = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        assert httpx.get(server.url, headers=traced, timeout=TIMEOUT_S).json() == "fine"
        server.stop()
    (unit,) = server.units()
    return server, unit


def start_stuck(workplace: Workplace, arguments: list[str]) -> subprocess.Popen[str]:
    """Start a command whose agent, once it is stuck, ignores every signal that can be ignored."""
    started = subprocess.Popen(
        [str(BIN / "spanreplay"), *arguments],
        cwd=workplace.path,
        env={**workplace.environ, "IS_STUCK": "true"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert started.stdout is not None
    while started.stdout.readline() != "stuck\n":
        assert started.poll() is None
    return started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda each: each.name)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.sampled(4)
def test_p2_a_replay_that_is_ended_leaves_no_agent_behind(
    provider: Provider, tmp_path: Path, form: str, number: signal.Signals
) -> None:
    """Whichever command replays and whichever signal ends it: the agent that ignores signals ends too."""
    server, unit = record(provider, tmp_path)
    command = " ".join((str(server.workplace.python), *COMMAND))
    started = start_stuck(server.workplace, FORMS[form](unit, command))
    os.kill(started.pid, number)
    started.communicate(timeout=TIMEOUT_S)  # the agent holds standard output open for as long as it lives
    assert started.returncode not in (0, 4)


def test_p2_a_suite_that_is_ended_starts_no_further_agent(provider: Provider, tmp_path: Path) -> None:
    """Units of two processes: the start of the second one does not begin after the signal."""
    server, first = record(provider, tmp_path)
    with serve(server.workplace) as again:
        httpx.get(again.url, timeout=TIMEOUT_S)
        again.stop()
    second = next(unit for unit in again.units() if unit.run_id != first.run_id)
    arguments = ["suite", "--run", first.run_id, "--run", second.run_id, "--", str(server.workplace.python), *COMMAND]
    started = start_stuck(server.workplace, arguments)
    started.send_signal(signal.SIGTERM)
    rest, _ = started.communicate(timeout=TIMEOUT_S)
    assert "stuck" not in rest
    assert started.returncode == 128 + signal.SIGTERM
