"""Files that a run changes are its state, wherever they are: a replay starts with them as the recorded run did."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace, assert_same

STATE = """
import json, os, shelve, shutil, sqlite3, subprocess
subprocess.run(["true"], check=True)
print(sorted(os.listdir(".")), os.path.exists("memory.db"))
memory = json.load(open("memory.json")) if os.path.exists("memory.json") else []
print("I remember", memory)
json.dump([*memory, len(memory)], open("memory.json", "w"))
with sqlite3.connect("memory.db") as database:
    database.execute("create table if not exists t (x)")
    database.execute("insert into t values (1)")
    print(database.execute("select count(*) from t").fetchall(), os.path.exists("memory.db"))
with shelve.open("kept") as kept:
    print(sorted(kept.items()))
    kept[str(len(kept))] = memory
with open("log.txt", "a+") as log:
    log.seek(0)
    print(log.read())
    log.write(f"{len(memory)}.")
with open("given.txt", "r+") as given:
    print(given.read())
    given.write("more.")
"""
DATABASES: Final = """
import dbm.{kind} as databases, shelve, spanreplay
spanreplay.boundary("tool", name="ask")(len)("four")
with shelve.Shelf(databases.open("kept", "c")) as kept:
    print(sorted(kept.items()))
    kept[str(len(kept))] = 1
with databases.open("new", "n") as made:
    made["a"] = "b"
with databases.open("new", "r") as made:
    print(made["a"])
"""
CHANGES = """
import os, shutil, subprocess
subprocess.run(["true"])
print(open("one/gone").read(), sorted(os.listdir("five")))
os.remove("one/gone")
os.rename("two/gone", "two/new")
os.replace("three/gone", "three/base")
shutil.move("four/gone", "four/tree/")
shutil.rmtree("five")
os.link("one/base", "one/hard")
os.symlink("base", "one/soft")
os.rename("six", "seven")
print(open("seven/base").read(), open("one/soft").read(), sorted(os.listdir("two")), sorted(os.listdir(".")))
with open("seven/base", "a") as base:
    base.write("more")
os.mkdir("five")
open("five/base", "w").write("again")
print(open("five/base").read(), open("seven/base").read())
"""


def names(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content; for a database, only its name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
            and ".spanreplay" not in p.parts and p.name != "verdict.json"}  # fmt: skip


def test_r8_state_beside_the_code_is_what_it_was_when_the_run_began(workplace: Workplace) -> None:
    """With a memory left beside the code by a first run, each of two runs replays as recorded and changes nothing."""
    (workplace.path / "given.txt").write_text("given.")
    agent = workplace.write("agent.py", STATE)
    outputs = [workplace.record(agent).stdout for _ in range(2)]
    assert "I remember []" in outputs[0]
    assert "I remember [0]" in outputs[1]
    left = names(workplace.path)
    for recording, stdout in zip(workplace.recordings()[:2], outputs, strict=True):
        assert_same(workplace.replay(agent, source=recording.run_id), stdout)
    assert names(workplace.path) == left


def test_r8_changed_paths_beside_the_code_are_there_again(workplace: Workplace) -> None:
    """Files and folders that a run removed, moved or linked are back as its replay begins."""
    for folder in ("one", "two", "three", "four", "four/tree", "five", "five/deep", "six"):
        (workplace.path / folder).mkdir()
        for name in ("base", "gone"):
            if name not in folder and folder != "four/tree":
                (workplace.path / folder / name).write_text(f"{folder}/{name}")
    agent = workplace.write("agent.py", CHANGES)
    recorded = workplace.record(agent)
    left = names(workplace.path)
    assert_same(workplace.replay(agent), recorded.stdout)
    assert names(workplace.path) == left


@pytest.mark.parametrize("kind", ["dumb", "ndbm", "gnu"])
def test_r8_databases_that_native_code_opens_are_what_they_were(workplace: Workplace, kind: str) -> None:
    """A shelf that native code opens beside the code: each of two runs replays as recorded, and neither changes it."""
    if importlib.util.find_spec({"ndbm": "_dbm", "gnu": "_gdbm"}.get(kind, "dbm")) is None:
        pytest.skip(f"this Python was built without dbm.{kind}; the system's has it (Debian: python3-gdbm)")
    agent = workplace.write("agent.py", DATABASES.format(kind=kind))
    outputs = [workplace.record(agent).stdout for _ in range(2)]
    assert outputs == ["[]\nb'b'\n", "[('0', 1)]\nb'b'\n"]
    left = names(workplace.path)
    for recording, stdout in zip(workplace.recordings()[:2], outputs, strict=True):
        assert_same(workplace.replay(agent, source=recording.run_id), stdout)
    assert names(workplace.path) == left
