"""Blocks in one process: files go to an overlay, uncovered effects are denied, changed files and code are named."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spanreplay
from spanreplay import ReplayMiss, record, replay
from support.repository import commit


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question: str) -> str:
    """A tool that answers."""
    return f"answer to {question}"


def _write_report(text: str = "") -> str:
    path = Path("out/report.txt")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text or ask("a"), encoding="utf-8")
    with path.open("a", encoding="utf-8") as stream:
        stream.write("!")
    return path.read_text(encoding="utf-8")


def _names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if ".spanreplay" not in p.parts}


def test_n14_block_writes_to_its_own_files(folder: Path) -> None:
    """A replay sees its own writes, also after the block; the real folder is unchanged and no scratch files remain."""
    with record() as recorded:
        first = _write_report()
    shutil.rmtree("out")
    before = _names(folder)
    with replay(recorded.run_id) as session:
        assert _write_report() == first
    assert session.verdict()["verdict"] == "identical"
    assert _names(folder) == before
    assert session.read_file("out/report.txt") == b"answer to a!"
    scratch = Path(session._world.files.scratch.root)  # type: ignore[union-attr]  # a sandbox has one
    session.forget_files()
    assert not scratch.exists()


def test_block_meets_the_world_that_was_recorded(folder: Path) -> None:
    """Files that the recorded block made don't exist yet in its replay, and the real ones are not touched."""

    def agent() -> bool:
        is_there = Path("made.txt").exists()
        Path("made.txt").write_text(ask("a"), encoding="utf-8")
        return is_there

    with record() as recorded:
        assert not agent()
    Path("made.txt").write_text("another thing by now", encoding="utf-8")
    with replay(recorded.run_id) as session:
        assert not agent()
    assert session.verdict()["verdict"] == "identical"
    assert Path("made.txt").read_text(encoding="utf-8") == "another thing by now"


def test_block_names_a_file_that_came_out_differently(folder: Path) -> None:
    """Equal calls with another report: the verdict names the file and its first differing line."""
    with record() as recorded:
        ask("a")
        Path("report.txt").write_text("one\ntwo\n", encoding="utf-8")
    with replay(recorded.run_id) as session:
        ask("a")
        Path("report.txt").write_text("one\nthree\n", encoding="utf-8")
    verdict = session.verdict()
    (found,) = verdict["divergences"]
    assert (verdict["verdict"], found["kind"], found["boundary"]) == ("diverged", "file_changed", "file:report.txt")
    assert "line 2" in found["message"]
    assert Path("report.txt").read_text(encoding="utf-8") == "one\ntwo\n"


def _system() -> None:
    import posix

    posix.system("touch done")


EFFECTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "program": ("process:start", _system),
    "file_of_c": ("file:write", lambda: io.FileIO("done", "w").close()),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_n14_block_denies_what_goes_past_its_calls(folder: Path, name: str) -> None:
    """Programs and files that bypass the overlay are denied in the block, with their place, and allowed after it."""
    boundary, act = EFFECTS[name]
    with record() as recorded:
        ask("a")

    def agent() -> None:
        ask("a")
        act()

    with pytest.raises(ReplayMiss), replay(recorded.run_id) as session:
        agent()
    (found,) = session.verdict()["divergences"]
    assert (found["kind"], found["boundary"]) == ("effect_blocked", boundary)
    assert "test_api_sandbox.py" in found["code"]
    assert not Path("done").exists()
    act()
    assert Path("done").exists()


def test_block_without_sandbox_writes_for_real(folder: Path) -> None:
    """With `sandbox=False` files are written for real and still compared, and programs run."""
    with record() as recorded:
        _write_report()
    shutil.rmtree("out")
    with replay(recorded.run_id, sandbox=False) as session:
        _write_report()
        _system()
    assert session.verdict()["verdict"] == "identical"
    assert _names(folder) == {"out", "out/report.txt", "done"}


def _patched() -> list[Any]:
    owners: list[tuple[Any, str]] = [(builtins, "open"), (io, "open"), (shutil, "_use_fd_functions")]
    owners += [(os, n) for n in ("open", "stat", "mkdir", "unlink", "rename", "scandir", "listdir", "getcwd")]
    return [vars(owner)[name] for owner, name in owners]


def test_blocks_in_turn_leave_nothing_in_place(folder: Path) -> None:
    """After several replays in a row, one of which raises, each has undone everything that it installed."""
    with record() as recorded:
        _write_report()
    before = (_patched(), [set(s) for s in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)])
    for number in range(3):
        shutil.rmtree("out", ignore_errors=True)
        if number == 1:
            with pytest.raises(ReplayMiss), replay(recorded.run_id):
                ask("something else")
        else:
            with replay(recorded.run_id) as session:
                _write_report()
            assert session.verdict()["verdict"] == "identical"
        after = (_patched(), [set(s) for s in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)])
        assert [a is b for a, b in zip(before[0], after[0], strict=True)] == [True] * len(before[0])
        assert before[1] == after[1]


@pytest.fixture
def helper() -> Iterator[queue.Queue[tuple[Callable[[], Any], queue.Queue[Any]] | None]]:
    """A thread that was started before the block and runs what it is given."""
    work: queue.Queue[tuple[Callable[[], Any], queue.Queue[Any]] | None] = queue.Queue()

    def serve() -> None:
        while (item := work.get()) is not None:
            item[1].put(item[0]())

    thread = threading.Thread(target=serve)
    thread.start()
    yield work
    work.put(None)
    thread.join()


def test_block_leaves_other_threads_alone(folder: Path, helper: Any) -> None:
    """A server of the test suite that runs beside the block writes its log and starts its programs for real."""
    with record() as recorded:
        ask("a")

    def serve() -> bool:
        Path("server.log").write_text("served", encoding="utf-8")
        _system()
        return Path("server.log").exists()  # a lookup inside the block would be a call that the recording lacks

    with replay(recorded.run_id) as session:
        ask("a")
        answer: queue.Queue[Any] = queue.Queue()
        helper.put((serve, answer))
        assert answer.get() is True
    assert session.verdict()["verdict"] == "identical"
    assert Path("server.log").read_text(encoding="utf-8") == "served"
    assert Path("done").exists()


def test_block_takes_its_pools_of_threads_with_it(folder: Path) -> None:
    """Work that the block submits to an older pool belongs to the block, so its files go to the overlay."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        def agent() -> str:
            def work() -> str:
                Path("pooled.txt").write_text(ask("a"), encoding="utf-8")
                return Path("pooled.txt").read_text(encoding="utf-8")

            return pool.submit(work).result()

        with record() as recorded:
            first = agent()
        Path("pooled.txt").unlink()
        with replay(recorded.run_id) as session:
            assert agent() == first
    assert session.verdict()["verdict"] == "identical"
    assert not Path("pooled.txt").exists()


AGENT = """
import spanreplay

@spanreplay.boundary("tool", name="find", effect="read")
def find(words):
    return "found"

def run():
    return find("cheap flights")
"""


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("sandboxed_agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_s27_block_names_the_changed_line_and_its_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the block, a divergence that comes from the code names the changed line and its commit."""
    path = folder / "agent.py"
    path.write_text(AGENT, encoding="utf-8")
    commit(folder, "agent")
    monkeypatch.setitem(sys.modules, "sandboxed_agent", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with record() as recorded:
        _load(path).run()
    path.write_text(AGENT.replace("cheap flights", "expensive hotels"), encoding="utf-8")
    commit(folder, "go upmarket")
    with pytest.raises(ReplayMiss), replay(recorded.run_id) as session:
        _load(path).run()
    (found,) = session.verdict()["divergences"]
    assert found["causes"][0]["kind"] == "code"
    assert "agent.py:9" in found["cause"]
    assert "go upmarket" in found["cause"]
