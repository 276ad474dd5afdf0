"""A person at a terminal gets one line about the recording; nobody else does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.otlp_sink import Answer, serve
from support.replaying import BIN, Workplace
from support.terminal import Seen, run_in_terminal

CALL = """
import subprocess, sys
subprocess.run(["true"])
print("the agent's answer")
"""
TWO = CALL + 'subprocess.run(["true"])\n'
BEFORE = "import sys\nsys.exit(2)\n"
RAISING = "raise LookupError('no key')\n"
NOTHING = "print('done')\n"
CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "agent.py"])
"""
NO_STDERR = CALL + "import io\nsys.stderr = io.StringIO()\n"
LINE = re.compile(r"spanreplay: recorded (\d+ calls?), in \.spanreplay, run ([0-9a-f]{32})(.*)\n")


def record(
    workplace: Workplace, script: str | Path = "agent.py", *, is_background: bool = False, **environ: str
) -> Seen:
    """Record an agent whose standard error is a terminal and whose output goes to a pipe."""
    command = [str(BIN / "opentelemetry-instrument"), str(workplace.python), str(script)]
    return run_in_terminal(
        command, workplace.path, {**workplace.environ, **environ}, is_piped=True, is_background=is_background
    )


def test_u1_run_ends_with_one_line(workplace: Workplace) -> None:
    """The line gives call count, place and run; the hint for `show` appears once per folder; stdout is the agent's."""
    workplace.write("agent.py", CALL)
    first, second = record(workplace), record(workplace)
    run_ids = [r.run_id for r in workplace.recordings()]
    matches = [LINE.fullmatch(seen.screen) for seen in (first, second)]
    assert [m and (m[1], m[2], m[3]) for m in matches] == [
        ("1 call", run_ids[0], "; see it: spanreplay show latest"),
        ("1 call", run_ids[1], ""),
    ]
    assert first.stdout == second.stdout == "the agent's answer\n"
    shown = run_in_terminal(
        [str(BIN / "spanreplay"), "show", "latest"], workplace.path, workplace.environ, is_piped=True
    )
    assert (shown.status, run_ids[1] in shown.stdout) == (0, True)


def test_u1_nobody_else_is_told(workplace: Workplace) -> None:
    """A pipe, a background process group and `never` get no line; `always` writes it to a log too."""
    workplace.write("agent.py", CALL)
    assert workplace.record("agent.py").stderr == ""
    assert record(workplace, is_background=True).screen == ""
    assert record(workplace, SPANREPLAY_SUMMARY="never").screen == ""
    assert workplace.record("agent.py", SPANREPLAY_SUMMARY="always").stderr.startswith("spanreplay: recorded 1 call, ")


def test_u1_agent_that_gives_standard_error_away(workplace: Workplace) -> None:
    """The line reaches the terminal wherever the agent redirects `sys.stderr`."""
    workplace.write("agent.py", NO_STDERR)
    assert LINE.fullmatch(record(workplace).screen)


def test_u1_program_that_a_run_starts_says_nothing(workplace: Workplace) -> None:
    """A Python program recorded inside a run leaves the line to the run that started it."""
    workplace.write("agent.py", CALL)
    seen = record(workplace, workplace.write("outer.py", CHILD))
    assert len(workplace.recordings()) == 2
    assert [line.partition(" recorded")[0] for line in seen.lines] == ["spanreplay:"]


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        (BEFORE, 2, "the agent exited with status 2 before its first model, tool or HTTP call"),
        (RAISING, 1, "the agent raised LookupError before its first model, tool or HTTP call"),
        (NOTHING, 0, "the agent ended without a model, tool or HTTP call"),
    ],
    ids=["exits", "raises", "ends"],
)
def test_u1_agent_without_a_call_is_told_so(workplace: Workplace, source: str, status: int, said: str) -> None:
    """The line says that nothing was recorded, and why, for both ways to record."""
    workplace.write("agent.py", source)
    seen = record(workplace)
    assert (seen.status, seen.lines[-1]) == (status, f"spanreplay: no call was recorded: {said}")
    command = [str(BIN / "spanreplay"), "record", "--", str(workplace.python), "agent.py"]
    by_command = run_in_terminal(command, workplace.path, workplace.environ)
    assert by_command.status == status
    (line,) = [line for line in by_command.lines if "no call was recorded: the agent " in line]
    assert line.endswith("; `spanreplay doctor -- CMD` shows what is recorded")


def test_u1_incomplete_run_says_why(workplace: Workplace) -> None:
    """The line mentions a hole in the recording."""
    source = f"{CALL}import os\npid = os.fork()\nif pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)\n"
    workplace.write("agent.py", source)
    (line,) = record(workplace).lines
    assert "; incomplete: the process forked at agent.py:" in line


def test_u1_run_that_was_sent_says_where(workplace: Workplace) -> None:
    """The line has the collector's address without path or key, and its Phoenix page of the run if known."""
    workplace.write("agent.py", TWO)
    with serve() as sink:
        sink.answer = lambda seen: Answer(headers={"x-spanreplay-phoenix": "http://phoenix.test:6006/"})
        endpoint = sink.endpoint
        seen = record(workplace, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    match = re.fullmatch(
        r"spanreplay: recorded 2 calls, sent to (\S+), run [0-9a-f]{32}; "
        r"http://phoenix\.test:6006/redirects/spans/[0-9a-f]{16}\n",
        seen.screen,
    )
    assert match, seen.screen
    assert match[1] == endpoint
    gone = record(workplace, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert f", kept in .spanreplay until {endpoint} takes it, run " in gone.lines[-1], gone.screen
    assert gone.lines[-1].endswith("; see it: spanreplay show latest")
