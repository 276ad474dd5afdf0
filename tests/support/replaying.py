"""Record and replay agents as a user does: as `opentelemetry-instrument` starts them, then `spanreplay replay`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spanreplay.model.call import Recording
from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.spool import SpoolCatalog
from support.agents import instrument, without_instrumentors

TIMEOUT_S: Final = 600
LONG_S: Final = 3600
"""Timeout for long replays, such as a suite of a thousand units."""
BIN: Final = Path(sys.executable).parent
PATIENT: Final = {
    "GUNICORN_CMD_ARGS": f"--timeout {TIMEOUT_S}",
    "UVICORN_TIMEOUT_WORKER_HEALTHCHECK": str(TIMEOUT_S),
}
"""Keeps servers from killing a worker that loads slowly on a busy machine or that a test has stopped."""


CONTAINER: Final = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--ipc", "--uts")
"""A program that starts another one in namespaces of its own, as in a container, without a network."""


@dataclass(frozen=True)
class Replayed:
    """A finished replay: the agent's output, the exit status and the verdict."""

    stdout: str
    stderr: str
    status: int
    verdict: dict[str, Any]

    def causes(self) -> list[tuple[str, str]]:
        """Return (kind, boundary) of every divergence that isn't downstream of another."""
        return [(d["kind"], d["boundary"]) for d in self.verdict["divergences"] if not d["downstream"]]


def assert_same(replayed: Replayed, stdout: str) -> None:
    """The replay printed the same bytes and says so."""
    assert (replayed.status, replayed.verdict.get("verdict")) == (0, "identical"), replayed.stderr
    assert replayed.stdout == stdout, replayed.stderr


class Workplace:
    """A directory in which an agent is recorded and replayed, without other instrumentors unless `environ` says so."""

    def __init__(self, path: Path, environ: Mapping[str, str] | None = None, python: Path | None = None) -> None:
        self.path = path
        self.python = python or Path(sys.executable)
        self.environ = {
            "PATH": f"{self.python.parent}{os.pathsep}{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            **PATIENT,
            **without_instrumentors(),
            **(environ or {}),
        }
        self.within: Sequence[str] = ()
        """A program and its arguments through which `spanreplay` is started, e.g. a container."""

    def write(self, name: str, source: str) -> Path:
        """Write the test's own agent."""
        file = self.path / name
        file.write_text(source, encoding="utf-8")
        return file

    def spawn(self, command: Sequence[str], **environ: str) -> subprocess.Popen[str]:
        """Start a recorded agent and return at once."""
        words, variables = instrument(command, {**self.environ, **environ}, self.path, self.python)
        return subprocess.Popen(
            words,
            cwd=self.path,
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `spanreplay` with these arguments to its end."""
        return subprocess.run(
            [*self.within, str(BIN / "spanreplay"), *arguments],
            cwd=self.path,
            env={**self.environ, **environ},
            text=True,
            capture_output=True,
            timeout=LONG_S,
            check=False,
        )

    def record(
        self, script: str | Path, *args: str, status: int = 0, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Record an unmodified agent; its exit status must match."""
        process = self.spawn([str(self.python), str(script), *args], **environ)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == status, stderr
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def run_plain(self, script: str | Path, **environ: str) -> str:
        """Run an agent without recording it, in the same directory; return its output."""
        words, variables = [str(self.python), str(script)], {**self.environ, **environ}
        done = subprocess.run(words, cwd=self.path, env=variables, text=True, capture_output=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def recordings(self) -> list[Recording]:
        """Return every recorded run here, oldest first, without replays."""
        catalog = SpoolCatalog(self.path / ".spanreplay")
        try:
            found = catalog.search(RunQuery(limit=1000))
            return [catalog.load(s.root.run_id) for s in reversed(found)]
        finally:
            catalog.close()

    def recording(self) -> Recording:
        """Return the only recorded run."""
        found = self.recordings()
        assert len(found) == 1, [r.run_id for r in found]
        return found[0]

    def replay(
        self, script: str | Path, *args: str, source: str = "", options: Sequence[str] = (), **environ: str
    ) -> Replayed:
        """Run `spanreplay replay` on the newest run or on `source`."""
        report = self.path / "verdict.json"
        report.unlink(missing_ok=True)
        run_id = source or self.recordings()[-1].run_id
        words = ("replay", run_id, "--json", str(report), *options, "--", str(self.python), str(script), *args)
        done = self.run(*words, **environ)
        verdict = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        return Replayed(done.stdout, done.stderr, done.returncode, verdict)
