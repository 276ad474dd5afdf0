"""Agents that read standard input replay without it."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.replaying import Workplace

MIXED = """
import sys
import spanreplay

@spanreplay.boundary("llm", effect="read")
def ask(text):
    return text.upper()

print(input("name? "))
for line in sys.stdin:
    print(ask(line.strip()))
    if line.startswith("end"):
        break
print(input(), "|", sys.stdin.readline().strip(), "|", repr(sys.stdin.read()), repr(sys.stdin.read()))
"""
WHOLE = "import json, sys\nprint(json.load(sys.stdin)['question'])\n"
RAW = "import sys\nprint(len(sys.stdin.buffer.read()))\nprint(sys.stdin.read() == '')\n"


def record_with(workplace: Workplace, source: str, given: bytes) -> tuple[str, str]:
    """Record an agent with this standard input; return its file and its output."""
    agent = workplace.write("agent.py", source)
    done = subprocess.run(
        [str(workplace.python.parent / "opentelemetry-instrument"), str(workplace.python), str(agent)],
        cwd=workplace.path,
        env=workplace.environ,
        input=given,
        capture_output=True,
        check=True,
        timeout=180,
    )
    return str(agent), done.stdout.decode()


@pytest.mark.parametrize(
    ("source", "given"),
    [
        (MIXED, "Zoë\none\ntwö\nend\nasked\nread\nthe rest\nis this, löng " + "ü" * 9000),
        (MIXED, "a\nend\nb\nc\n"),
        (WHOLE, json.dumps({"question": "why? " * 5000})),
    ],
    ids=["lines", "short", "whole"],
)
def test_s67_standard_input_is_served_from_the_recording(workplace: Workplace, source: str, given: str) -> None:
    """Lines, `input()` and `read()` in turns give the same bytes, with nothing on standard input."""
    agent, printed = record_with(workplace, source, given.encode())
    replayed = workplace.replay(agent)
    assert replayed.stdout == printed
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert not replayed.verdict["counts"]["live"]


def test_s67_bytes_that_are_no_text_are_served(workplace: Workplace) -> None:
    """Binary input is served byte for byte."""
    agent, printed = record_with(workplace, RAW, bytes(range(256)) * 40)
    assert printed == "10240\nTrue\n"
    replayed = workplace.replay(agent)
    assert (replayed.stdout, replayed.verdict["verdict"]) == (printed, "identical")


def test_s67_an_agent_that_reads_on_is_a_divergence(workplace: Workplace) -> None:
    """Reading one more line is an extra call; the agent doesn't wait for a terminal."""
    agent, _ = record_with(workplace, "import sys\nprint(sys.stdin.readline())\n", b"one\ntwo\n")
    workplace.write("agent.py", "import sys\nprint(sys.stdin.readline())\nprint(sys.stdin.readline())\n")
    replayed = workplace.replay(agent)
    assert replayed.status == 3
    assert replayed.causes()[0] == ("extra_call", "human:stdin")


def test_r1_a_secret_on_standard_input_is_in_no_file(workplace: Workplace) -> None:
    """A line with a key in it is recorded as a token."""
    secret = "sk-proj-" + "Qx7" * 16
    record_with(workplace, "import sys\nprint(len(sys.stdin.readline()))\n", f"key {secret}\n".encode())
    files = [path for path in (workplace.path / ".spanreplay").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]
