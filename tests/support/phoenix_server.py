"""A real Phoenix in its own process, without network access; takes about 25 s to start."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from support.ports import free_port

START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 20.0
HARDENING = {
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    "PHOENIX_AGENTS_DISABLE_BASH": "true",
    "PHOENIX_AGENTS_DISABLE_WEB_ACCESS": "true",
    "PHOENIX_ENABLE_MCP_SERVER": "false",
    "PHOENIX_ALLOWED_SANDBOX_PROVIDERS": "NONE",
    "PHOENIX_ALLOWED_PROVIDERS": "NONE",
    "PHOENIX_OAUTH2_DYNAMIC_CLIENT_REGISTRATION": "disabled",
    "PHOENIX_LOG_MIGRATIONS": "false",
}


@dataclass
class PhoenixServer:
    """A running Phoenix; `log` is its output."""

    url: str
    log: Path
    _process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Terminate it, and kill it if it doesn't exit."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_phoenix(directory: Path, **environment: str) -> PhoenixServer:
    """Start Phoenix on free ports with its data in a directory, and wait until it answers."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log = directory / "phoenix.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "phoenix.server.main", "serve"],
            env={
                **os.environ,
                **HARDENING,
                "PHOENIX_HOST": "127.0.0.1",
                "PHOENIX_PORT": str(port),
                "PHOENIX_GRPC_PORT": str(free_port()),
                "PHOENIX_WORKING_DIR": str(directory),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
    server = PhoenixServer(f"http://127.0.0.1:{port}", log, process)
    try:
        _wait_until_healthy(port, process)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    pause = threading.Event()
    while time.monotonic() < deadline:
        assert process.poll() is None, f"Phoenix ended with {process.returncode} while starting"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pause.wait(0.2)
        finally:
            connection.close()
    raise AssertionError(f"Phoenix did not answer within {START_TIMEOUT_S:g} s")
