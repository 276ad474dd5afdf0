"""`spanreplay up` as a real process on free ports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 120.0
START_PHOENIX_S = 300.0
STOP_S = 60.0


@dataclass
class UpServer:
    """A running `spanreplay up`; `stop` it, or use it as a context manager."""

    process: subprocess.Popen[bytes]
    status: dict[str, Any]
    data_dir: Path
    log_path: Path

    @property
    def endpoint(self) -> str:
        """The replay service, host:port; SPANREPLAY_ENDPOINT."""
        return str(self.status["endpoint"])

    @property
    def otlp_endpoint(self) -> str:
        """The collector over HTTP; OTEL_EXPORTER_OTLP_ENDPOINT."""
        return str(self.status["otlp_endpoint"])

    @property
    def phoenix_url(self) -> str:
        """Phoenix's pages; empty without Phoenix."""
        return str(self.status["phoenix_url"])

    @property
    def log(self) -> str:
        """Its standard error output."""
        return self.log_path.read_text(encoding="utf-8")

    def export(self, payload: bytes, *, token: str = "") -> None:
        """Send a serialised ExportTraceServiceRequest and wait for its acknowledgement."""
        headers = {"content-type": "application/x-protobuf"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        request = urllib.request.Request(f"{self.otlp_endpoint}/v1/traces", payload, headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.status == 200

    def stop(self) -> int:
        """Ask it to stop, wait, and return its exit status; idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """Kill it immediately, as the kernel does when out of memory."""
        self.process.kill()
        self._wait()

    def _wait(self) -> int:
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()
        return status

    def __enter__(self) -> UpServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def command(data_dir: Path, arguments: Sequence[str] = (), *, phoenix: bool = False) -> list[str]:
    """Return the command line with free ports; later arguments override earlier ones."""
    return [
        *(sys.executable, "-c", "from spanreplay.cli import main; main()"),
        *("up", "--data-dir", str(data_dir), "--json"),
        *("--http-port", "0", "--grpc-port", "0", "--port", "0", "--phoenix-port", "0"),
        *(() if phoenix else ("--no-phoenix",)),
        *arguments,
    ]


def start_up(
    directory: Path,
    *,
    phoenix: bool = False,
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> UpServer:
    """Start `spanreplay up` with its data in `directory`/server and wait until it reports that it is ready.

    If started again in the same directory, it continues with the same data.
    """
    data_dir = directory / "server"
    log_path = directory / "up.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command(data_dir, arguments, phoenix=phoenix),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **(environ or {})},
        )
    # Reading a pipe has no timeout: the timer kills the process, which closes the pipe.
    timer = threading.Timer(START_PHOENIX_S if phoenix else START_S, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        timer.cancel()
        timer.join()
    if not line:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.stdout.close()
        raise AssertionError(
            f"`spanreplay up` ended with {process.returncode} before it was ready:\n"
            + log_path.read_text(encoding="utf-8")
        )
    return UpServer(process, json.loads(line), data_dir, log_path)
