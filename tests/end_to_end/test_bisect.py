"""`spanreplay bisect` finds the commit that changed the result of a recorded run; it only reads the working tree."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from spanreplay.cli.compare.bisect import OTHER, SAME, UNKNOWN, find_first
from support.replaying import Workplace
from support.repository import commit
from support.sampling import IS_WHOLE

AGENT: Final = """
import spanreplay
from prices import price

@spanreplay.boundary("tool", name="pay")
def pay(amount):
    return amount

print(pay(price()))
"""
GOOD, BAD = "def price():\n    return 10\n", "def price():\n    return 99\n"
DIES: Final = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
COMMITS: Final = 50


def _commit(workplace: Workplace, files: dict[str, str], message: str) -> str:
    for name, text in files.items():
        (workplace.path / name).parent.mkdir(exist_ok=True)
        workplace.write(name, text)
    return commit(workplace.path, message)


def _snapshot(path: Path) -> dict[str, str]:
    """Every file of the working tree and of git, except the recordings."""
    found = {}
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        if file.is_file() and not name.startswith((".spanreplay", "verdict.json")):
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _bisect(workplace: Workplace, good: str, *options: str, **environ: str) -> tuple[int, dict[str, Any], str]:
    agent = ("--", str(workplace.python), "agent.py")
    done = workplace.run("bisect", "latest", "--good", good, "--json", *options, *agent, **environ)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.mark.parametrize("planted", [1, 17, COMMITS] if IS_WHOLE else [17])
def test_w2_the_one_of_fifty_commits_is_named(planted: int, tmp_path: Path) -> None:
    """For a run of the bad code it takes at most 7 replays, and a dirty working tree stays as it is."""
    workplace = Workplace(tmp_path)
    first = _commit(workplace, {"agent.py": AGENT, "prices.py": GOOD}, "the first")
    commits = []
    for number in range(1, COMMITS + 1):
        files = {"other.py": f"n = {number}\n", **({"prices.py": BAD} if number == planted else {})}
        commits.append(_commit(workplace, files, f"change {number}"))
    workplace.record("agent.py")
    workplace.write("prices.py", "raise SystemExit('not committed')\n")
    workplace.write("new.txt", "not known to git\n")
    before = _snapshot(tmp_path)
    status, found, said = _bisect(workplace, first)
    assert status == 0, said
    assert found["candidates"] == [commits[planted - 1]]
    assert found["found"]["subject"] == f"change {planted}"
    assert found["found"]["files"] == ["other.py", "prices.py"]
    assert found["from_then_on"] == "identical"
    assert "arguments" in found["differs"]
    assert len(found["replays"]) <= 7
    assert _snapshot(tmp_path) == before


def test_w2_a_run_of_the_good_code_diverges_from_the_commit_on(tmp_path: Path) -> None:
    """This holds also if the package is found through its own path entry, as with an editable install."""
    workplace = Workplace(tmp_path, {"PYTHONPATH": str(tmp_path / "src")})
    good = _commit(workplace, {"agent.py": AGENT, "src/prices.py": GOOD}, "the first")
    workplace.record("agent.py")
    _commit(workplace, {"other.py": ""}, "nothing")
    planted = _commit(workplace, {"src/prices.py": BAD}, "dearer")
    _commit(workplace, {"other.py": "n = 2\n"}, "nothing again")
    status, found, said = _bisect(workplace, good)
    assert status == 0, said
    assert (found["candidates"], found["from_then_on"]) == ([planted], "diverged")
    told = workplace.run("bisect", "latest", "--good", good, "--", str(workplace.python), "agent.py")
    assert f"since commit {planted[:10]} the run diverges\n  dearer\n" in told.stdout
    assert "now: diverged changed_call at tool:pay: arguments" in told.stdout


def test_w2_commits_that_can_not_be_replayed_are_left_out(tmp_path: Path) -> None:
    """If such commits are all that remain, every possible commit is named and the status is 4."""
    workplace = Workplace(tmp_path)
    good = _commit(workplace, {"agent.py": AGENT, "prices.py": GOOD}, "the first")
    dead = [_commit(workplace, {"prices.py": DIES + BAD + f"# {number}\n"}, "broken") for number in range(2)]
    bad = _commit(workplace, {"prices.py": BAD}, "mended")
    workplace.record("agent.py")
    status, found, said = _bisect(workplace, good)
    assert status == 4, said
    assert found["candidates"] == [*dead, bad]
    assert found["found"] is None
    assert "no verdict" in said


def test_w2_what_can_not_be_looked_for_is_said_in_one_line(tmp_path: Path) -> None:
    """Identical ends, an unknown commit, the wrong order and a missing repository each give one line."""
    workplace = Workplace(tmp_path)
    first = _commit(workplace, {"agent.py": AGENT, "prices.py": GOOD}, "the first")
    last = _commit(workplace, {"other.py": ""}, "nothing")
    workplace.record("agent.py")
    for good, options, said in (
        (first, (), "no commit between them changed it"),
        ("v9", (), "git knows no commit 'v9' here"),
        ("--output=x", (), "is not the name of a commit"),
        (last, ("--bad", first), "is not an ancestor of"),
    ):
        status, _, error = _bisect(workplace, f"{good}", *options)
        assert status == 1, error
        assert said in error
        assert "Traceback" not in error
    (tmp_path / ".git").rename(tmp_path / "git")
    status, _, error = _bisect(workplace, first, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    assert status == 1
    assert "git rev-parse:" in error


@pytest.mark.parametrize("planted", range(COMMITS))
def test_w2_six_looks_find_one_of_fifty(planted: int) -> None:
    """Any of the fifty is found, and a commit never counts as different without evidence."""
    looked: list[int] = []

    def judge(number: int) -> str:
        looked.append(number)
        return SAME if number >= planted else OTHER

    assert find_first(COMMITS, judge, SAME) == (planted - 1, planted)
    assert len(looked) == len(set(looked)) <= 6
    # One more replay at the older end, and one at the newer end if no commit before it was as recorded
    assert len(looked) + 1 + (planted == COMMITS - 1) <= 7


@pytest.mark.parametrize("planted", range(10))
@pytest.mark.parametrize("broken", [{3}, {0, 1, 2}, {4, 5, 6}, set(range(9))], ids=str)
def test_w2_what_is_unknown_is_never_taken_for_an_answer(planted: int, broken: set[int]) -> None:
    """The commit is among the candidates, and all candidates except the last are unknown."""
    answers = [UNKNOWN if at in broken else OTHER if at < planted else SAME for at in range(10)]
    before, at = find_first(10, answers.__getitem__, SAME)
    assert before < planted <= at
    assert all(each in broken for each in range(before + 1, at))
