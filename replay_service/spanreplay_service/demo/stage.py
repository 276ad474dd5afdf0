"""Helpers of the demo for running commands: an environment, background services, errors with explanations."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

POLL_S: Final = 0.05
STOP_TIMEOUT_S: Final = 15.0
COMMAND_TIMEOUT_S: Final = 60.0
LOG_TAIL_LINES: Final = 15
_FOREIGN_PREFIXES: Final = (
    "OTEL_",
    "SPANREPLAY_",
    "OPENAI_",
    "PHOENIX_",
    "LANGCHAIN_",
    "LANGSMITH_",
    "LEDGER",
)
_FOREIGN: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "USER_ID", "REQUEST", "PYTHONPATH"})


class DemoFailed(Exception):
    """A step of the demo failed; the text says what happened and what to try."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    command: str
    status: int
    stdout: str
    stderr: str
    duration_s: float

    def describe(self) -> str:
        """The command, its exit status and the end of its output."""
        said = (self.stderr.strip() or self.stdout.strip()).splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"$ {self.command}", f"exit status {self.status}", *said])


def clean_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without variables that would change the story, with this Python's commands first in PATH."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.upper().startswith(_FOREIGN_PREFIXES) and name.upper() not in _FOREIGN
    }
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    return kept


def run_command(argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str]) -> Done:
    """Run one command to completion. Raises: DemoFailed if it cannot start or takes more than a minute."""
    command = " ".join(argv)
    started = time.monotonic()
    try:
        ended = subprocess.run(
            list(argv),
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as exc:
        raise DemoFailed(f"{argv[0]!r} is not installed beside {sys.executable}; run make setup") from exc
    except subprocess.TimeoutExpired as exc:
        raise DemoFailed(f"this took more than {COMMAND_TIMEOUT_S:.0f} s and was stopped:\n$ {command}") from exc
    return Done(command, ended.returncode, ended.stdout, ended.stderr, time.monotonic() - started)


def pick_ports(count: int) -> list[int]:
    """Find distinct free TCP ports of 127.0.0.1; another process may still take them first."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def accepts_connections(port: int) -> bool:
    """Whether a server listens on a port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False


class Service:
    """A background process whose output goes to a log file."""

    def __init__(self, name: str, argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._out: IO[bytes] = log.open("wb")
        try:
            self._process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its services in order
            )
        except FileNotFoundError as exc:
            self._out.close()
            raise DemoFailed(f"{argv[0]!r} is not installed beside {sys.executable}; run make setup") from exc

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Return once the service is ready. Raises: DemoFailed with its log if it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if self._process.poll() is not None:
                raise DemoFailed(f"{self.name} ended with status {self._process.returncode}:\n{self.read_tail()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"{self.name} was not ready after {timeout_s:.0f} s:\n{self.read_tail()}")
            time.sleep(POLL_S)

    def read_tail(self) -> str:
        """Read the end of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"(the end of {self.log})", *lines[-LOG_TAIL_LINES:]])

    def stop(self) -> None:
        """Terminate the process, kill it after a timeout; idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._out.close()

    def let_go(self) -> None:
        """Leave the process running after the demo."""
        self._out.close()
