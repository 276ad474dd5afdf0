"""A git repository for an agent's code."""

from __future__ import annotations

import subprocess
from pathlib import Path

_WHO = ("-c", "user.name=Dev", "-c", "user.email=dev@example.test", "-c", "commit.gpgsign=false")


def commit(path: Path, message: str) -> str:
    """Commit a directory's content, creating the repository if needed; return the commit's id."""
    if not (path / ".git").exists():
        _git(path, "init", "-q", "-b", "main")
    _git(path, "add", "--", "*.py")
    _git(path, *_WHO, "commit", "-q", "--allow-empty", "-m", message)
    return _git(path, "rev-parse", "HEAD")


def check_out(path: Path, commit_id: str) -> None:
    """Check out a commit."""
    _git(path, "checkout", "-q", commit_id)


def clone(source: Path, target: Path) -> None:
    """Clone the repository, as CI does."""
    _git(source, "clone", "-q", str(source), str(target))


def _git(path: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
