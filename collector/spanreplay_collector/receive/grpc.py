"""OTLP over gRPC: TraceService on grpc.aio, raw bytes in and out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from spanreplay.model.errors import AccessDenied, PortTaken
from spanreplay_collector import limits
from spanreplay_collector.receive.accept import Acceptor
from spanreplay_collector.receive.admit import Busy
from spanreplay_collector.receive.auth import TlsFiles
from spanreplay_collector.receive.http import build_discarded
from spanreplay_collector.receive.payload import BadRequest, TooLarge, check_protobuf

logger = logging.getLogger(__name__)

_SERVICE: Final = "opentelemetry.proto.collector.{0}.v1.{1}Service"
_DETAILS: Final = "grpc-status-details-bin"
OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", limits.GRPC_EXPORT_BYTES_MAX),
    ("grpc.max_send_message_length", 1024 * 1024),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_connection_age_ms", 600_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.so_reuseport", 0),
)
_Handler = Callable[[bytes, Any], Awaitable[bytes]]


class GrpcReceiver:
    """A gRPC server on one address; after `start`, `port` is the actual port."""

    def __init__(self, acceptor: Acceptor, host: str, port: int, tls: TlsFiles | None = None) -> None:
        self._acceptor = acceptor
        self._host = f"[{host}]" if ":" in host else host
        self._tls = tls
        self._server: Any = None
        self.port = port

    async def start(self) -> None:
        """Listen. Raises: PortTaken."""
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=limits.GRPC_CALLS_MAX)
        server.add_generic_rpc_handlers(
            (
                _build_handler(_SERVICE.format("trace", "Trace"), self._export_traces),
                _build_handler(_SERVICE.format("metrics", "Metrics"), self._discard("metrics")),
                _build_handler(_SERVICE.format("logs", "Logs"), self._discard("logs")),
            )
        )
        address = f"{self._host}:{self.port}"
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, _load_credentials(self._tls))
        except RuntimeError as exc:
            raise PortTaken(f"cannot listen on {address} for OTLP/gRPC: {exc}") from exc
        if port == 0:
            raise PortTaken(f"cannot listen on {address} for OTLP/gRPC: the port is in use")
        self.port = port
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Refuse new calls, finish those in progress, and end."""
        if self._server is not None:
            await self._server.stop(limits.STOP_GRACE_S)
            self._server = None

    async def _export_traces(self, body: bytes, context: Any) -> bytes:
        tenant = await self._authenticate(context)
        metrics = self._acceptor.metrics
        try:
            with self._acceptor.admission.request() as claim:
                claim.grow_to(len(body))
                checked = await self._acceptor.accept(tenant, body, check_protobuf, transport="grpc")
        except (BadRequest, TooLarge) as exc:
            metrics.add("refused_requests_total", reason="INVALID_ARGUMENT")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
            raise
        except Busy as exc:
            is_inflight = exc.reason == "inflight"
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if is_inflight else grpc.StatusCode.UNAVAILABLE
            metrics.add("refused_requests_total", reason=code.name)
            await context.abort(code, str(exc), _build_retry_details(code, exc))
            raise
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("cannot answer an OTLP/gRPC export of %d bytes", len(body))
            metrics.add("refused_requests_total", reason="INTERNAL")
            await context.abort(grpc.StatusCode.INTERNAL, "internal error; see the collector's log")
            raise
        return checked.response().SerializeToString()

    async def _authenticate(self, context: Any) -> str:
        metadata = dict(context.invocation_metadata() or ())
        try:
            return self._acceptor.authenticator.find_tenant(_as_text(metadata.get("authorization")))
        except AccessDenied as exc:
            self._acceptor.metrics.add("refused_requests_total", reason="UNAUTHENTICATED")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(exc))
            raise

    def _discard(self, signal: str) -> _Handler:
        answer = build_discarded(signal).SerializeToString()

        async def discard(body: bytes, context: Any) -> bytes:
            del body
            await self._authenticate(context)
            self._acceptor.metrics.add("discarded_requests_total", signal=signal)
            return answer

        return discard


def _as_text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else None


def _build_handler(service: str, export: _Handler) -> Any:
    # No (de)serializer: the bytes go to the log unchanged.
    return grpc.method_handlers_generic_handler(service, {"Export": grpc.unary_unary_rpc_method_handler(export)})


def _build_retry_details(code: Any, busy: Busy) -> tuple[tuple[str, bytes], ...]:
    """Build RetryInfo: without it, OTLP clients drop the data on RESOURCE_EXHAUSTED."""
    status = Status(code=code.value[0], message=str(busy))
    status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=busy.retry_after_s)))
    return ((_DETAILS, status.SerializeToString()),)


def _load_credentials(tls: TlsFiles) -> Any:
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=tls.client_ca.read_bytes() if tls.client_ca else None,
        require_client_auth=tls.client_ca is not None,
    )
