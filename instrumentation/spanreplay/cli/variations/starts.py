"""Starts that replays of an agent share: each replay is a fork, before anything of the agent is loaded."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from spanreplay.activate.prepared import READY
from spanreplay.cli.agent.child import hashing_as
from spanreplay.cli.agent.launch import Agent

__all__ = ["Starts"]

_NAME: Final = "SPANREPLAY_REPLAY_FORKS"
_READY_S: Final = 60.0
_END_S: Final = 5.0
_READ_BYTES: Final = 4096


class _Start:
    """One process that is ready to replay; used by one replay at a time."""

    def __init__(self, agent: Agent, environ: Mapping[str, str], secret: bytes, folder: Path) -> None:
        """Start it. Raises: OSError."""
        self._socket, theirs = socket.socketpair()
        self._received = b""
        self._environ = dict(environ)
        with (
            theirs,
            hashing_as(secret, agent.argv, environ) as (words, source),
            (folder / "prepared").open("wb") as unused,
        ):
            self._process = subprocess.Popen(
                words,
                env={**environ, _NAME: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=unused,
                stderr=unused,
                pass_fds=(*source, theirs.fileno()),
            )

    def is_ready(self) -> bool:
        """Wait until it is; False if the command is not a Python with spanreplay."""
        with suppress(OSError, EOFError):
            return self._read(time.monotonic() + _READY_S) == READY.decode().strip()
        return False

    def replay(self, environ: Mapping[str, str], files: Mapping[str, str], timeout_s: float) -> int:
        """Replay in a fork; return its exit status. Raises: TimeoutExpired; OSError, EOFError if this start is gone."""
        changed: dict[str, str | None] = dict.fromkeys(self._environ.keys() - environ.keys())
        changed.update(environ.items() - self._environ.items())
        self._socket.settimeout(None)
        self._socket.sendall(json.dumps({"environ": changed, **files}).encode() + b"\n")
        process = int(self._read(time.monotonic() + _READY_S))
        try:
            return int(self._read(time.monotonic() + timeout_s))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._read(time.monotonic() + _END_S)
            raise subprocess.TimeoutExpired(str(process), timeout_s) from None

    def _read(self, until: float) -> str:
        while b"\n" not in self._received:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            part = self._socket.recv(_READ_BYTES)
            if not part:
                raise EOFError
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """End it; it does so when it finds its socket closed."""
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Starts:
    """As many starts of an agent as replays run at the same time. Thread-safe."""

    def __init__(self) -> None:
        self._idle: dict[object, list[_Start]] = {}
        self._lock = threading.Lock()
        self._is_possible = True

    def __enter__(self) -> Starts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for start in [each for idle in self._idle.values() for each in idle]:
            start.close()
        self._idle.clear()

    def replay(
        self,
        agent: Agent,
        environ: Mapping[str, str],
        secret: bytes,
        *,
        stdout: Path,
        stderr: Path,
        timeout_s: float,
    ) -> int | None:
        """Replay in a fork of a start; return its exit status, None if this agent needs a start of its own.

        Raises: TimeoutExpired, after the replay was killed.
        """
        # Python itself reads these, when it starts
        key = (agent.argv, secret, tuple(sorted(each for each in environ.items() if each[0].startswith("PYTHON"))))
        start = self._take(key, agent, environ, secret, stdout.parent)
        if start is None:
            return None
        try:
            status = start.replay(environ, {"stdout": str(stdout), "stderr": str(stderr)}, timeout_s)
        except (OSError, EOFError, ValueError):
            start.close()
            return None
        except subprocess.TimeoutExpired:
            self._give_back(key, start)
            raise
        self._give_back(key, start)
        return status

    def _take(
        self, key: object, agent: Agent, environ: Mapping[str, str], secret: bytes, folder: Path
    ) -> _Start | None:
        with self._lock:
            if not self._is_possible or not agent.python:
                return None
            idle = self._idle.get(key)
            if idle:
                return idle.pop()
        try:
            start = _Start(agent, environ, secret, folder)
        except OSError:
            return None
        if start.is_ready():
            return start
        start.close()
        with self._lock:
            self._is_possible = False
        return None

    def _give_back(self, key: object, start: _Start) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(start)
