"""`spanreplay up` for the demo: collector, store, replay service and Phoenix, in the demo's own folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanreplay import config
from spanreplay_service.demo.stage import Service, accepts_connections

READY_TIMEOUT_S: Final = 90.0


@dataclass(frozen=True)
class Backend:
    """A running `spanreplay up`; `environ` makes agents and commands use it."""

    service: Service
    ports: tuple[int, ...]
    phoenix_port: int
    environ: Mapping[str, str]

    def wait_ready(self) -> None:
        """Return when every port answers. Raises: DemoFailed with the log."""
        wanted = [*self.ports, self.phoenix_port] if self.phoenix_port else list(self.ports)
        self.service.wait_until(lambda: all(map(accepts_connections, wanted)), timeout_s=READY_TIMEOUT_S)

    def describe(self) -> str:
        """One line for the narration."""
        otlp = self.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
        phoenix = f", Phoenix at http://127.0.0.1:{self.phoenix_port}" if self.phoenix_port else ""
        return f"collector at {otlp}, replay service at {self.environ['SPANREPLAY_ENDPOINT']}{phoenix}"


def start_backend(directory: Path, environ: Mapping[str, str], *, has_phoenix: bool) -> Backend:
    """Start `spanreplay up`; call `wait_ready` before using it."""
    with_phoenix = has_phoenix and importlib.util.find_spec("phoenix") is not None
    argv = ["spanreplay", "up"]
    if not with_phoenix:
        argv.append("--no-phoenix")
    service = Service("spanreplay up", argv, cwd=directory, environ=environ, log=directory / "up.log")
    return Backend(
        service=service,
        ports=(config.OTLP_HTTP_PORT, config.SERVICE_PORT),
        phoenix_port=config.PHOENIX_PORT if with_phoenix else 0,
        environ={
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{config.OTLP_HTTP_PORT}",
            "SPANREPLAY_ENDPOINT": f"127.0.0.1:{config.SERVICE_PORT}",
        },
    )
