"""An agent among the installed packages is an agent: started by its console script, or with `python -m`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spanreplay.model.call import Recording
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
    """An agent that is installed below a folder of its own, and a workplace outside of it."""

    def __init__(self, workplace: Workplace, folder: Path) -> None:
        self.site = folder / "site-packages"
        self.script = install(
            self.site, "quill-hand", AGENT, script="quill", entry="quillhand.loop:main", requires=["openai"]
        )
        self.workplace = workplace

    def record(self, *command: str, plumbing: str = "") -> Recording:
        """Run it, recorded."""
        started = command or (str(self.script),)
        done = self.workplace.record(*started, PYTHONPATH=str(self.site), SPANREPLAY_PLUMBING=plumbing)
        assert done.returncode == 0
        return self.workplace.recordings()[-1]

    def replay(self, *command: str, **environ: str) -> Replayed:
        """Replay it where nothing of the recorded run is left."""
        self.clear()
        return self.workplace.replay(*(command or (str(self.script),)), PYTHONPATH=str(self.site), **environ)

    def clear(self) -> None:
        """Take away what a run leaves behind."""
        shutil.rmtree(self.workplace.path / "out", ignore_errors=True)
        for name in ("notes.db", "started"):
            (self.workplace.path / name).unlink(missing_ok=True)

    def left(self) -> set[str]:
        """What is in the workplace."""
        return {each.name for each in self.workplace.path.iterdir()} & {"out", "notes.db", "started"}


@pytest.fixture
def installed(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An installed agent that uses all of a machine."""
    return Installed(workplace, tmp_path_factory.mktemp("venv"))


WAYS = {"script": (), "module": ("-m", "quillhand"), "submodule": ("-um", "quillhand.__main__")}


@pytest.mark.parametrize("way", WAYS)
def test_u1_s50_an_installed_agent_is_an_agent(way: str, installed: Installed, provider: Provider) -> None:
    """Clock, random sources, programs, databases and files of an installed agent are recorded and come back."""
    recording = installed.record(*WAYS[way])
    assert recording.completeness().is_complete
    assert installed.left() == {"out", "notes.db", "started"}
    names = {call.name for call in recording.calls}
    assert {"subprocess.sh", "sqlite3.execute", "sqlite3.commit", "openai.chat.completions"} <= names
    assert {call.code.split(":")[0] for call in recording.calls} <= {"quillhand/loop.py", "quillhand/tools.py"}
    provider.stop()
    replayed = installed.replay(*WAYS[way])
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert installed.left() == set()
