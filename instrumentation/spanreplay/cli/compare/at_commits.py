"""Replay a recorded run with the code of given commits."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from spanreplay.cli.agent.launch import Agent, keep_key
from spanreplay.cli.agent.settle import settle
from spanreplay.cli.compare.commits import Repository
from spanreplay.cli.replay import Source, run_agent
from spanreplay.model.errors import ConfigError
from spanreplay.report import suite
from spanreplay.report.shape import Verdict

__all__ = ["SHORT", "Replays", "describe_shortly", "timeout_option"]

SHORT: Final = 10
"""Characters of a commit's id in output for people."""
_PATHS_TIMEOUT_S: Final = 60

timeout_option: Final = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one replay.",
)


class Replays:
    """Replays one run with the files of commits, each in its own folder; the agent's output is discarded."""

    def __init__(self, found: Source, agent: Agent, repository: Repository, folder: Path, timeout_s: float) -> None:
        self.recording = found.recording
        self.repository = repository
        self._found = found
        self._agent = agent
        self._folder = folder
        self._timeout_s = timeout_s
        self._here = Path.cwd().resolve()
        self._paths = _list_paths(agent)

    def replay(self, sha: str) -> Verdict:
        """Replay at a commit and return the verdict. Raises: SpanreplayError if there is none."""
        with self._scratch() as folder:
            return self._replay_in(folder, sha)

    def _replay_in(self, folder: Path, sha: str) -> Verdict:
        tree = folder / "tree"
        self.repository.lay_out(sha, tree)
        here = tree / self._here.relative_to(self.repository.root)
        if not here.is_dir():
            raise ConfigError(f"the folder {here.relative_to(tree)} is not there")
        paths = [moved for path in self._paths if (moved := self._move(path, tree))]
        before = os.environ.get("PYTHONPATH", "")
        argv = tuple(self._move(word, tree) or word for word in self._agent.argv)
        agent = Agent(argv, self._agent.python, self._agent.python_flags)
        return self._run(agent, folder, here, {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, [before])])})

    def replay_here(self) -> Verdict:
        """Replay with the working tree as it is."""
        with self._scratch() as folder:
            return self._run(self._agent, folder, None, {})

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A folder for one replay, deleted after it: only one copy of a large repository exists at a time."""
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def _run(self, agent: Agent, folder: Path, cwd: Path | None, settings: dict[str, str]) -> Verdict:
        told = {
            "SPANREPLAY_REPLAY_TIMEOUT": str(self._timeout_s),
            "SPANREPLAY_DIR": str(folder / "data"),  # keeps these replays out of the user's list of runs
            "OTEL_EXPORTER_OTLP_ENDPOINT": "",
            **settings,
        }
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 -- a device
            quiet = nowhere.fileno()
            verdict, status = run_agent(agent, self._found, keep_key(told), folder, stdout=quiet, stderr=quiet, cwd=cwd)
        return settle(verdict, status, self.recording.completeness())

    def _move(self, path: str, tree: Path) -> str:
        """The same file or folder in a commit's tree; '' if it is not in the repository or not in that tree."""
        try:
            inner = Path(path).resolve().relative_to(self.repository.root) if Path(path).is_absolute() else None
        except (ValueError, OSError):
            return ""
        return str(tree / inner) if inner is not None and (tree / inner).exists() else ""


def describe_shortly(verdict: Verdict) -> str:
    """A verdict in a few words."""
    return " ".join(suite.describe({**verdict, "run_id": ""}).split())


def _list_paths(agent: Agent) -> list[str]:
    """The module search path of the agent's Python; includes packages that are installed in place (editable)."""
    if not agent.python:
        return []
    ask = "import sys; print('\\n'.join(sys.path))"
    try:
        done = subprocess.run(
            [agent.python, "-c", ask], capture_output=True, text=True, timeout=_PATHS_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if line]
