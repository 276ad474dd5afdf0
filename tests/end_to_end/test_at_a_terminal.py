"""Agents at a terminal: what they print for it is the same in a pipe, and no replay waits for keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import Recording
from support.agents import instrument
from support.replaying import BIN, Workplace
from support.terminal import run_in_terminal

SHOWS: Final = """
import os, shutil, sys
print(input("Sell? "), [each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)], os.isatty(1))
print(shutil.get_terminal_size(), os.get_terminal_size(0))
print("\\033[1mbold\\033[0m" if sys.stdout.isatty() else "plain")
"""


def _record(workplace: Workplace, agent: Path, typed: str) -> Recording:
    words, environ = instrument([sys.executable, str(agent)], workplace.environ, workplace.path, workplace.python)
    seen = run_in_terminal(words, workplace.path, environ, columns=97, typed=typed)
    assert seen.status == 0, seen.screen
    return workplace.recording()


def test_s50_a_replay_in_a_pipe_prints_for_the_recorded_terminal(workplace: Workplace) -> None:
    """Colours and widths are the terminal's of the recorded run, wherever the replay prints."""
    agent = workplace.write("agent.py", SHOWS)
    _record(workplace, agent, "yes\n")
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert "yes [True, True, True] True" in replayed.stdout
    assert "columns=97" in replayed.stdout
    assert replayed.stdout.endswith("\033[1mbold\033[0m\n")


def test_s50_a_replay_at_a_terminal_prints_for_the_recorded_pipe(workplace: Workplace) -> None:
    """An agent that was recorded in a pipe sees no terminal in its replay."""
    agent = workplace.write(
        "agent.py", SHOWS.replace('input("Sell? ")', '"yes"').replace(", os.get_terminal_size(0)", "")
    )
    workplace.write("call.py", "import subprocess\nsubprocess.run(['true'])\n")
    agent.write_text("import call\n" + agent.read_text(encoding="utf-8"), encoding="utf-8")
    recorded = workplace.record(agent)
    words = [str(BIN / "spanreplay"), "replay", "latest", "--", sys.executable, str(agent)]
    seen = run_in_terminal(words, workplace.path, workplace.environ, columns=97)
    assert seen.status == 0, seen.screen
    assert recorded.stdout.splitlines()[-1] == "plain"


KEYS: Final = """
import subprocess
from prompt_toolkit import Application
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import Layout
from prompt_toolkit.widgets import Label
subprocess.run(["true"])
keys = KeyBindings()
keys.add("h")(lambda event: event.app.exit("h"))
print("typed", Application(Layout(Label("press h")), key_bindings=keys, full_screen=True).run())
"""
READER: Final = """
import asyncio, os, subprocess

async def main():
    subprocess.run(["true"])
    typed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_reader(0, lambda: typed.done() or typed.set_result(os.read(0, 100)))
    print("typed", await typed)

asyncio.run(main())
"""


@pytest.mark.parametrize("source", [KEYS, READER], ids=["full screen", "add_reader"])
def test_p12_keys_read_below_standard_input_are_a_hole_that_no_replay_waits_for(
    source: str, workplace: Workplace
) -> None:
    """Whichever library reads them, the recording is incomplete; its replay ends there, also at a terminal."""
    agent = workplace.write("agent.py", source)
    recording = _record(workplace, agent, "hello\r")
    assert any("read standard input" in reason for reason in recording.completeness().reasons)
    words = [str(BIN / "spanreplay"), "replay", recording.run_id, "--", sys.executable, str(agent)]
    seen = run_in_terminal(words, workplace.path, workplace.environ)
    assert seen.status == 4, seen.screen
    assert "read standard input" in seen.screen


QUESTIONS: Final = """
import asyncio, subprocess
from prompt_toolkit import Application, PromptSession, prompt
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import Layout
from prompt_toolkit.widgets import Label

subprocess.run(["true"])
keys = KeyBindings()
keys.add("b")(lambda event: event.app.exit("b"))
session = PromptSession(history=FileHistory("history"))
print("said", session.prompt("you> "), session.prompt())
print("key", len(prompt("secret: ", is_password=True)))
print("chose", Application(Layout(Label("which?")), key_bindings=keys).run())

async def main():
    later = PromptSession("later> ")
    return await later.prompt_async(), await asyncio.create_task(later.prompt_async())

print("later", asyncio.run(main()))
"""
TYPED: Final = "hello\rthere\rS3cret-word-7\rbtoday\rtomorrow\r"


def test_p12_questions_of_prompt_toolkit_are_calls(workplace: Workplace) -> None:
    """The replay shows the same screen and asks nobody, at a terminal or not; another question diverges."""
    agent = workplace.write("agent.py", QUESTIONS)
    recording = _record(workplace, agent, TYPED)
    assert recording.completeness().is_complete, recording.completeness().reasons
    asked = [call for call in recording.calls if call.kind == "human"]
    assert [json.loads(call.request)["arguments"]["prompt"] for call in asked[:3]] == ["you> ", "you> ", "secret: "]
    assert "S3cret-word-7" not in asked[2].response
    (workplace.path / "history").unlink()
    words = [str(BIN / "spanreplay"), "replay", recording.run_id, "--", sys.executable, str(agent)]
    seen = run_in_terminal(words, workplace.path, workplace.environ)
    assert seen.status == 0, seen.screen
    assert "later ('today', 'tomorrow')" in seen.screen
    assert not (workplace.path / "history").exists()
    replayed = workplace.replay(agent, source=recording.run_id)
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    agent.write_text(QUESTIONS.replace("which?", "what?"), encoding="utf-8")
    replayed = workplace.replay(agent, source=recording.run_id)
    assert replayed.causes() == [("changed_call", "human:prompt")]


SPINNER: Final = """
import subprocess
from rich.console import Console
from rich.live import Live

with Live("thinking", console=Console(force_terminal=True, width=60), refresh_per_second=50):
    subprocess.run(["sleep", "0.5"])
print("sold")
"""


def test_p12_what_a_library_draws_by_the_clock_is_no_divergence(workplace: Workplace) -> None:
    """The recording cannot say how often a library's thread draws; the agent's changed text still diverges."""
    agent = workplace.write("agent.py", SPINNER)
    workplace.record(agent)
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "incomplete", replayed.stderr
    assert "rich draws on standard output in a thread of its own" in replayed.stderr.splitlines()[0]
    workplace.write("agent.py", SPINNER.replace("sold", "bought"))
    assert workplace.replay(agent).verdict["verdict"] == "diverged"
