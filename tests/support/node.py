"""Node.js, opentelemetry-js and rotel for the tests of other languages; tools/node.sh installs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from support.agents import AGENTS, ROOT
from support.ports import free_port, wait_for_port

TIMEOUT_S: Final = 180
SCRIPTS: Final = AGENTS / "node"
_VENV: Final = ROOT / ".venvs" / "node"
MODULES: Final = _VENV / "node_modules"


def require() -> None:
    """Skip the test where tools/node.sh could not install Node.js and rotel, except in CI."""
    if not (_VENV / ".stamp").is_file():
        message = "there is no Node.js with opentelemetry-js, or no rotel: tools/node.sh installs them"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def run_node(
    script: str, *args: str, cwd: Path, environ: Mapping[str, str] | None = None, is_checked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a script of tests/agents/node to its end; fail if it failed, unless the caller checks that."""
    require()
    # Node warns that it removes TypeScript's types
    base = {"PATH": os.defpath, "HOME": str(cwd), "NODE_PATH": str(MODULES), "NODE_NO_WARNINGS": "1"}
    done = subprocess.run(
        [str(_VENV / "bin" / "node"), str(SCRIPTS / script), *args],
        cwd=cwd,
        env={**base, **(environ or {})},
        text=True,
        encoding="utf-8",
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert not is_checked or done.returncode == 0, done.stderr
    return done


@contextmanager
def run_rotel(folder: Path, endpoint: str, protocol: str) -> Iterator[tuple[str, str]]:
    """Run rotel in front of a collector; yield its endpoints for OTLP over HTTP and over gRPC.

    It is asked to stop at the end, and has then passed on what it received.
    """
    require()
    (program,) = _VENV.glob("lib/python*/site-packages/rotel/rotel-agent")
    http, grpc = (f"127.0.0.1:{free_port()}" for _ in range(2))
    command = [str(program), "start", "--otlp-http-endpoint", http, "--otlp-grpc-endpoint", grpc]
    command += ["--otlp-exporter-endpoint", endpoint, "--otlp-exporter-protocol", protocol]
    command += ["--otlp-grpc-max-recv-msg-size-mib", "64", "--pid-file", str(folder / "rotel.pid")]
    with (folder / "rotel.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env={"HOME": str(folder)}, stdout=log, stderr=log)
        try:
            for address in (http, grpc):
                wait_for_port(int(address.rpartition(":")[2]))
            assert process.poll() is None, (folder / "rotel.log").read_text()
            yield f"http://{http}", f"http://{grpc}"
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0, (folder / "rotel.log").read_text()
        finally:
            process.kill()
            process.wait(TIMEOUT_S)
