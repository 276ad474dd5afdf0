"""The gRPC server: Replay, Runs and health, on one port."""

from __future__ import annotations

import logging
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse

from spanreplay.model.config import GRPC_MESSAGE_BYTES_MAX, SERVICE_PORT
from spanreplay.model.errors import ConfigError, PortTaken
from spanreplay.v1 import replay_pb2_grpc
from spanreplay_collector.receive.auth import Authenticator, TlsFiles, Token, check_exposure
from spanreplay_service.guard import Guard
from spanreplay_service.limits import CONCURRENT_CALLS_MAX, REQUEST_BYTES_MAX, STOP_GRACE_S, THREADS_MAX
from spanreplay_service.listen import can_listen, join_address
from spanreplay_service.replay import ReplayServicer, VerdictSink
from spanreplay_service.runs import Freshen, RunAccess, RunsServicer, RunStore

SERVICE_NAMES: Final = ("", "spanreplay.v1.Replay", "spanreplay.v1.Runs")

OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_connection_idle_ms", 30_000),
    ("grpc.max_connection_age_ms", 600_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_metadata_size", 16_384),
    # With port reuse, a second server could start on a taken port and would get half of the calls.
    ("grpc.so_reuseport", 0),
)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerSettings:
    """The service's address and access control; port 0 takes a free port.

    Listening outside localhost needs `tokens` (or a client CA), and TLS unless `is_plaintext_allowed`.
    """

    host: str = "127.0.0.1"
    port: int = SERVICE_PORT
    tokens: tuple[Token, ...] = ()
    tls: TlsFiles | None = None
    is_plaintext_allowed: bool = False
    phoenix_url: str = ""


class ReplayServer:
    """The replay service on a store; start and stop it on the same event loop."""

    def __init__(
        self,
        store: RunStore,
        settings: ServerSettings | None = None,
        *,
        sink: VerdictSink | None = None,
        freshen: Freshen | None = None,
    ) -> None:
        """`freshen` is awaited before each read, so that a read finds all acknowledged spans."""
        self._settings = settings or ServerSettings()
        check_exposure(
            self._settings.host,
            has_tokens=bool(self._settings.tokens),
            tls=self._settings.tls,
            is_plaintext_allowed=self._settings.is_plaintext_allowed,
        )
        self._store = store
        self._sink = sink
        self._freshen = freshen
        self._pool: ThreadPoolExecutor | None = None
        self._server: Any = None
        self._health: Any = None
        self._port = 0
        self.phoenix_url = self._settings.phoenix_url

    @property
    def address(self) -> str:
        """host:port that the service listens on; port 0 before `start`."""
        return join_address(self._settings.host, self._port)

    async def start(self) -> None:
        """Listen and serve. Raises: PortTaken, ConfigError."""
        credentials = _load_credentials(self._settings.tls) if self._settings.tls else None
        server = grpc.aio.server(
            options=OPTIONS,
            interceptors=(Guard(Authenticator(self._settings.tokens)),),
            maximum_concurrent_rpcs=CONCURRENT_CALLS_MAX,
        )
        self._port = await self._listen(server, credentials)
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="spanreplay-service")
        runs = RunAccess(self._store, self._pool, self._freshen)
        replay_pb2_grpc.add_ReplayServicer_to_server(ReplayServicer(runs, self._sink), server)
        replay_pb2_grpc.add_RunsServicer_to_server(RunsServicer(runs, lambda: self.phoenix_url, self._sink), server)
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        await server.start()
        for name in SERVICE_NAMES:
            await self._health.set(name, HealthCheckResponse.SERVING)
        self._server = server

    async def _listen(self, server: Any, credentials: Any) -> int:
        address = join_address(self._settings.host, self._settings.port)
        # Checked before gRPC tries: its core writes its own message to standard error.
        is_free = can_listen(self._settings.host, self._settings.port)
        try:
            if is_free and credentials is None:
                return int(server.add_insecure_port(address))
            if is_free:
                return int(server.add_secure_port(address, credentials))
        except RuntimeError:
            logger.info("the replay service cannot listen on %s", address, exc_info=True)
        await server.stop(None)
        raise PortTaken(
            f"{address} is in use, the replay service cannot listen there",
            hint="another `spanreplay up` may be running: use it, stop it, or choose another port with --port",
        )

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Finish calls in progress for `grace_s`, then end them; idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        await self._health.enter_graceful_shutdown()
        await server.stop(grace_s)
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _load_credentials(tls: TlsFiles) -> Any:
    try:
        pair = (tls.key.read_bytes(), tls.cert.read_bytes())
        roots = tls.client_ca.read_bytes() if tls.client_ca else None
        # OpenSSL checks first: gRPC reports a bad certificate as a port that cannot be opened.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert, tls.key)
    except OSError as exc:
        raise ConfigError(f"the TLS certificate or key cannot be used: {exc}") from exc
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)
