"""How an agent is started, how its end is reported, and how its exit status affects the verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from spanreplay.cli.agent.child import as_shell_status, describe_end, run_child
from spanreplay.cli.agent.launch import BOOT, build_environ, check_not_isolated, find_agent
from spanreplay.cli.agent.settle import settle
from spanreplay.model.call import Completeness
from spanreplay.model.errors import ConfigError
from spanreplay.report.json import parse
from spanreplay.report.shape import Verdict

WHOLE = Completeness(True)
TORN = Completeness(False, ("the run did not end",))


def _verdict(word: str = "identical", recorded: int | None = 0) -> Verdict:
    verdict = parse(f'{{"schema": "divergence/1", "verdict": "{word}"}}')
    verdict["exit"] = {"recorded": recorded, "now": None}
    return verdict


def _script(folder: Path, name: str, first_line: str) -> Path:
    path = folder / name
    path.write_text(f"{first_line}\nprint(1)\n")
    path.chmod(0o755)
    return path


def test_agent_python_is_found_in_the_command(here: Path) -> None:
    """A Python that the command names, by path or by name, is the agent's Python."""
    agent = find_agent([sys.executable, "agent.py", "-x"])
    assert agent.argv == (sys.executable, "agent.py", "-x")
    assert (agent.python, agent.python_flags) == (sys.executable, "")
    folder = str(Path(sys.executable).parent)
    assert find_agent(["python", "a.py"], {"PATH": folder}).python == f"{folder}/python"


def test_agent_python_is_found_in_a_script(here: Path) -> None:
    """The first line of a script says which Python runs it; other programs don't say."""
    direct = _script(here, "direct", f"#!{sys.executable} -s")
    assert find_agent([str(direct)]).python == sys.executable
    by_name = _script(here, "by-name", "#!/usr/bin/env python")
    folder = str(Path(sys.executable).parent)
    assert find_agent([str(by_name)], {"PATH": folder}).python == f"{folder}/python"
    assert find_agent([str(_script(here, "shell", "#!/bin/sh"))]).python == ""


@pytest.mark.parametrize(
    ("arguments", "is_isolated"),
    [
        (["-I", "a.py"], True),
        (["-uE", "a.py"], True),
        (["-S", "-m", "x"], True),
        (["-X", "dev", "-Wignore", "-s", "a.py"], False),
        (["a.py", "-I"], False),
        (["-m", "x", "-E"], False),
        (["-c", "-I"], False),
        (["-XI", "a.py"], False),
        (["-W", "-I", "a.py"], False),
    ],
)
def test_agent_whose_python_ignores_us_is_refused(arguments: Sequence[str], is_isolated: bool) -> None:
    """-I, -E and -S would run the agent live, so they are refused; the same letters elsewhere mean something else."""
    agent = find_agent([sys.executable, *arguments])
    assert agent.is_isolated is is_isolated
    if is_isolated:
        with pytest.raises(ConfigError, match="would not load spanreplay"):
            check_not_isolated(agent)


def test_agent_that_does_not_exist_is_refused() -> None:
    """The error names the command that is not there."""
    with pytest.raises(ConfigError, match="no such command: 'agent-of-nobody'"):
        find_agent(["agent-of-nobody"])


def test_environment_of_an_agent(here: Path) -> None:
    """Our folder comes first, then the working directory; only the user names exporters."""
    given = {"PYTHONPATH": f"/a{os.pathsep}/b", "OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}
    recorded = build_environ(given, {"SPANREPLAY_MODE": "record"}, is_replay=False)
    assert recorded["PYTHONPATH"].split(os.pathsep) == [str(BOOT), str(here), "/a", "/b"]
    assert recorded["OTEL_TRACES_EXPORTER"] == "console"
    assert "OTEL_METRICS_EXPORTER" not in recorded
    assert recorded["OTEL_SDK_DISABLED"] == "true"
    again = build_environ(recorded, {}, is_replay=True)
    assert again["PYTHONPATH"] == recorded["PYTHONPATH"]
    assert again["OTEL_TRACES_EXPORTER"] == "none"
    assert again["SPANREPLAY_REPLAY_EXPORTER"] == "console"
    assert "OTEL_SDK_DISABLED" not in again


def test_boot_in_a_python_without_spanreplay_runs_nothing(here: Path) -> None:
    """In a Python without spanreplay a replay ends before the agent's first line; a recording only warns."""
    bare = here / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = str(bare / "bin" / "python")
    for mode, status, shown in (("replay", 3, ""), ("record", 0, "live\n")):
        environ = {"PYTHONPATH": str(BOOT), "SPANREPLAY_MODE": mode}
        done = subprocess.run([python, "-c", "print('live')"], env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, shown), mode
        assert f"{python} " in done.stderr
        assert "Traceback" not in done.stderr


def test_child_status_and_signals_are_told(here: Path) -> None:
    """The child's exit status or signal is returned."""
    assert run_child([sys.executable, "-c", "raise SystemExit(7)"], os.environ) == 7
    killed = run_child([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], os.environ)
    assert killed == -signal.SIGKILL
    assert as_shell_status(killed) == 137
    assert describe_end(killed) == "was ended by SIGKILL"
    assert describe_end(3) == "ended with exit status 3"
    with pytest.raises(ConfigError, match="cannot run"):
        run_child([str(here)], os.environ)


def test_child_gets_the_signals_that_we_get(here: Path) -> None:
    """A SIGTERM that we get reaches the agent, which ends in its own way."""
    agent = here / "agent.py"
    agent.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
        # Not one long wait: a signal that comes right before it would be handled after it
        "print('ready', flush=True)\nwhile True: time.sleep(0.05)\n"
    )
    code = (
        "import os, sys\nfrom spanreplay.cli.agent.child import run_child\n"
        "sys.exit(run_child([sys.executable, 'agent.py'], os.environ))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=here) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=600) == 42
        finally:
            process.kill()


def test_signal_that_comes_before_the_child_reaches_it(here: Path) -> None:
    """A SIGTERM that arrives while the agent is being started ends it, so that it is not left running."""
    code = (
        "import os, signal, subprocess, sys\nfrom spanreplay.cli.agent import child\n"
        "start = subprocess.Popen\n"
        "def popen(*args, **options):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return start(*args, **options)\n"
        "subprocess.Popen = popen\n"
        "sys.exit(-child.run_child([sys.executable, '-c', 'import time; time.sleep(60)'], os.environ))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=here, timeout=600, check=False)
    assert done.returncode == signal.SIGTERM


@pytest.mark.parametrize(
    ("word", "recorded", "status", "completeness", "expected"),
    [
        ("identical", 0, 0, WHOLE, "identical"),
        ("identical", 0, 1, WHOLE, "diverged"),
        ("identical", None, 1, WHOLE, "identical"),
        ("identical", None, -11, WHOLE, "diverged"),
        ("identical", 143, -15, WHOLE, "identical"),
        ("identical", None, 0, TORN, "incomplete"),
        ("incomplete", None, 1, TORN, "incomplete"),
        ("incomplete", None, -9, TORN, "diverged"),
        ("diverged", 0, 1, WHOLE, "diverged"),
        ("diverged", None, 1, TORN, "diverged"),
        ("error", 0, 3, WHOLE, "error"),
    ],
)
def test_verdict_takes_the_exit_status_into_account(
    word: str, recorded: int | None, status: int, completeness: Completeness, expected: str
) -> None:
    """Another exit status or a recording with holes is never identical; diverged stays diverged."""
    settled = settle(_verdict(word, recorded), status, completeness)
    assert settled["verdict"] == expected
    assert settled["exit"] == {"recorded": recorded, "now": as_shell_status(status)}
    if not completeness.is_complete:
        assert settled["reasons"] == ["the run did not end"]
    added = settled["divergences"]
    assert bool(added) == (expected == "diverged" and word != "diverged")
