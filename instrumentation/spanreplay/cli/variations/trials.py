"""Replays of one run with other answers: quiet, offline, each in a folder of its own, which is deleted at its end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.agent.child import describe_end, hashing_as
from spanreplay.cli.agent.launch import Agent, build_environ, keep_key, recorded_hash_secret, recorded_hash_seed
from spanreplay.cli.agent.settle import settle
from spanreplay.cli.replay import Source
from spanreplay.cli.variations.starts import Starts
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError, SpanreplayError
from spanreplay.model.json_text import load_or_text
from spanreplay.recording.spool import SpoolCatalog
from spanreplay.report.json import parse
from spanreplay.report.shape import Verdict

__all__ = ["SERVE", "Trial", "Trials", "jobs_option", "only_option", "timeout_option"]

SERVE: Final = "serve"
OUTPUT_BYTES_MAX: Final = 1_000_000
"""Bytes of an agent's output that are read; the rest is left out."""
_VARYING: Final = ("replay_run_id", "replay_span_id", "duration_ms", "free")
"""Members of a verdict that differ between two equal replays: ids, times, the folders of this replay."""

jobs_option: Final = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    default=min(16, os.cpu_count() or 1),
    help="Replays that run in parallel; default: the number of cores.",
)
only_option: Final = click.option(
    "--only", default="*", metavar="CALLS", help="Change only these calls, e.g. 'llm:*' or 'tool:get_price[2]'."
)
timeout_option: Final = click.option(
    "--timeout", type=click.IntRange(1), default=300, show_default=True, help="Time limit of one replay, in seconds."
)


@dataclass(frozen=True)
class Trial:
    """One replay that has ended: its verdict, or `why` there is none; its output up to OUTPUT_BYTES_MAX."""

    verdict: Verdict | None
    why: str = ""
    status: int = 0
    stdout: str = ""
    stderr: str = ""
    made: Recording | None = None
    """What the replay itself recorded, if asked for: the calls with their requests and answers as they are now."""
    is_endless: bool = False
    """Whether it was ended by the time limit."""

    def outcome(self) -> Any:
        """What two equal replays have in common: the verdict without ids and times, status and standard output."""
        return [_without_varying(self.verdict), self.why, self.status, self.stdout]


def _without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_varying(inner) for name, inner in value.items() if name not in _VARYING}
    return [_without_varying(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Trials:
    """Replays an agent against one recording; can be used from several threads."""

    agent: Agent
    found: Source
    folder: Path
    timeout_s: int
    is_kept: bool = False
    """Whether what a replay recorded is read: `Trial.made`."""
    starts: Starts | None = None
    """The starts that replays share; None: each replay starts its own Python."""

    def replay(self, patches: tuple[str, ...], on_change: str = "stop") -> Trial:
        """Replay with these patches. Raises: ConfigError if the agent can't be started, or a patch does not fit."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            return self._replay(folder, patches, on_change)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _replay(self, folder: Path, patches: tuple[str, ...], on_change: str) -> Trial:
        environ = self._build_environ(folder, patches, on_change)
        stdout, stderr = folder / "stdout", folder / "stderr"
        try:
            status = self._run(environ, stdout, stderr)
        except subprocess.TimeoutExpired:
            return Trial(None, f"it did not end within {self.timeout_s} s", is_endless=True)
        except OSError as exc:
            raise ConfigError(f"cannot run {self.agent.argv[0]!r}: {exc.strerror or exc}") from exc
        verdict, why = self._read_verdict(folder / "verdict.json", status)
        made = self._read_made(folder / "data", verdict) if self.is_kept else None
        return Trial(verdict, why, status, _read(stdout), _read(stderr), made)

    def _run(self, environ: dict[str, str], stdout: Path, stderr: Path) -> int:
        """Run the agent to its end; return its exit status. Raises: OSError, TimeoutExpired."""
        secret = recorded_hash_secret(self.found.recording)
        with stdout.open("wb") as out, stderr.open("wb") as err:
            if self.starts is not None:
                files = {"stdout": stdout, "stderr": stderr}
                status = self.starts.replay(self.agent, environ, secret, **files, timeout_s=self.timeout_s)
                if status is not None:
                    return status
            with hashing_as(secret, self.agent.argv, environ) as (words, source):
                return subprocess.run(
                    words,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    timeout=self.timeout_s,
                    check=False,
                    pass_fds=source,
                ).returncode

    def _build_environ(self, folder: Path, patches: tuple[str, ...], on_change: str) -> dict[str, str]:
        from spanreplay.replayer.resolve.plan import build_plan

        told = {
            "SPANREPLAY_MODE": "replay",
            "SPANREPLAY_REPLAY_SOURCE": self.found.name,
            "SPANREPLAY_REPLAY_REPORT": str(folder / "verdict.json"),
            "SPANREPLAY_REPLAY_PID": "",
            "SPANREPLAY_REPLAY_PLAN": build_plan(patches=patches, on_change=on_change).to_json(),
            "SPANREPLAY_DIR": str(folder / "data"),  # keeps hundreds of replays out of the user's list of runs
            "OTEL_EXPORTER_OTLP_ENDPOINT": "",
        }
        seed = recorded_hash_seed(self.found.recording)
        return build_environ(os.environ, keep_key(told), is_replay=True, hash_seed=seed)

    def _read_verdict(self, report: Path, status: int) -> tuple[Verdict | None, str]:
        try:
            verdict = parse(report.read_text(encoding="utf-8"))
        except (OSError, SpanreplayError):
            return None, f"the agent {describe_end(status)} without a verdict"
        return settle(verdict, status, self.found.recording.completeness()), ""

    def _read_made(self, data: Path, verdict: Verdict | None) -> Recording | None:
        if verdict is None or not verdict.get("replay_run_id"):
            return None
        with suppress(SpanreplayError):
            catalog = SpoolCatalog(data)
            try:
                return catalog.load(verdict["replay_run_id"])
            finally:
                catalog.close()
        return None


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(OUTPUT_BYTES_MAX).decode("utf-8", "replace")


def as_json(trial: Trial) -> str:
    """A trial as a check gets it on its standard input."""
    from spanreplay.cli.agent.child import as_shell_status

    calls = [] if trial.made is None else trial.made.calls
    return json.dumps(
        {
            "exit": as_shell_status(trial.status),
            "stdout": trial.stdout,
            "stderr": trial.stderr,
            "calls": [
                {
                    "boundary": call.boundary,
                    "request": load_or_text(call.request),
                    "response": load_or_text(call.response),
                    "outcome": call.outcome,
                }
                for call in calls
            ],
            "verdict": trial.verdict,
        }
    )
