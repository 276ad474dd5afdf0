"""`spanreplay up`: store, collector and replay service in one process, Phoenix as its child; the composition root."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shlex
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from spanreplay.model.config import OTLP_GRPC_PORT, OTLP_HTTP_PORT, PHOENIX_PORT, SERVICE_PORT
from spanreplay.model.errors import ConfigError, StoreLocked
from spanreplay.model.how_to_install import install_command
from spanreplay.model.private import make_private
from spanreplay_collector.collector import Collector, CollectorSettings
from spanreplay_collector.receive.auth import TlsFiles, Token, check_exposure
from spanreplay_collector.store.retainer import Retainer, Retention
from spanreplay_collector.store.store import Store
from spanreplay_service.limits import PHOENIX_READY_S_MAX
from spanreplay_service.listen import join_address
from spanreplay_service.phoenix import PhoenixProcess, PhoenixSink, choose_settings, is_installed
from spanreplay_service.phoenix_access import ACCESS_FILE, USER
from spanreplay_service.server import ReplayServer, ServerSettings

STATUS_FILE: Final = "up.json"
LOCK_FILE: Final = "up.lock"


@dataclass(frozen=True)
class UpSettings:
    """All settings of `spanreplay up`; port 0 takes a free port.

    An empty `clickhouse_url` means an embedded store below `data_dir`. If `phoenix_url` is set, that Phoenix is
    used; otherwise one is started unless `is_phoenix_wanted` is false.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    http_port: int = OTLP_HTTP_PORT
    grpc_port: int = OTLP_GRPC_PORT
    port: int = SERVICE_PORT
    phoenix_port: int = PHOENIX_PORT
    is_phoenix_wanted: bool = True
    phoenix_url: str = ""
    phoenix_token: str = ""
    clickhouse_url: str = ""
    tokens: tuple[Token, ...] = ()
    tls: TlsFiles | None = None
    is_plaintext_allowed: bool = False
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True)
class UpStatus:
    """Addresses of all parts; the content of `up.json` and of the output of `--json`."""

    pid: int
    host: str
    http_port: int
    grpc_port: int
    port: int
    phoenix_port: int
    endpoint: str
    otlp_endpoint: str
    phoenix_url: str
    data_dir: str

    def to_json(self) -> str:
        """Serialize to one line of JSON."""
        return json.dumps(asdict(self))


class Up:
    """All parts, started in order and stopped in reverse order."""

    def __init__(
        self,
        settings: UpSettings,
        *,
        say: Callable[[str], None],
        working: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._settings = settings
        self._say = say
        self._working = working
        self._parts = AsyncExitStack()
        self.phoenix: PhoenixProcess | None = None

    async def start(self) -> UpStatus:
        """Start everything and wait until it is healthy; on an error nothing is left running.

        Raises: ConfigError, PortTaken, StoreError, StoreLocked, ServiceUnavailable.
        """
        settings = self._settings
        check_exposure(
            settings.host,
            has_tokens=bool(settings.tokens),
            tls=settings.tls,
            is_plaintext_allowed=settings.is_plaintext_allowed,
        )
        async with AsyncExitStack() as parts:
            status = await self._start_parts(parts)
            self._parts = parts.pop_all()
        return status

    async def stop(self) -> None:
        """Stop everything: refuse new calls, load the acknowledged spans, close the store."""
        await self._parts.aclose()

    async def _start_parts(self, parts: AsyncExitStack) -> UpStatus:
        settings = self._settings
        data_dir = _make_data_dir(settings.data_dir)
        parts.callback(os.close, _lock(data_dir))
        with self._working("opening the store"):
            store = await asyncio.to_thread(_open_store, settings.clickhouse_url or f"chdb://{data_dir / 'chdb'}")
        parts.push_async_callback(asyncio.to_thread, store.close)
        phoenix_url = await self._start_phoenix(parts, data_dir)

        with self._working("starting collector and replay service"):
            collector = Collector(self._collector_settings(data_dir, phoenix_url), store)
            await collector.start()
            parts.push_async_callback(collector.stop)
            retainer = Retainer(store, collector.metrics, settings.retention)
            retainer.start()
            parts.push_async_callback(asyncio.to_thread, retainer.stop)
            sink = PhoenixSink(phoenix_url, self._phoenix_token) if phoenix_url else None
            server = ReplayServer(store, self._server_settings(phoenix_url), sink=sink, freshen=collector.flush)
            await server.start()
            parts.push_async_callback(server.stop)

        if self.phoenix is not None:
            await self._wait_for_phoenix(self.phoenix)
        status = self._build_status(data_dir, collector, server, phoenix_url)
        _write_status(data_dir / STATUS_FILE, status)
        parts.callback((data_dir / STATUS_FILE).unlink, missing_ok=True)
        return status

    async def _start_phoenix(self, parts: AsyncExitStack, data_dir: Path) -> str:
        settings = self._settings
        if settings.phoenix_url or not settings.is_phoenix_wanted:
            return settings.phoenix_url
        if not is_installed():
            self._say(f"arize-phoenix is not installed, going on without it ({install_command('phoenix')})")
            return ""
        chosen = choose_settings(data_dir / "phoenix", settings.phoenix_port, is_closed=bool(settings.tokens))
        self.phoenix = PhoenixProcess(chosen, self._say)
        parts.push_async_callback(self.phoenix.stop)
        await self.phoenix.start()
        if chosen.is_closed:
            self._say(f"Phoenix asks for a login: {USER}, password in {chosen.directory / ACCESS_FILE}")
        return chosen.url

    @property
    def _phoenix_token(self) -> str:
        """Our token for Phoenix: the configured one, or the token of the Phoenix started with a login."""
        started = self.phoenix.settings if self.phoenix else None
        if started is None or started.access is None or not started.is_closed:
            return self._settings.phoenix_token
        return started.access.token

    async def _wait_for_phoenix(self, phoenix: PhoenixProcess) -> None:
        self._say("waiting for Phoenix; its first start takes half a minute")
        with self._working("waiting for Phoenix"):
            is_ready = await phoenix.wait_ready(PHOENIX_READY_S_MAX)
        if not is_ready:
            self._say(f"Phoenix is not ready; everything else is, see {phoenix.log_path}")

    def _collector_settings(self, data_dir: Path, phoenix_url: str) -> CollectorSettings:
        settings = self._settings
        return CollectorSettings(
            data_dir=data_dir / "collector",
            host=settings.host,
            http_port=settings.http_port,
            grpc_port=settings.grpc_port,
            tokens=settings.tokens,
            tls=settings.tls,
            is_plaintext_allowed=settings.is_plaintext_allowed,
            phoenix_url=phoenix_url,
            phoenix_token=self._phoenix_token,
        )

    def _server_settings(self, phoenix_url: str) -> ServerSettings:
        settings = self._settings
        return ServerSettings(
            host=settings.host,
            port=settings.port,
            tokens=settings.tokens,
            tls=settings.tls,
            is_plaintext_allowed=settings.is_plaintext_allowed,
            phoenix_url=phoenix_url,
        )

    def _build_status(self, data_dir: Path, collector: Collector, server: ReplayServer, phoenix_url: str) -> UpStatus:
        host = _reachable(self._settings.host)
        is_tls = self._settings.tls is not None
        port = int(server.address.rpartition(":")[2])
        return UpStatus(
            pid=os.getpid(),
            host=self._settings.host,
            http_port=collector.http_port,
            grpc_port=collector.grpc_port,
            port=port,
            phoenix_port=self.phoenix.settings.port if self.phoenix else 0,
            endpoint=("https://" if is_tls else "") + join_address(host, port),
            otlp_endpoint=f"{'https' if is_tls else 'http'}://{join_address(host, collector.http_port)}",
            phoenix_url=phoenix_url,
            data_dir=str(data_dir),
        )


def _reachable(host: str) -> str:
    """The host that a program on this machine connects to in order to reach a listener."""
    bare = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bare, bare)  # noqa: S104 - compared, not bound


def _make_data_dir(path: Path) -> Path:
    try:
        if not path.exists():
            make_private(path)
        found = path.stat()
    except OSError as exc:
        raise ConfigError(f"the directory {str(path)!r} cannot be used: {exc.strerror}") from exc
    # A volume mounted for us may belong to another user; everything we create in it is private anyway.
    if found.st_uid == os.geteuid() and found.st_mode & stat.S_IRWXO:
        raise ConfigError(
            f"the data directory {str(path)!r} is open to other users (mode {stat.S_IMODE(found.st_mode):o})",
            hint=f"chmod 700 {shlex.quote(str(path))}, or choose another --data-dir",
        )
    return path.resolve()


def _lock(data_dir: Path) -> int:
    """Take a lock that ends with this process, even after a crash; return its descriptor. Raises: StoreLocked.

    Taken before chDB's own lock: chDB's core writes to standard error and reports less.
    """
    descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        raise StoreLocked(
            f"another `spanreplay up` has the data in {data_dir} open",
            hint="use that one (its addresses are in up.json there), stop it, or choose another --data-dir",
        ) from exc
    return descriptor


def _open_store(url: str) -> Store:
    store = Store.open(url)
    try:
        store.migrate()
    except BaseException:
        store.close()
        raise
    return store


def _write_status(path: Path, status: UpStatus) -> None:
    part = path.with_suffix(".part")
    part.write_text(status.to_json() + "\n", encoding="utf-8")
    part.replace(path)
