"""The inputs of a program are compared: its standard input, its variables, its signals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spanreplay.replayer.compare.variables import compare_variables
from spanreplay.runtime.process.variables import describe_variables
from support.changed import load, named, record_agent, replay_agent

AGENT = """
import asyncio, asyncio.subprocess as sub, os, signal, subprocess

def agent():
    subprocess.run(["tee", "q.txt"], input=b"pay 10", stdout=subprocess.DEVNULL)
    talking = subprocess.Popen(["tee", "z.txt"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    talking.communicate("to anna")
    writing = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    writing.stdin.write(b"first\\n"); writing.stdin.flush()
    writing.stdout.readline(); writing.stdin.close(); writing.wait(); writing.stdout.close()
    subprocess.run(["true"], env={"A": "1", "PATH": os.environ["PATH"]})
    subprocess.run(["true"], env={**os.environ, "MODE": "dry"})
    os.environ["TENANT"] = "acme"
    subprocess.run(["true"])
    del os.environ["TENANT"]
    sleeping = subprocess.Popen(["sleep", "60"])
    sleeping.send_signal(signal.SIGTERM)
    sleeping.wait()
    asyncio.run(main())

async def main():
    cat = await asyncio.create_subprocess_exec("cat", stdin=sub.PIPE, stdout=sub.PIPE)
    await cat.communicate(b"at once")
    cat = await asyncio.create_subprocess_exec("cat", stdin=sub.PIPE, stdout=sub.DEVNULL, env={"B": "1"})
    cat.stdin.write(b"by pieces"); cat.stdin.write_eof()
    await cat.wait()
    sleeping = await asyncio.create_subprocess_exec("sleep", "60")
    sleeping.terminate()
    await sleeping.wait()
"""
CHANGES = {
    "run": ("pay 10", "pay 99", "stdin"),
    "communicate": ("to anna", "to eve", "stdin"),
    "write": ('b"first', 'b"other', "stdin"),
    "variable": ('"A": "1"', '"A": "2"', "env.A"),
    "variable_of_all": ('"MODE": "dry"', '"MODE": "wet"', "env.MODE"),
    "variable_dropped": (', "MODE": "dry"', "", "env.MODE"),
    "own_variable": ('"acme"', '"evil"', "env.TENANT"),
    "signal": ("signal.SIGTERM", "signal.SIGKILL", "arguments.signal"),
    "signal_dropped": ("sleeping.send_signal(signal.SIGTERM)", "pass", "tool:subprocess.send_signal"),
    "async_communicate": ("at once", "at last", "stdin"),
    "async_write": ("by pieces", "in pieces", "stdin"),
    "async_variable": ('"B": "1"', '"B": "2"', "env.B"),
    "async_signal": ("sleeping.terminate()", "sleeping.kill()", "arguments.signal"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_n14_what_a_program_is_given_is_compared(folder: Path) -> None:
    """The same agent is identical; one that gives a program something else has diverged, at that input."""
    run_id = record_agent(load(AGENT, folder))
    same = replay_agent(run_id, load(AGENT, folder))
    assert same["verdict"] == "identical", same
    for name, (old, new, path) in CHANGES.items():
        assert old in AGENT, name
        changed = replay_agent(run_id, load(AGENT.replace(old, new), folder))
        assert changed["verdict"] == "diverged", (name, changed)
        assert path in named(changed), (name, changed["divergences"])


@pytest.mark.parametrize("reader", ["head -c 3 >/dev/null", "true", "sleep 0.1; true"])
def test_n14_what_nobody_reads_was_given_all_the_same(folder: Path, reader: str) -> None:
    """Whether a program reads its input, or when it ends, makes no difference to the comparison."""
    source = f"""
import subprocess
def agent():
    p = subprocess.Popen({reader!r}, shell=True, stdin=subprocess.PIPE)
    p.stdin.write(b"something"); p.stdin.flush()
    p.wait()
    try:
        p.stdin.close()
    except BrokenPipeError:
        pass
"""
    run_id = record_agent(load(source, folder))
    assert replay_agent(run_id, load(source, folder))["verdict"] == "identical"
    changed = replay_agent(run_id, load(source.replace("something", "otherwise"), folder))
    assert changed["verdict"] == "diverged", changed


def test_n14_variables_hold_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is passed on, or extended, compares equal on a machine where it has another value."""
    one = {"PATH": "/usr/bin:/bin", "HOME": "/home/a", "LANG": "C", "MODE": "dry"}
    two = {"PATH": "/opt/bin", "HOME": "/root", "LANG": "de", "SHELL": "sh"}

    def describe(first: dict[str, str]) -> dict[str, object]:
        longer = {**first, "PATH": "/agent/bin:" + first["PATH"], "MODE": "dry"}
        return describe_variables(longer, first)

    monkeypatch.setattr(os, "environ", {**one})
    changed, listed = compare_variables(describe(two), describe(one))
    assert not changed
    assert [d.path for d in listed] == ["env.MODE"]  # inherited here, with the value from the other machine
    few, fewer = ({"PATH": each["PATH"]} for each in (one, two))
    assert describe_variables(few, one) == describe_variables(fewer, two) == {"only": ["PATH"]}
    assert describe_variables(None, one) == describe_variables(dict(one), one) == {}
