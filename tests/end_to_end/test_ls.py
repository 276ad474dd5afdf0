"""`spanreplay ls` at a terminal: ids, times and states as an on-call person needs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest

from support.replaying import BIN, Workplace
from support.terminal import run_in_terminal

LS = [str(BIN / "spanreplay"), "ls"]
CALL = """
import subprocess
subprocess.run(["true"])
"""
GOES_ON = CALL + 'print("recorded", flush=True)\nimport threading\nthreading.Event().wait()\n'
WAITS = """
import spanreplay
print(spanreplay.human.input("Pay? ", choices=("yes", "no")))
"""
LONG = "an-agent-with-a-name-that-is-longer-than-most"


def listed(workplace: Workplace, *options: str) -> list[dict[str, Any]]:
    """The machine-readable listing."""
    done = subprocess.run(
        [*LS, "--json", *options], cwd=workplace.path, env=workplace.environ, text=True, capture_output=True, check=True
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_s19_states_are_running_waiting_ended(workplace: Workplace) -> None:
    """A run is running while its process lives; a killed run has ended and is incomplete."""
    workplace.write("agent.py", GOES_ON)
    process = workplace.spawn([str(workplace.python), "agent.py"])
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded\n"
    (running,) = listed(workplace)
    assert (running["state"], running["status"]) == ("running", "incomplete")
    assert [row["run_id"] for row in listed(workplace, "--status", "running")] == [running["run_id"]]
    seen = run_in_terminal(LS, workplace.path, workplace.environ)
    assert "running" in seen.lines[1]
    process.kill()
    process.communicate()
    (killed,) = listed(workplace)
    assert (killed["state"], killed["status"]) == ("ended", "incomplete")
    assert listed(workplace, "--status", "running") == []
    workplace.write("agent.py", CALL)
    workplace.record("agent.py")
    assert (listed(workplace)[0]["state"], listed(workplace)[0]["status"]) == ("ended", "ok")


def test_s19_a_run_that_waits_is_waiting_until_it_is_resumed(workplace: Workplace) -> None:
    """A suspended run is waiting until another run has resumed it."""
    workplace.write("agent.py", WAITS)
    workplace.record("agent.py", status=7, SPANREPLAY_HUMAN="suspend")
    (waiting,) = listed(workplace)
    assert (waiting["state"], listed(workplace, "--status", "waiting")) == ("waiting", [waiting])
    assert "waiting" in run_in_terminal(LS, workplace.path, workplace.environ).lines[1]
    resume = [str(BIN / "spanreplay"), "resume", "latest", "--input", "yes", "--", str(workplace.python), "agent.py"]
    subprocess.run(resume, cwd=workplace.path, env=workplace.environ, capture_output=True, check=True)
    assert listed(workplace, "--status", "waiting") == []
    assert {row["run_id"]: row["state"] for row in listed(workplace)}[waiting["run_id"]] == "ended"


@pytest.mark.parametrize("columns", [60, 72, 80, 100, 120, 200])
def test_s19_run_ids_have_13_characters_at_any_width(workplace: Workplace, columns: int) -> None:
    """The shown part of an id identifies the run, no line is broken, and times are local."""
    workplace.write("agent.py", CALL)
    user = "someone-with-a-long-name-1234567"
    workplace.record("agent.py", SPANREPLAY_APP=LONG, SPANREPLAY_USER_ID=user)
    run_id = workplace.recording().run_id
    seen = run_in_terminal(LS, workplace.path, {**workplace.environ, "TZ": "Asia/Tokyo"}, columns=columns)
    head, line = (re.sub(r"\x1b\[[0-9;]*m", "", each) for each in seen.lines)
    assert line.split()[0] == run_id[:13]
    assert max(len(head), len(line)) <= columns
    assert head.split()[:4] == ["RUN", "STARTED", "APP", "STATUS"]
    started = listed(workplace)[0]["start_ns"] // 1_000_000_000
    date = subprocess.run(
        ["date", "-d", f"@{started}", "+%m-%d %H:%M:%S"], env={**os.environ, "TZ": "Asia/Tokyo"}, text=True,
        capture_output=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert date in line
    assert " ok" in line
    shown = run_in_terminal(
        [str(BIN / "spanreplay"), "show", line.split()[0]], workplace.path, workplace.environ, is_piped=True
    )
    assert run_id in shown.stdout
