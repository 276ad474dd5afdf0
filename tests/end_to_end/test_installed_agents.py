"""An agent in an installed package, started by its console script or with `python -m`, is recorded like a script."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import Recording
from support.agents import LITELLM
from support.installing import install
from support.provider import Provider
from support.replaying import Replayed, Workplace

LOOP = """
import os
import random
import sqlite3
import subprocess
import time
import uuid
from pathlib import Path

from quillhand.tools import run

import openai

def main():
    client = openai.OpenAI()
    out = Path("out"); out.mkdir(exist_ok=True)
    print(time.time(), random.random(), uuid.uuid4())
    print(run(["sh", "-c", "date +%N; touch started"]))
    base = sqlite3.connect("notes.db")
    base.execute("CREATE TABLE IF NOT EXISTS notes (at REAL, text TEXT)")
    base.execute("INSERT INTO notes VALUES (?, ?)", (time.time(), "first"))
    base.commit()
    print(base.execute("SELECT count(*), max(at) FROM notes").fetchall())
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"it is {time.time()}"}])
    (out / "answer.txt").write_text(answer.choices[0].message.content)
    print(answer.choices[0].message.content, (out / "answer.txt").read_text())
    return 0
"""
TOOLS = """
import subprocess

def run(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
"""
AGENT = {
    "quillhand/__init__.py": "",
    "quillhand/__main__.py": "import sys\nfrom quillhand.loop import main\nsys.exit(main())\n",
    "quillhand/loop.py": LOOP,
    "quillhand/tools.py": TOOLS,
}


class Installed:
    """An agent installed in its own folder, and a workplace outside that folder."""

    def __init__(self, workplace: Workplace, folder: Path, distribution: str = "quill-hand") -> None:
        self.site = folder / "site-packages"
        self.script = install(
            self.site, distribution, AGENT, script="quill", entry="quillhand.loop:main", requires=["openai"]
        )
        self.own = folder / "mine" / "quill.py"
        self.workplace = workplace

    def record(self, *command: str, plumbing: str = "") -> Recording:
        """Record a run."""
        started = command or (str(self.script),)
        done = self.workplace.record(*started, PYTHONPATH=str(self.site), SPANREPLAY_PLUMBING=plumbing)
        assert done.returncode == 0
        return self.workplace.recordings()[-1]

    def replay(self, *command: str, **environ: str) -> Replayed:
        """Replay it after removing everything that the recorded run left behind."""
        self.clear()
        return self.workplace.replay(*(command or (str(self.script),)), PYTHONPATH=str(self.site), **environ)

    def unpack(self) -> None:
        """Move the program beside a script of the user's, outside the installed packages."""
        self.own.parent.mkdir()
        shutil.move(str(self.site / "quillhand"), str(self.own.parent / "quillhand"))
        self.own.write_text(AGENT["quillhand/__main__.py"], encoding="utf-8")

    def change(self, before: str, after: str) -> None:
        """Edit the program, wherever it is."""
        folder = self.own.parent if self.own.exists() else self.site
        path = folder / "quillhand" / "loop.py"
        path.write_text(path.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")

    def clear(self) -> None:
        """Remove everything that a run leaves behind."""
        shutil.rmtree(self.workplace.path / "out", ignore_errors=True)
        for name in ("notes.db", "started"):
            (self.workplace.path / name).unlink(missing_ok=True)

    def left(self) -> set[str]:
        """The traces of a run in the workplace."""
        return {each.name for each in self.workplace.path.iterdir()} & {"out", "notes.db", "started"}


@pytest.fixture
def installed(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An installed agent that uses every part of a machine."""
    return Installed(workplace, tmp_path_factory.mktemp("venv"))


WAYS: Final[dict[str, tuple[str, ...]]] = {
    "own script": (),
    "console script": (),
    "module": ("-m", "quillhand"),
    "submodule": ("-um", "quillhand.__main__"),
}
"""The arguments after `python` that start the same program; none for a script."""
CALLS: Final = [
    ("tool:lookup", "loop.py"),
    ("tool:os.mkdir", "loop.py"),
    ("tool:subprocess.sh", "tools.py"),
    ("tool:sqlite3.connect", "loop.py"),
    ("tool:sqlite3.execute", "loop.py"),
    ("tool:sqlite3.execute", "loop.py"),
    ("tool:sqlite3.commit", "loop.py"),
    ("tool:sqlite3.execute", "loop.py"),
    ("llm:openai.chat.completions", "loop.py"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sampled(2)
def test_p1_u1_s50_an_installed_agent_is_an_agent(way: str, installed: Installed, provider: Provider) -> None:
    """A script, a console script and a module have the same calls and the same verdicts.

    Clock, random sources, programs, databases and files replay as recorded; a change is named at its call.
    """
    command = WAYS[way]
    if way == "own script":
        installed.unpack()
        command = (str(installed.own),)
    recording = installed.record(*command)
    assert recording.completeness().is_complete
    assert installed.left() == {"out", "notes.db", "started"}
    assert [(call.boundary, Path(call.code.split(":")[0]).name) for call in recording.calls] == CALLS
    assert {call.lane for call in recording.calls} == {"main"}
    provider.stop()
    replayed = installed.replay(*command)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert installed.left() == set()
    installed.change("it is", "it was")
    changed = installed.replay(*command)
    assert (changed.verdict["verdict"], changed.status) == ("diverged", 3)
    assert changed.causes() == [("changed_call", "llm:openai.chat.completions")]
    assert changed.verdict["divergences"][0]["call"] == len(CALLS)


def test_p1_a_program_of_a_models_sdk_is_an_agent(
    workplace: Workplace, provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A started program of a package that is itself a model client, such as a proxy, counts as the agent."""
    installed = Installed(workplace, tmp_path_factory.mktemp("venv"), "portkey-ai")
    recording = installed.record()
    assert [(call.boundary, Path(call.code.split(":")[0]).name) for call in recording.calls] == CALLS
    provider.stop()
    replayed = installed.replay()
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


MINI: Final = LITELLM.with_name("mini")
COMMANDS: Final = (
    "date +%N > made.txt; mkdir -p deep; cat made.txt",
    "echo $RANDOM | tee deep/drawn.txt",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat deep/drawn.txt",
)


@pytest.mark.skipif(not MINI.exists(), reason="no mini-swe-agent here: tools/agents.sh installs it")
def test_p1_mini_swe_agent_replays_with_its_provider_stopped(provider: Provider, tmp_path: Path) -> None:
    """The published agent, started as its users start it, replays identically; nothing in its folder is touched."""
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    environ = {**provider.environ(), "HOME": str(home), "MSWEA_CONFIGURED": "true", "COLUMNS": "200"}
    place = Workplace(folder, environ | {"MSWEA_COST_TRACKING": "ignore_errors"}, LITELLM)
    orders = " then ".join(f"use tool bash with {json.dumps({'command': each})}" for each in COMMANDS)
    command = (
        str(MINI),
        "-y",
        "--exit-immediately",
        "-m",
        "openai/gpt-5",
        "-t",
        orders,
    )
    recorded = place.record(*command)
    recording = place.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    programs = [call for call in recording.calls if call.name.startswith("subprocess.")]
    assert len(programs) == len(COMMANDS)
    assert sum(call.kind == "llm" for call in recording.calls) == len(COMMANDS)
    provider.stop()
    shutil.rmtree(folder / "deep")
    (folder / "made.txt").write_text("the user's own")
    before = _seen(folder), _seen(home)
    replayed = place.replay(*command)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert (_seen(folder), _seen(home)) == before


def _seen(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Each file except ours, with its content and modification time."""
    files = (each for each in sorted(folder.rglob("*")) if each.is_file() and ".spanreplay" not in each.parts)
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in files if each.name != "verdict.json"}
