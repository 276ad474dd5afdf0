"""Check out commits of the agent's repository into separate folders; the working tree is only read.

A separate index is used, so the user's index, branches and git worktrees stay untouched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanreplay.model.errors import ConfigError

__all__ = ["COMMITS_MAX", "Commit", "Repository"]

COMMITS_MAX: Final = 100_000
UNTRACKED_BYTES_MAX: Final = 64 * 1024 * 1024
_TIMEOUT_S: Final = 600
_LOCATIONS: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
"""Variables that point git to another repository or index than the folder's, for example in a hook."""
_FORMAT: Final = "%H%x00%s%x00%an%x00%aI"


@dataclass(frozen=True)
class Commit:
    """One commit, as git reports it."""

    sha: str
    subject: str
    author: str
    date: str
    """ISO 8601."""


class Repository:
    """The repository that contains a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises: ConfigError if there is no repository, or git is not installed."""
        self._folder = folder
        top = self._ask("rev-parse", "--show-toplevel", hint="run it in the repository of the agent's code").strip()
        self.root = Path(top).resolve()

    def find(self, name: str) -> str:
        """The id of the commit for a branch, a tag or an abbreviated id. Raises: ConfigError."""
        if name.startswith("-"):
            raise ConfigError(f"{name!r} is not the name of a commit")
        try:
            return self._ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()
        except ConfigError as exc:
            raise ConfigError(f"git knows no commit {name!r} here", hint="git log --oneline lists them") from exc

    def knows(self, sha: str) -> bool:
        """Whether a full commit id exists in this repository."""
        try:
            return bool(sha) and self.find(sha) == sha
        except ConfigError:
            return False

    def is_ancestor(self, sha: str, of: str) -> bool:
        """Whether one commit is an ancestor of another, or the same commit."""
        return self._run("merge-base", "--is-ancestor", sha, of).returncode == 0

    def list_between(self, good: str, bad: str) -> list[str]:
        """The commits after `good` up to `bad`, oldest first; merges are followed along their first parent only.

        Raises: ConfigError if `good` is not an ancestor of `bad`.
        """
        if good == bad or not self.is_ancestor(good, bad):
            raise ConfigError(
                f"commit {good[:12]} is not an ancestor of {bad[:12]}", hint="--good is the older one, --bad the newer"
            )
        found = self._ask("rev-list", "--first-parent", "--reverse", f"--max-count={COMMITS_MAX}", f"{good}..{bad}")
        return found.split()

    def describe(self, sha: str) -> Commit:
        """Ask git for the details of a commit. Raises: ConfigError."""
        said = self._ask("show", "--no-patch", "--no-notes", "--no-show-signature", f"--format={_FORMAT}", sha)
        return Commit(*said.rstrip("\n").split("\0"))

    def list_changed(self, sha: str) -> list[str]:
        """The files that a commit changes, relative to its first parent. Raises: ConfigError."""
        found = self._ask(
            "diff-tree", "-r", "--root", "--no-commit-id", "--name-only", "-m", "--first-parent", "-z", sha
        )
        return [name for name in found.split("\0") if name]

    def lay_out(self, sha: str, folder: Path) -> None:
        """Write the files of a commit into a folder, and the untracked files of today. Raises: ConfigError."""
        index = folder.with_name(f"{folder.name}.index")
        folder.mkdir(parents=True)
        try:
            self._ask("read-tree", sha, index=index)
            self._ask("checkout-index", "--all", "--force", f"--prefix={folder}{os.sep}", index=index)
        finally:
            index.unlink(missing_ok=True)
        self._lay_untracked(folder)

    def _lay_untracked(self, folder: Path) -> None:
        """Copy untracked files that are not ignored, up to UNTRACKED_BYTES_MAX: the agent may read them."""
        left = UNTRACKED_BYTES_MAX
        found = self._ask("ls-files", "--others", "--exclude-standard", "-z", "--full-name", at=self.root)
        for name in found.split("\0"):
            source, target = self.root / name, folder / name
            if not name or source.is_symlink() or not source.is_file() or target.exists():
                continue
            left -= source.stat().st_size
            if left < 0:
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    # ── git ─────────────────────────────────────────────────────────────────────────────────────────
    def _ask(self, *words: str, index: Path | None = None, at: Path | None = None, hint: str = "") -> str:
        done = self._run(*words, index=index, at=at)
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise ConfigError(f"git {words[0]}: {said[0] if said else f'exit status {done.returncode}'}", hint=hint)
        return done.stdout.decode("utf-8", "surrogateescape")

    def _run(
        self, *words: str, index: Path | None = None, at: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        environ = {name: value for name, value in os.environ.items() if name not in _LOCATIONS}
        if index is not None:
            environ["GIT_INDEX_FILE"] = str(index)
        command: Sequence[str] = ("git", "-C", str(at or self._folder_of(index)), *words)
        try:
            return subprocess.run(command, env=environ, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except FileNotFoundError as exc:
            raise ConfigError("there is no git here", hint="install git") from exc
        except subprocess.TimeoutExpired as exc:
            raise ConfigError(f"git {words[0]} took longer than {_TIMEOUT_S} s") from exc

    def _folder_of(self, index: Path | None) -> Path:
        return self._folder if index is None else self.root  # checkout-index only writes files below its folder
