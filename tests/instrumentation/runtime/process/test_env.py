"""The environment of a run: code, interpreter, versions; read from files, and never failing."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from spanreplay.runtime.process.environment import describe_environment, read_git_sha

SHA = "1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d"


def _repository(folder: Path, head: str) -> Path:
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    return git


def test_s21_moving_parts_of_the_process_are_described() -> None:
    """Arguments, Python, platform and the versions of model-related packages are described."""
    found = describe_environment(["agent.py", "--fast"])
    assert found["argv"] == ["agent.py", "--fast"]
    assert {"python", "implementation", "platform", "machine", "git_sha", "cwd"} <= set(found)
    assert "spanreplay" in found["packages"]
    assert found["packages"] == {name: version(name) for name in found["packages"]}


def test_commit_is_read_from_a_branch(tmp_path: Path) -> None:
    """The commit of a checked-out branch is found, also from a subfolder."""
    git = _repository(tmp_path, "ref: refs/heads/main\n")
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(SHA + "\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert read_git_sha(tmp_path) == read_git_sha(below) == SHA


def test_commit_is_read_from_packed_refs_and_detached_heads(tmp_path: Path) -> None:
    """A packed branch and a detached head are found too."""
    packed = _repository(tmp_path / "packed", "ref: refs/heads/main\n")
    (packed / "packed-refs").write_text(
        f"# pack-refs with: peeled\n{'0' * 40} refs/heads/other\n{SHA} refs/heads/main\n"
    )
    _repository(tmp_path / "detached", SHA + "\n")
    assert read_git_sha(tmp_path / "packed") == read_git_sha(tmp_path / "detached") == SHA


def test_commit_is_read_from_a_worktree(tmp_path: Path) -> None:
    """A worktree's own HEAD and the main repository's branches give the commit."""
    main = _repository(tmp_path / "main", "ref: refs/heads/main\n")
    (main / "refs" / "heads").mkdir(parents=True)
    (main / "refs" / "heads" / "topic").write_text(SHA)
    own = main / "worktrees" / "topic"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/topic\n")
    (own / "commondir").write_text("../..\n")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert read_git_sha(tree) == SHA


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none\n", "ref:"], ids=["empty", "no_branch", "torn"])
def test_no_commit_is_no_failure(tmp_path: Path, head: str) -> None:
    """A repository without a commit, or a damaged one, has no commit."""
    _repository(tmp_path, head)
    assert read_git_sha(tmp_path) == ""


def test_outside_of_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    """Without a .git folder above, or with one that can't be read, there is no commit."""
    assert read_git_sha(tmp_path) == ""
    (tmp_path / ".git").mkdir()
    assert read_git_sha(tmp_path) == ""
