"""Run Phoenix as a child process (start, supervise, stop) and send it verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.metadata
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from spanreplay.model.call import RootRecord
from spanreplay.model.config import PHOENIX_GRPC_PORT
from spanreplay.model.errors import PortTaken
from spanreplay.model.private import make_private
from spanreplay_collector.phoenix.fanout import PhoenixAnnotator, deep_link
from spanreplay_service.limits import (
    PHOENIX_BACKOFF_S,
    PHOENIX_FORGET_S,
    PHOENIX_LOG_BYTES_MAX,
    PHOENIX_POLL_S,
    PHOENIX_RESTARTS_MAX,
    PHOENIX_STOP_S,
)
from spanreplay_service.listen import can_listen, find_free_port
from spanreplay_service.phoenix_access import PhoenixAccess, load_or_create_access

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S: Final = 5.0
_FOREIGN_PREFIXES: Final = ("PHOENIX_", "OTEL_", "SPANREPLAY_", "OPENINFERENCE_")
_KEPT: Final = frozenset(
    {"PHOENIX_SQL_DATABASE_URL", "PHOENIX_SQL_DATABASE_SCHEMA", "PHOENIX_DEFAULT_RETENTION_POLICY_DAYS"}
)
_HARDENING: Final = {
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


def is_installed() -> bool:
    """Whether arize-phoenix is installed; other packages could also be called `phoenix`."""
    try:
        importlib.metadata.version("arize-phoenix")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@dataclass(frozen=True)
class PhoenixSettings:
    """Phoenix's data directory and its address on localhost; `is_closed` means that it requires a login."""

    directory: Path
    port: int
    grpc_port: int
    host: str = "127.0.0.1"
    access: PhoenixAccess | None = None
    is_closed: bool = False

    @property
    def url(self) -> str:
        """The URL of its web interface."""
        return f"http://{self.host}:{self.port}"


def choose_settings(directory: Path, port: int, *, is_closed: bool = False) -> PhoenixSettings:
    """Choose free ports and load the login; port 0 takes any free port. Raises: PortTaken, ConfigError."""
    host = PhoenixSettings.host
    if port and not can_listen(host, port):
        raise PortTaken(
            f"port {port} on {host} is in use, Phoenix cannot listen there",
            hint="use what runs there with --phoenix-url, choose another with --phoenix-port, or --no-phoenix",
        )
    grpc_port = PHOENIX_GRPC_PORT if can_listen(host, PHOENIX_GRPC_PORT) else find_free_port(host)
    access = load_or_create_access(directory)
    return PhoenixSettings(directory, port or find_free_port(host), grpc_port, access=access, is_closed=is_closed)


def build_environment(settings: PhoenixSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of the Phoenix process: hardened, offline, without our settings and tokens; pure."""
    inherited = {k: v for k, v in environ.items() if k in _KEPT or not k.startswith(_FOREIGN_PREFIXES)}
    return {
        **inherited,
        **_HARDENING,
        **(settings.access.environment(is_required=settings.is_closed) if settings.access else {}),
        "PHOENIX_HOST": settings.host,
        "PHOENIX_PORT": str(settings.port),
        "PHOENIX_GRPC_PORT": str(settings.grpc_port),
        "PHOENIX_WORKING_DIR": str(settings.directory),
        "PYTHONUNBUFFERED": "1",
    }


class PhoenixProcess:
    """One Phoenix process, restarted when it crashes; its failures never affect the other parts."""

    def __init__(
        self,
        settings: PhoenixSettings,
        say: Callable[[str], None],
        *,
        command: Sequence[str] = (sys.executable, "-m", "spanreplay_service.phoenix_child"),
        backoff_s: tuple[float, float] = PHOENIX_BACKOFF_S,
    ) -> None:
        self.settings = settings
        self.log_path = settings.directory / "phoenix.log"
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._gave_up = asyncio.Event()
        self._command = command
        self._backoff_s = backoff_s

    @property
    def pid(self) -> int:
        """The process id, 0 while no process is running."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    async def start(self) -> None:
        """Start Phoenix and the task that supervises it."""
        make_private(self.settings.directory)
        await self._spawn()
        self._watcher = asyncio.create_task(self._watch(), name="phoenix-watcher")

    async def wait_ready(self, timeout_s: float) -> bool:
        """Whether Phoenix answers within `timeout_s`; False at once when it is no longer restarted."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and not self._gave_up.is_set():
            if await asyncio.to_thread(self._probe):
                return True
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gave_up.wait(), PHOENIX_POLL_S)
        return False

    async def stop(self) -> None:
        """Terminate Phoenix, kill its process group after PHOENIX_STOP_S; idempotent."""
        self._stopping.set()
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), PHOENIX_STOP_S)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if self._watcher is not None:
            await self._watcher
            self._watcher = None

    def _probe(self) -> bool:
        connection = http.client.HTTPConnection(self.settings.host, self.settings.port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    async def _spawn(self) -> None:
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                # Held open for our lifetime; the child ends when it closes.
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=build_environment(self.settings, os.environ),
                cwd=self.settings.directory,
                # Ctrl-C in the terminal must reach only us; we then stop Phoenix in order.
                start_new_session=True,
            )

    def _open_log(self) -> IO[bytes]:
        with contextlib.suppress(FileNotFoundError):
            if self.log_path.stat().st_size > PHOENIX_LOG_BYTES_MAX:
                self.log_path.replace(self.log_path.with_suffix(".log.1"))
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "wb")

    async def _watch(self) -> None:
        restarts = 0
        while self._process is not None:
            started_s = time.monotonic()
            status = await self._process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - started_s > PHOENIX_FORGET_S:
                restarts = 0
            if restarts == PHOENIX_RESTARTS_MAX:
                self._say(f"Phoenix ended again (status {status}); going on without it, see {self.log_path}")
                self._gave_up.set()
                return
            delay_s = min(self._backoff_s[0] * 2**restarts, self._backoff_s[1])
            restarts += 1
            self._say(f"Phoenix ended (status {status}); starting it again in {delay_s:g} s, see {self.log_path}")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
                return
            await self._spawn()


class PhoenixSink:
    """Shows verdicts as annotations of the recorded spans."""

    def __init__(self, url: str, token: str = "", *, public_url: str = "") -> None:
        """`public_url` is where users open Phoenix, if it differs from `url`."""
        self._url = public_url or url
        self._annotator = PhoenixAnnotator(url, token)

    def report(self, *, root: RootRecord, replay_run_id: str, verdict: str, report: dict[str, Any]) -> str:
        """Annotate the recorded root span, and the span of the first divergence if there is one.

        Raises: ServiceError if Phoenix does not accept it.
        """
        first = find_first_divergence(report)
        self._annotator.annotate_verdict(
            root.span_id,
            _span_id(first.get("recorded_span_id")),
            verdict,
            str(first.get("message", "")),
            {"run_id": root.run_id, "replay_run_id": replay_run_id, "counts": report.get("counts", {})},
            divergence=str(first.get("kind", verdict)),
        )
        return deep_link(self._url, root.span_id)

    def forget(self, trace_ids: Sequence[str]) -> bool:
        """Remove these traces from Phoenix; return whether none is shown any more."""
        return self._annotator.delete_traces(trace_ids)


def find_first_divergence(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first divergence that is not downstream, else the first one; empty if the report has none; pure."""
    listed = report.get("divergences")
    found = [d for d in listed if isinstance(d, dict)] if isinstance(listed, list) else []
    return next((d for d in found if not d.get("downstream")), found[0] if found else {})


def _span_id(value: object) -> str | None:
    text = value.lower() if isinstance(value, str) else ""
    return text if len(text) == 16 and all(c in "0123456789abcdef" for c in text) else None
