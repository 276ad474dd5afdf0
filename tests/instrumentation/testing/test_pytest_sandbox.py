"""The pytest plug-in's sandbox: writes of marked tests, their folders, and the files of pytest itself."""

from __future__ import annotations

import shutil

import pytest

from support.nested_pytest import OURS
from support.repository import commit

pytest_plugins = ["pytester"]

AGENT = """
import os, json
from pathlib import Path
import pytest
import spanreplay

WORD = os.environ.get("WORD", "plain")

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return f"answer to {question}"
"""


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def _run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*OURS, *args, timeout=600)


def _record(pytester: pytest.Pytester, *args: str) -> None:
    result = _run(pytester, "--replay-mode=record", *args)
    assert result.ret == 0, result.stdout.str()


FOLDERS = (
    AGENT
    + """
@pytest.fixture
def order(tmp_path):
    path = tmp_path / "order.json"
    path.write_text('{"id": 17}')
    return path

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "base.txt"
    path.write_text("base")
    return path

@pytest.mark.replay
def test_reads_and_writes(order, shared, tmp_path):
    number = json.loads(order.read_text())["id"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "answer.txt").write_text(ask(f"order {number} {shared.read_text()}") + WORD)
    Path("result.txt").write_text((tmp_path / "out" / "answer.txt").read_text())
    assert Path("result.txt").exists()

def test_sees_the_world():
    assert not Path("result.txt").exists() or os.environ.get("WORLD")

@pytest.mark.replay
def test_makes_its_folder_late(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    assert folder.is_dir()
    request.getfixturevalue("shared")
    (folder / "x.txt").write_text(ask("x"))
    assert [p.name for p in folder.iterdir()] == ["x.txt"]

def test_shared_folder_is_there(shared):
    assert shared.read_text() == "base"
"""
)


def test_u6_test_folders_have_one_name_and_the_world_stays(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded and replayed in other tmp_paths and from another folder, it is identical; the tree is unchanged."""
    pytester.makepyfile(test_agent=FOLDERS)
    pytester.makeini("[pytest]\n")
    monkeypatch.setenv("WORLD", "1")
    _record(pytester)
    (pytester.path / "result.txt").unlink()
    monkeypatch.delenv("WORLD")
    result = _run(pytester, "--replay-strict", f"--basetemp={pytester.path / 'elsewhere'}")
    result.assert_outcomes(passed=4)
    assert not (pytester.path / "result.txt").exists()
    result = _run(pytester, "-n", "2", "--replay-strict", "-k", "folder")
    result.assert_outcomes(passed=2)


def test_u6_changed_file_fails_and_names_its_line(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal calls and another file: the test fails with the file and the line."""
    pytester.makepyfile(test_agent=FOLDERS)
    monkeypatch.setenv("WORLD", "1")
    _record(pytester)
    monkeypatch.setenv("WORD", "other")
    result = _run(pytester, "-k", "reads_and_writes")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*<tmp_path>/out/answer.txt line 1 differs*"])


PROGRAM = (
    AGENT
    + """
import posix

@pytest.mark.replay(sandbox=False)
def test_free():
    ask("a")
    posix.system("touch free")

@pytest.mark.replay
def test_bound():
    ask("a")
    posix.system("touch bound")
"""
)


def test_u6_effects_beside_calls_fail_unless_the_mark_allows_them(pytester: pytest.Pytester) -> None:
    """A program that no call covers is denied and named; `sandbox=False` and --replay-no-sandbox let it run."""
    pytester.makepyfile(test_agent=PROGRAM)
    _record(pytester)
    free, bound = pytester.path / "free", pytester.path / "bound"
    free.unlink()
    bound.unlink()
    result = _run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*process:start*"])
    assert (free.exists(), bound.exists()) == (True, False)
    _run(pytester, "--replay-no-sandbox").assert_outcomes(passed=2)
    assert bound.exists()


CODE = AGENT + '\n@pytest.mark.replay\ndef test_agent():\n    ask("cheap flights")\n'


def test_u6_changed_code_is_named_with_its_commit(pytester: pytest.Pytester) -> None:
    """The failure names the line and the commit that caused the divergence."""
    pytester.makepyfile(test_agent=CODE)
    commit(pytester.path, "agent")
    _record(pytester)
    pytester.makepyfile(test_agent=CODE.replace("cheap flights", "expensive hotels"))
    commit(pytester.path, "go upmarket")
    result = _run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_agent.py:*go upmarket*"])
    result.stdout.no_fnmatch_line("*--replay-mode=record*differs*")


def test_u6_what_pytest_writes_is_kept(pytester: pytest.Pytester) -> None:
    """Caches and reports of a replayed test are really written."""
    pytester.makepyfile(test_agent=CODE)
    _record(pytester)
    shutil.rmtree(pytester.path / ".pytest_cache")
    result = _run(pytester, "--junitxml=junit.xml", "--replay-report=reports")
    result.assert_outcomes(passed=1)
    assert (pytester.path / "junit.xml").is_file()
    assert list((pytester.path / "reports").iterdir())
    assert (pytester.path / ".pytest_cache").is_dir()
