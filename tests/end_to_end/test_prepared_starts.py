"""A replay in a fork of a shared start is the replay that a start of its own gives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from spanreplay.cli.agent.launch import find_agent
from spanreplay.cli.replay import open_source
from spanreplay.cli.variations.starts import Starts
from spanreplay.cli.variations.trials import SERVE, Trial, Trials
from support.replaying import Workplace

AGENT = """
import os, signal, sys, threading
import spanreplay

@spanreplay.boundary("tool", effect="read")
def look(what):
    return {"end": "well"}

# A thread of the replay may read a file under /proc at that moment
kept = min((sorted(os.listdir("/proc/self/fd")) for _ in range(9)), key=len)
seen = [sys.argv, sys.orig_argv, sys.path, sys.flags, hash("text"), [*os.environ], threading.active_count()]
seen += [signal.getsignal(signal.SIGINT), kept]
print(*seen, sorted(sys.modules), __name__, __file__, sys.stdout, sys.stderr, file=sys.stderr)
answer = look("here")
if answer["end"] == "raised":
    raise ValueError(answer["end"])
if answer["end"] == "left":
    sys.exit(7)
if answer["end"] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
while answer["end"] == "endless":
    signal.pause()
print(answer["end"])
"""
ENDS = ("well", "raised", "left", "killed")
TIMEOUT_S = 120


@contextmanager
def _trials(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Trials, Trials]]:
    """Replays of a recorded agent: each with a start of its own, and in forks of a shared one."""
    script = str(workplace.write("agent.py", AGENT))
    workplace.record(script, "--fast")
    for name, value in workplace.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(workplace.path)
    folder = workplace.path / "trials"
    folder.mkdir()
    agent = find_agent([sys.executable, script, "--fast"])
    own = Trials(agent, open_source(workplace.recording().run_id, folder), folder, TIMEOUT_S)
    with Starts() as starts:
        yield own, replace(own, starts=starts)


def _end(trials: Trials, how: str) -> Trial:
    return trials.replay((f'tool:look[1].response.end = "{how}"',), SERVE)


def _insist_equal(forked: Trial, own: Trial) -> None:
    assert forked.outcome() == own.outcome()
    assert {*forked.stderr.split()} ^ {*own.stderr.split()} == set()  # shows the words that differ
    assert forked.stderr == own.stderr


def test_w4_s37_replays_in_forks_are_those_of_own_starts(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdict, exit status, output and what an agent sees of its start are equal, whatever the agent's end."""
    with _trials(workplace, monkeypatch) as (own, forked):
        unchanged = own.replay(())
        assert unchanged.verdict is not None
        assert unchanged.verdict["verdict"] == "identical", unchanged.verdict
        for _ in range(2):
            again = forked.replay(())
            _insist_equal(again, unchanged)
        with ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(lambda how: (_end(own, how), _end(forked, how)), ENDS))
    for ours, theirs in ends:
        _insist_equal(theirs, ours)
    assert [ours.status for ours, _ in ends] == [0, 1, 7, -9]


def _runs(process: Path, script: str) -> bool:
    try:
        return script.encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


def test_w4_s37_an_endless_replay_in_a_fork_is_killed_and_the_next_one_runs(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time limit the same start serves the next replay, and at the end none of its processes is left."""
    with _trials(workplace, monkeypatch) as (_, forked):
        endless = _end(replace(forked, timeout_s=5), "endless")
        assert (endless.is_endless, endless.verdict) == (True, None)
        assert _end(forked, "left").status == 7
    assert not any(_runs(process, str(workplace.path / "agent.py")) for process in Path("/proc").iterdir())


def test_w4_s37_an_agent_behind_another_program_has_its_own_starts(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell script that starts Python is started for each replay."""
    wrapper = workplace.write("begin", f'#!/bin/sh\necho once >> starts\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    with _trials(workplace, monkeypatch) as (_, forked):
        agent = find_agent([str(wrapper), *forked.agent.argv[1:]])
        assert [_end(replace(forked, agent=agent), "left").status for _ in range(2)] == [7, 7]
    assert (workplace.path / "starts").read_text() == "once\n" * 2
