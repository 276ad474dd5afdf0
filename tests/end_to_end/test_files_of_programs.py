"""File changes by programs and libraries are there in a replay, although it starts no program."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.installing import install
from support.replaying import Workplace

FORMATTER = """
import os
import pathlib
import subprocess

note, made = pathlib.Path("note.txt"), pathlib.Path("made.txt")
note.write_text("mine")
print(made.exists())
subprocess.run(["sh", "-c", "date +%N >> note.txt; mkdir folder; date +%N > made.txt; date +%N > folder/deep.txt"])
print(note.stat().st_size, note.read_text(), made.exists(), os.path.getsize("made.txt"), made.read_text())
print(os.listdir("folder"), pathlib.Path("folder/deep.txt").read_text(), note.read_text())
with note.open("a") as more:
    more.write("more")
print(note.read_text())
subprocess.run(["rm", "note.txt"])
print(note.exists())
"""
GIVEN = """
import pathlib
import subprocess

pathlib.Path("note.txt").write_text("mine")
pathlib.Path("gone.txt").write_text("mine")
subprocess.run(["sh", "-c", "date +%N >> note.txt; rm gone.txt"])
"""
NAMELESS = """
import os
import subprocess
import tempfile

print(subprocess.run(["date", "+%N"], capture_output=True, text=True).stdout)
with tempfile.TemporaryFile() as scratch:
    scratch.write(b"x")
print(os.stat(tempfile.gettempdir()).st_mtime_ns)
"""
CACHE = """
import datetime
import json
from pathlib import Path

def first_seen():
    cache = Path.home() / ".cache" / "seenlib" / "seen.json"
    cache.parent.mkdir(parents=True, exist_ok=True)
    if cache.exists():
        return "again: " + json.loads(cache.read_text())
    cache.write_text(json.dumps("a while ago"))
    return "for the first time"
"""


def _clear(folder: Path) -> None:
    for name in ("note.txt", "made.txt", "folder/deep.txt"):
        (folder / name).unlink(missing_ok=True)
    if (folder / "folder").exists():
        (folder / "folder").rmdir()


def test_p10_s50_what_a_program_made_of_files_is_read_again(workplace: Workplace) -> None:
    """A file that a program rewrote, created beside the code or removed is as recorded, whatever its state today."""
    agent = workplace.write("agent.py", FORMATTER)
    recorded = workplace.record(agent)
    assert workplace.recording().completeness().is_complete
    for _ in range(2):
        replayed = workplace.replay(agent)
        assert replayed.stdout == recorded.stdout, replayed.stderr
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        _clear(workplace.path)
    assert {each.name for each in workplace.path.iterdir()} == {"agent.py", ".spanreplay", "verdict.json"}


def test_p10_s50_what_a_program_was_given_is_what_counts(workplace: Workplace) -> None:
    """A file that a program changed or removed later is compared with the agent's version."""
    agent = workplace.write("agent.py", GIVEN)
    workplace.record(agent)
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    for name in ("note.txt", "gone.txt"):
        workplace.write("agent.py", GIVEN.replace(f'("{name}").write_text("mine")', f'("{name}").write_text("other")'))
        changed = workplace.replay(agent)
        assert changed.causes() == [("file_changed", f"file:{name}")], changed.stderr


def test_p10_s56_a_file_without_a_name_is_no_change_of_its_folder(workplace: Workplace) -> None:
    """A look at the temporary folder matches in a replay even if a nameless file was opened there."""
    agent = workplace.write("agent.py", NAMELESS)
    recorded = workplace.record(agent)
    replayed = workplace.replay(agent)
    assert (replayed.stdout, replayed.verdict["verdict"]) == (recorded.stdout, "identical"), replayed.stderr


def test_p10_what_a_library_made_for_itself_is_not_there_yet(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A library's cache in the user's home that the recorded run created is missing when its replay begins."""
    site = tmp_path_factory.mktemp("venv") / "site-packages"
    install(site, "seenlib", {"seenlib/__init__.py": CACHE})
    agent = workplace.write("agent.py", "import seenlib\nprint(seenlib.first_seen())\n")
    recorded = workplace.record(agent, PYTHONPATH=str(site))
    cache = workplace.path / ".cache" / "seenlib" / "seen.json"
    assert (recorded.stdout, cache.exists()) == ("for the first time\n", True)
    replayed = workplace.replay(agent, PYTHONPATH=str(site))
    assert (replayed.stdout, replayed.verdict["verdict"]) == (recorded.stdout, "identical"), replayed.stderr
    assert cache.read_text(encoding="utf-8") == '"a while ago"'
