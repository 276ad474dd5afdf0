"""Run `spanreplay up` for the demo: collector, store, replay service and Phoenix, in the demo's own folder."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spanreplay_service.demo.stage import Service

READY_TIMEOUT_S: Final = 120.0


class Backend:
    """A running `spanreplay up` on free ports; once it is ready, `environ` points agents and commands to it."""

    def __init__(self, directory: Path, environ: Mapping[str, str], *, has_phoenix: bool) -> None:
        data_dir = directory / "server"
        argv = ["spanreplay", "up", "--data-dir", str(data_dir)]
        for option in ("--http-port", "--grpc-port", "--port", "--phoenix-port"):
            argv += [option, "0"]
        if not has_phoenix or importlib.util.find_spec("phoenix") is None:
            argv.append("--no-phoenix")
        self.command = argv
        self.service = Service("spanreplay up", argv, cwd=directory, environ=environ, log=directory / "up.log")
        self._status_file = data_dir / "up.json"
        self._status: dict[str, Any] = {}

    def wait_ready(self) -> None:
        """Return once it has written its addresses to the status file. Raises: DemoFailed with its log."""
        self.service.wait_until(self._status_file.exists, timeout_s=READY_TIMEOUT_S)
        self._status = json.loads(self._status_file.read_text(encoding="utf-8"))

    @property
    def environ(self) -> dict[str, str]:
        """Variables for the agent (destination of its spans) and for our commands (source of the recordings)."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": str(self._status["otlp_endpoint"]),
            "SPANREPLAY_ENDPOINT": str(self._status["endpoint"]),
        }

    @property
    def phoenix_url(self) -> str:
        """Phoenix's URL, or ""."""
        return str(self._status.get("phoenix_url") or "")
