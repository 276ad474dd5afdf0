"""How a process ends: manifest and verdict state it, whatever the way."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from spanreplay.recording.catalog import FORKED_FROM, is_child
from support.replaying import Workplace

CALL = """
import os, sys, threading
import spanreplay

@spanreplay.boundary("tool", name="f", effect="read")
def f(x=0):
    print("body", x, file=sys.stderr, flush=True)
    return x + 1

print("answer", f(), flush=True)
"""


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """A directory to record in."""
    return Workplace(tmp_path)


@pytest.mark.parametrize(
    ("ending", "status", "known"),
    [
        ("", 0, 0),
        ("sys.exit()", 0, 0),
        ("sys.exit(3)", 3, 3),
        ("sys.exit('no')", 1, 1),
        ("raise ValueError('no')", 1, 1),
        ("os._exit(4)", 4, 4),
        ("raise SystemExit(5)", 5, None),
        ("t = threading.Thread(target=sys.exit, args=(6,)); t.start(); t.join()", 0, 0),
    ],
    ids=["end", "exit", "exit_3", "exit_text", "exception", "os_exit", "raise_exit", "thread"],
)
@pytest.mark.sampled(3)
def test_s20_exit_status_is_recorded_and_compared(
    ending: str, status: int, known: int | None, workplace: Workplace
) -> None:
    """However a program ends, its run is complete, its status is recorded, and its replay is identical."""
    agent = workplace.write("agent.py", CALL + ending)
    recorded = workplace.record(agent, status=status)
    recording = workplace.recording()
    assert recording.root.manifest.get("exit") == known
    assert recording.completeness().is_complete, recording.completeness().reasons
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout)
    assert "body" not in replayed.stderr


def test_s20_another_exit_status_is_a_divergence(workplace: Workplace) -> None:
    """A program that ends with another status than recorded has diverged."""
    agent = workplace.write("agent.py", CALL + "sys.exit(3)")
    workplace.record(agent, status=3)
    workplace.write("agent.py", CALL + "sys.exit(2)")
    replayed = workplace.replay(agent)
    assert replayed.status == 3
    assert replayed.causes() == [("output_changed", "process:exit")]


def test_s20_another_output_is_a_divergence(workplace: Workplace) -> None:
    """A program that prints something else has diverged, even if all its calls are the same."""
    agent = workplace.write("agent.py", CALL)
    workplace.record(agent)
    workplace.write("agent.py", CALL.replace('"answer"', '"reply"'))
    replayed = workplace.replay(agent)
    assert replayed.status == 3
    assert replayed.causes() == [("output_changed", "process:stdout")]
    assert replayed.verdict["stdout"]["diff"].splitlines()[-2:] == ["-answer 1", "+reply 1"]


FORKS = (
    CALL
    + """
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(write)
    os.read(read, 1)  # until the parent has gone
    print("child", f(10), flush=True)
    sys.exit(9)
print("parent", f(20), flush=True)
"""
)


def test_n3_fork_marks_a_hole_and_the_child_has_a_run_of_its_own(workplace: Workplace) -> None:
    """A forked child that outlives its parent adds nothing to the run, which names the fork; it has its own run."""
    agent = workplace.write("agent.py", FORKS)
    recorded = workplace.record(agent)
    assert "child 11" in recorded.stdout
    recording, child = sorted(workplace.recordings(), key=lambda each: is_child(each.root))
    assert [c.request for c in recording.calls] == ['{"arguments":{"x":0}}', '{"arguments":{"x":20}}']
    assert [c.request for c in child.calls] == ['{"arguments":{"x":10}}']
    assert child.completeness().is_complete, child.completeness().reasons
    assert (child.root.env[FORKED_FROM], child.root.manifest["exit"]) == (recording.run_id, 9)
    (reason,) = recording.completeness().reasons
    assert "forked at agent.py:13" in reason
    assert recording.root.manifest["exit"] == 0


def test_s27_forked_child_of_a_replay_never_goes_live(workplace: Workplace) -> None:
    """In a replay a forked child's calls raise, and the verdict is the parent's."""
    agent = workplace.write("agent.py", FORKS)
    workplace.record(agent)
    (source,) = (each.run_id for each in workplace.recordings() if not is_child(each.root))
    replayed = workplace.replay(agent, source=source)
    assert "body" not in replayed.stderr
    assert "a forked process can't be replayed" in replayed.stderr
    assert replayed.verdict["verdict"] == "incomplete"
    assert replayed.verdict["exit"]["now"] == 0
    assert replayed.verdict["counts"]["exact"] == 2


def test_s48_killed_process_leaves_its_finished_calls(workplace: Workplace) -> None:
    """A process that kills itself leaves an incomplete run with all finished calls."""
    agent = workplace.write("agent.py", CALL + f"os.kill(os.getpid(), {int(signal.SIGKILL)})")
    workplace.record(agent, status=-int(signal.SIGKILL))
    recording = workplace.recording()
    assert [c.outcome for c in recording.calls] == ["ok"]
    assert recording.completeness().reasons == ("the run did not end: its process was killed or is still running",)


def test_interrupted_program_is_recorded_as_failed(workplace: Workplace) -> None:
    """Ctrl-C ends the run with its calls; the run is complete."""
    # A shell's background job inherits an ignored SIGINT
    listens = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    source = listens + CALL + f"os.kill(os.getpid(), {int(signal.SIGINT)})\nthreading.Event().wait(30)"
    agent = workplace.write("agent.py", source)
    process = workplace.spawn([str(workplace.python), str(agent)])
    process.communicate(timeout=600)
    assert process.returncode in (-int(signal.SIGINT), 130, 1)
    recording = workplace.recording()
    assert recording.root.outcome == "error"
    assert recording.completeness().is_complete
