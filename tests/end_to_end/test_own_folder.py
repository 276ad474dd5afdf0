"""An agent that lists its folder does not find the recordings that lie in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

LISTS: Final = """
import glob, os, pathlib, shutil, subprocess, sys

def show():
    print(os.listdir(), os.listdir("."), os.listdir(b"."), os.listdir(os.getcwd()))
    with os.scandir() as entries:
        print([entry.name for entry in entries])
    print([each.name for each in os.scandir(b".")], [str(each) for each in pathlib.Path.cwd().iterdir()])
    print(sorted(map(str, pathlib.Path(".").rglob("*"))), glob.glob("*"), sorted(glob.glob("**/*", recursive=True)))
    print([(folder, sorted(names), sorted(files)) for folder, names, files in os.walk(".")])
    descriptor = os.open(".", os.O_RDONLY)
    print(os.listdir(descriptor))
    os.close(descriptor)

show()
subprocess.run(["true"])  # a call: the first thing that is recorded
show()
print(os.listdir in os.supports_fd, os.scandir in os.supports_fd, shutil.rmtree.avoids_symlink_attacks)
try:
    os.listdir("missing")
except FileNotFoundError as exc:
    print(exc)
"""


@pytest.mark.parametrize("level", ["full", "calls"])
def test_s61_the_first_run_of_an_agent_finds_what_a_plain_one_finds(level: str, tmp_path: Path) -> None:
    """The folder of recordings is in no list, before and after it is made; the replay's lists are the same."""
    place = Workplace(tmp_path)
    agent = place.write("agent.py", LISTS)
    place.write("zeta.txt", "z")
    place.write("alpha.txt", "a")
    plain = subprocess.run([sys.executable, str(agent)], cwd=tmp_path, capture_output=True, text=True, check=True)
    recorded = place.record(agent, SPANREPLAY_LEVEL=level)
    assert recorded.stdout == plain.stdout
    assert (tmp_path / ".spanreplay").is_dir()
    replayed = place.replay(agent)
    assert replayed.status == 0, replayed.stderr
    assert replayed.stdout == plain.stdout


def test_s61_who_names_the_folder_of_recordings_can_list_it(tmp_path: Path) -> None:
    """Only the list of the folder around it lacks it, whatever its name; another folder of that name is listed."""
    place = Workplace(tmp_path, {"SPANREPLAY_DIR": str(tmp_path / "kept here")})
    (tmp_path / "inside" / "kept here").mkdir(parents=True)
    agent = place.write(
        "agent.py",
        "import os, subprocess\nsubprocess.run(['true'])\n"
        "print(sorted(os.listdir()), os.listdir('inside'), 'spool' in os.listdir('kept here'))\n",
    )
    assert place.record(agent).stdout == "['agent.py', 'inside'] ['kept here'] True\n"


def test_r1_the_key_is_not_recorded_by_an_agent_that_finds_it(tmp_path: Path) -> None:
    """A program of the agent that reads all files, and a file that it writes: the key is a token in the recording."""
    place = Workplace(tmp_path)
    agent = place.write(
        "agent.py",
        "import subprocess\n"
        "found = subprocess.run(['grep', '-r', '', '.spanreplay/redact.key'], capture_output=True, text=True).stdout\n"
        "open('notes.txt', 'w').write(found)\n"
        "subprocess.run(['cat'], input=found.upper() + found, text=True)\n",
    )
    place.record(agent)
    key = (tmp_path / ".spanreplay" / "redact.key").read_text().strip()
    assert key in (tmp_path / "notes.txt").read_text()
    shown = place.run("export", place.recording().run_id, "--jsonl", "-o", "-")
    assert shown.returncode == 0, shown.stderr
    assert "notes.txt" in shown.stdout
    assert key not in shown.stdout
    replayed = place.replay(agent)
    assert replayed.status == 0, replayed.stderr
