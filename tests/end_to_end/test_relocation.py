"""A run replays if the agent is in another folder: on a laptop, in CI, in a container."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.replaying import BIN, Replayed, Workplace

AGENT = """
import json, multiprocessing, os, pathlib, sqlite3, subprocess, sys, traceback
from concurrent.futures import ProcessPoolExecutor
import spanreplay

HERE = pathlib.Path(__file__).resolve().parent.parent
DATA = HERE / "data"


@spanreplay.boundary("llm", name="ask")
def ask(messages):
    return f"seen: {json.dumps(messages)} {os.urandom(4).hex()}"


@spanreplay.boundary("tool", name="find")
def find(path):
    return f"{path}/found"


@spanreplay.boundary("tool", name="fail")
def fail():
    return int("no number")


def work(name):
    return ask([{"role": "user", "content": f"{os.getcwd()} {DATA / name}"}])


if __name__ == "__main__":
    question = f"You work in {os.getcwd()}.\\nThe data: file://{DATA}, {HERE}/x"
    print(ask([{"role": "system", "content": question}]))
    print((DATA / os.environ.get("NOTE", "note.txt")).read_text())
    print(sorted(each.name for each in DATA.glob("*.txt")))
    database = sqlite3.connect(str(DATA / "orders.db"))
    database.execute("create table if not exists orders (number)")
    database.execute("insert into orders values (4711)")
    database.commit()
    print(database.execute("select number from orders").fetchall())
    print(subprocess.run(["ls", str(DATA)], capture_output=True, text=True).stdout)
    print(ask([{"role": "user", "content": find(DATA)}]))
    (DATA / "out.txt").write_text(f"made in {HERE}\\n")
    try:
        open(DATA / "missing")
    except OSError as exc:
        print(ask([{"role": "user", "content": f"{exc}\\n{traceback.format_exc()}"}]))
    try:
        fail()
    except ValueError:
        print(traceback.format_exc())
    os.chdir(DATA)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        print(list(pool.map(work, ["a"])))
"""


def make(folder: Path) -> Workplace:
    """Create the agent and its data in a folder."""
    for name in ("code", "data", "home"):
        (folder / name).mkdir(parents=True)
    (folder / "code" / "agent.py").write_text(AGENT, encoding="utf-8")
    (folder / "code" / ".git").mkdir()
    for name in ("note.txt", "other.txt"):
        (folder / "data" / name).write_text(f"{name}\n", encoding="utf-8")
    return Workplace(folder, {"HOME": str(folder / "home")})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file with the run, and its output; the folder where it was recorded is gone."""
    folder = tmp_path_factory.mktemp("production") / "srv" / "agent"
    place = make(folder)
    done = place.record("code/agent.py")
    file = tmp_path_factory.mktemp("exported") / "run.replay"
    run_id = place.recording().run_id
    command = [str(BIN / "spanreplay"), "export", run_id, "-o", str(file)]
    subprocess.run(command, cwd=folder, env=place.environ, check=True, capture_output=True)
    shutil.rmtree(folder)
    return file, done.stdout.replace(str(folder), "…")


def replay(folder: Path, file: Path, *options: str, **environ: str) -> Replayed:
    """The run, replayed in another folder."""
    return make(folder).replay("code/agent.py", source=str(file), options=options, **environ)


def test_s62_run_replays_where_the_agent_lies_in_another_folder(recorded: tuple[Path, str], tmp_path: Path) -> None:
    """Prompts, arguments, paths of files and databases, tracebacks, output and files that name the folder all match."""
    file, printed = recorded
    folder = tmp_path / "home of somebody" / "äpfel" / "agent"
    found = replay(folder, file)
    assert found.verdict["verdict"] == "identical", found.stderr
    assert found.status == 0
    assert found.verdict["counts"]["exact"] == found.verdict["counts"]["recorded"] > 10
    assert f"folder    {folder}, recorded in /" in found.stderr
    assert (folder / "data" / "orders.db").exists() is (folder / "data" / "out.txt").exists() is False
    assert printed.splitlines()[1:6] == found.stdout.splitlines()[1:6]


def test_s62_another_file_in_another_folder_is_still_a_divergence(recorded: tuple[Path, str], tmp_path: Path) -> None:
    """Only the folder is mapped to the recorded one, not the files in it."""
    file, _ = recorded
    found = replay(tmp_path / "elsewhere", file, NOTE="other.txt")
    (cause,) = [each for each in found.verdict["divergences"] if not each.get("downstream")]
    assert (found.status, cause["boundary"]) == (3, "tool:open")
    (diff,) = cause["diff"]
    assert diff["recorded"].endswith("srv/agent/data/note.txt")
    assert diff["now"].endswith("srv/agent/data/other.txt")
