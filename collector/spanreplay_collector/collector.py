"""The collector as one object: receivers, log, loader, Phoenix."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from spanreplay.model.config import OTLP_GRPC_PORT, OTLP_HTTP_PORT
from spanreplay.model.errors import ConfigError
from spanreplay_collector import limits, loader
from spanreplay_collector.loader import Loader, SpanStore
from spanreplay_collector.log.segment_log import SegmentLog
from spanreplay_collector.metrics import Metrics
from spanreplay_collector.phoenix import fanout as phoenix
from spanreplay_collector.phoenix.fanout import PhoenixFanout
from spanreplay_collector.ports import check_free, open_listener, resolve_host
from spanreplay_collector.receive.accept import Acceptor
from spanreplay_collector.receive.admit import Admission
from spanreplay_collector.receive.auth import Authenticator, TlsFiles, Token, check_exposure
from spanreplay_collector.receive.grpc import GrpcReceiver
from spanreplay_collector.receive.http import HttpReceiver
from spanreplay_collector.receive.ready import Readiness

__all__ = ["Collector", "CollectorSettings", "TlsFiles", "Token"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CollectorSettings:
    """All settings of a collector; port 0 takes a free port, an empty `phoenix_url` means no Phoenix.

    Listening outside localhost needs `tokens` (or a client CA), and TLS unless `is_plaintext_allowed`.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    http_port: int = OTLP_HTTP_PORT
    grpc_port: int = OTLP_GRPC_PORT
    tokens: tuple[Token, ...] = ()
    tls: TlsFiles | None = None
    is_plaintext_allowed: bool = False
    phoenix_url: str = ""
    phoenix_token: str = ""
    log_bytes_max: int = limits.LOG_BYTES_MAX
    segment_bytes: int = limits.SEGMENT_BYTES
    inflight_bytes_max: int = limits.INFLIGHT_BYTES_MAX
    load_linger_s: float = limits.LOAD_LINGER_S


class Collector:
    """Receives OTLP, acknowledges it once it is durable, loads it into the store and shows it in Phoenix.

    After `start`, `http_port` and `grpc_port` are the actual ports. The caller closes the store.
    """

    def __init__(self, settings: CollectorSettings, store: SpanStore, metrics: Metrics | None = None) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.http_port = settings.http_port
        self.grpc_port = settings.grpc_port
        self._store = store
        self._loader: Loader | None = None
        self._fanout: PhoenixFanout | None = None
        self._parts = AsyncExitStack()

    async def start(self) -> None:
        """Open the log, listen, load. Raises: ConfigError, PortTaken; on an error nothing is left running."""
        settings = self.settings
        check_exposure(
            settings.host,
            has_tokens=bool(settings.tokens),
            tls=settings.tls,
            is_plaintext_allowed=settings.is_plaintext_allowed,
        )
        async with AsyncExitStack() as parts:  # whatever was opened is closed again if a later part fails
            await self._open_parts(parts)
            self._parts = parts.pop_all()
        logger.info(
            "collector listens on %s: OTLP/HTTP %d, OTLP/gRPC %d",
            settings.host,
            self.http_port,
            self.grpc_port,
        )

    async def stop(self) -> None:
        """Refuse new requests, finish those in progress, load the waiting records, and close."""
        await self._parts.aclose()
        self._loader = self._fanout = None

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Return when everything acknowledged so far is in the store. Raises: TimeoutError."""
        if self._loader is None:
            raise ConfigError("the collector is not running")
        if not await asyncio.to_thread(self._loader.flush, timeout_s):
            raise TimeoutError(f"the store has not taken everything within {timeout_s:g} s")

    async def flush_phoenix(self, timeout_s: float = 30.0) -> None:
        """Return when Phoenix has accepted everything acknowledged so far. Raises: TimeoutError."""
        fanout = self._fanout
        if fanout is not None and not await asyncio.to_thread(fanout.flush, timeout_s):
            raise TimeoutError(f"Phoenix has not taken everything within {timeout_s:g} s")

    async def _open_parts(self, parts: AsyncExitStack) -> None:
        settings, metrics = self.settings, self.metrics
        listener = open_listener(settings.host, settings.http_port, "OTLP/HTTP")
        parts.callback(listener.close)
        check_free(settings.host, settings.grpc_port, "OTLP/gRPC")
        log = self._open_log()
        parts.push_async_callback(_in_thread(log.close))

        self._loader = Loader(
            log, self._store, metrics, settings.data_dir / "rejected", linger_s=settings.load_linger_s
        )
        self._loader.start()
        parts.push_async_callback(_in_thread(self._loader.stop))
        if settings.phoenix_url:
            self._fanout = PhoenixFanout(log, settings.phoenix_url, settings.phoenix_token, metrics)
            self._fanout.start()
            parts.push_async_callback(_in_thread(self._fanout.stop))

        admission = Admission(log, inflight_bytes_max=settings.inflight_bytes_max)
        acceptor = Acceptor(log, Authenticator(settings.tokens), admission, metrics)
        parts.callback(acceptor.close)
        metrics.gauge("inflight_bytes", lambda: admission.inflight_bytes)
        metrics.gauge("log_bytes", lambda: log.bytes_on_disk)
        metrics.gauge("loader_lag_bytes", self._read_lag)
        metrics.gauge("kept_apart_spans", lambda: self._store.apart_spans)

        grpc_receiver = GrpcReceiver(acceptor, resolve_host(settings.host)[1], settings.grpc_port, settings.tls)
        await grpc_receiver.start()
        parts.push_async_callback(grpc_receiver.stop)
        self.grpc_port = grpc_receiver.port
        self.http_port = listener.getsockname()[1]
        readiness = Readiness(log.find_trouble, self._store.ping)
        http_receiver = HttpReceiver(acceptor, readiness, listener, settings.tls, settings.phoenix_url)
        http_receiver.start()
        parts.push_async_callback(http_receiver.stop)

    def _open_log(self) -> SegmentLog:
        settings = self.settings
        cursors: dict[str, int | None] = {loader.CURSOR: None}
        if settings.phoenix_url:
            # At most a quarter: an unavailable Phoenix must not fill the log.
            cursors[phoenix.CURSOR] = min(limits.PHOENIX_LAG_BYTES_MAX, settings.log_bytes_max // 4)
        return SegmentLog(
            settings.data_dir / "log",
            cursors=cursors,
            metrics=self.metrics,
            bytes_max=settings.log_bytes_max,
            segment_bytes=settings.segment_bytes,
        )

    def _read_lag(self) -> float:
        return self._loader.lag_bytes if self._loader else 0


def _in_thread(close: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await asyncio.to_thread(close)

    return run
