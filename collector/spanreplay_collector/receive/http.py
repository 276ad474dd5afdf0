"""OTLP over HTTP: granian's RSGI server inside this process and event loop."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import re
import socket
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.code_pb2 import (
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)
from google.rpc.status_pb2 import Status
from granian._granian import SocketHolder
from granian.constants import SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.server.embed import Server
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from spanreplay.model.config import OTLP_MESSAGE_BYTES_MAX
from spanreplay.model.errors import AccessDenied, SpanreplayError
from spanreplay.recording.spool.post import COLLECTOR_HEADER, PHOENIX_HEADER, parse_phoenix_url
from spanreplay_collector import limits
from spanreplay_collector.metrics import CONTENT_TYPE as METRICS_TYPE
from spanreplay_collector.receive.accept import Acceptor
from spanreplay_collector.receive.admit import Busy, Claim
from spanreplay_collector.receive.auth import TlsFiles, is_loopback
from spanreplay_collector.receive.connections import IdleWatch, count_connections_max, raise_file_limit
from spanreplay_collector.receive.hosts import is_local_name
from spanreplay_collector.receive.payload import (
    ENCODINGS,
    BadRequest,
    CheckedRequest,
    TooLarge,
    UnknownEncoding,
    check_json,
    check_protobuf,
    inflate,
)
from spanreplay_collector.receive.ready import Readiness

logger = logging.getLogger(__name__)

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"
_SIGNAL: Final = re.compile(r"(?:/.*)?/v1/(traces|metrics|logs)")
"""The path of a signal. SDKs of other tools put their own path between the address and OTLP's: /api/public/otel."""
_CHECKS: Final[dict[str, Callable[[bytes], CheckedRequest]]] = {PROTOBUF: check_protobuf, JSON: check_json}
_SIZES_MAX: Final = {PROTOBUF: OTLP_MESSAGE_BYTES_MAX, JSON: limits.JSON_BYTES_MAX}
DISCARDED: Final[dict[str, Callable[[], Any]]] = {
    "metrics": ExportMetricsServiceResponse,
    "logs": ExportLogsServiceResponse,
}
"""Signals that SDKs send by default in addition to traces.

An error status would make every SDK log errors forever, so they are answered with 200 and a partial success
whose message says that they are discarded. OTLP provides this for warnings: rejected count 0, message set.
"""

Headers = list[tuple[str, str]]


class _Refusal(Exception):
    """A response with a status other than 200."""

    def __init__(self, status: int, code: int, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or []


class HttpReceiver:
    """Serves a listening socket until stopped; takes ownership of the socket."""

    def __init__(
        self,
        acceptor: Acceptor,
        readiness: Readiness,
        listener: socket.socket,
        tls: TlsFiles | None = None,
        phoenix_url: str = "",
    ) -> None:
        """`phoenix_url` is where users see the spans; responses to senders of traces carry it in a header."""
        self._acceptor = acceptor
        self._told = [(PHOENIX_HEADER, shown)] if (shown := parse_phoenix_url(phoenix_url)) else None
        self._readiness = readiness
        self._is_loopback = is_loopback(listener.getsockname()[0])
        connections_max = count_connections_max(raise_file_limit())
        self._watch = IdleWatch(listener.getsockname()[1], connections_max)
        self._server = _OwnSocketServer(
            listener,
            target=self._answer,
            log_enabled=False,
            websockets=False,
            backlog=4096,
            backpressure=connections_max,
            http1_settings=HTTP1Settings(header_read_timeout=limits.HEADER_TIMEOUT_S * 1000),
            http2_settings=HTTP2Settings(max_headers_size=64 * 1024),
            ssl_cert=tls.cert if tls else None,
            ssl_key=tls.key if tls else None,
            ssl_ca=tls.client_ca if tls else None,
            ssl_client_verify=bool(tls and tls.client_ca),
            ssl_protocol_min=SSLProtocols.tls12,
        )
        self._serving: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Start answering requests; needs the running event loop."""
        self._serving = asyncio.get_running_loop().create_task(self._server.serve())
        self._serving.add_done_callback(self._note_end)
        self._watch.start()

    async def stop(self) -> None:
        """Close the socket and end, after the requests in progress."""
        if self._serving is None:
            return
        self._is_stopping = True
        await self._watch.stop()
        self._server.stop()  # type: ignore[no-untyped-call]  # granian leaves it untyped
        done, _ = await asyncio.wait({self._serving}, timeout=limits.STOP_GRACE_S)
        if not done:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving

    def _note_end(self, serving: asyncio.Task[None]) -> None:
        if not self._is_stopping:
            cause = None if serving.cancelled() else serving.exception()
            logger.error("the OTLP/HTTP server stopped unexpectedly (%s); restart the collector", cause)

    async def _answer(self, scope: Any, proto: Any) -> None:
        kind = _read_content_type(scope)
        try:
            await self._route(scope, proto, kind)
        except _Refusal as refusal:
            limit = limits.DISCARD_BYTES_MAX if refusal.status != 401 else limits.DISCARD_STRANGER_BYTES_MAX
            await _discard_body(proto, limit)
            self._acceptor.metrics.add("refused_requests_total", reason=str(refusal.status))
            _send_refusal(proto, kind, refusal)
        except (asyncio.TimeoutError, ConnectionError) as exc:
            logger.debug("request body ended early: %s", exc)
            self._acceptor.metrics.add("refused_requests_total", reason="cut_off")
            _send_refusal(proto, kind, _Refusal(408, INVALID_ARGUMENT, "the request body did not arrive in time"))
        except Exception:
            logger.exception("cannot answer %s %s", scope.method, scope.path[:200])
            self._acceptor.metrics.add("refused_requests_total", reason="500")
            _send_refusal(proto, kind, _Refusal(500, INTERNAL, "internal error; see the collector's log"))

    async def _route(self, scope: Any, proto: Any, kind: str) -> None:
        if self._is_loopback and not is_local_name(scope.headers.get("host") or scope.authority or ""):
            raise _Refusal(421, INVALID_ARGUMENT, "use localhost, or an address")
        path = scope.path.rstrip("/") or "/"
        if path == "/healthz":
            _require_method(scope, "GET")
            proto.response_str(200, [("content-type", _TEXT), (COLLECTOR_HEADER, "1")], "ok\n")
            return
        if path in ("/readyz", "/readyz/log"):
            _require_method(scope, "GET")
            trouble = await (self._readiness if path == "/readyz" else self._readiness.log_alone).find_trouble()
            proto.response_str(503 if trouble else 200, [("content-type", _TEXT)], (trouble or "ready") + "\n")
            return
        tenant = self._authenticate(scope)
        if path == "/metrics":
            _require_method(scope, "GET")
            proto.response_str(200, [("content-type", METRICS_TYPE)], self._acceptor.metrics.render())
        elif asked := _SIGNAL.fullmatch(path):
            _require_method(scope, "POST")
            if asked[1] == "traces":
                await self._receive_traces(scope, proto, kind, tenant)
            else:
                await self._discard_signal(proto, kind, asked[1])
        else:
            raise _Refusal(404, NOT_FOUND, f"no {scope.path[:200]!r} here; traces go to POST /v1/traces")

    def _authenticate(self, scope: Any) -> str:
        try:
            return self._acceptor.authenticator.find_tenant(scope.headers.get("authorization"))
        except AccessDenied as exc:
            raise _Refusal(401, UNAUTHENTICATED, str(exc), [("www-authenticate", "Bearer")]) from exc

    async def _receive_traces(self, scope: Any, proto: Any, kind: str, tenant: str) -> None:
        if kind not in _CHECKS:
            raise _Refusal(415, INVALID_ARGUMENT, f"content-type must be {PROTOBUF} or {JSON}")
        try:
            checked = await self._take_in(scope, proto, kind, tenant)
        except (Busy, TooLarge, UnknownEncoding, BadRequest) as exc:
            refusal = _explain(exc)
        else:
            _send_message(proto, 200, kind, checked.response(), self._told)
            return
        # Raised outside the `except`: a chained exception would keep the body in memory while the rest is discarded.
        raise refusal

    async def _take_in(self, scope: Any, proto: Any, kind: str, tenant: str) -> CheckedRequest:
        encoding = scope.headers.get("content-encoding") or ""
        size_max = _SIZES_MAX[kind]
        with self._acceptor.admission.request() as claim:
            body = await asyncio.wait_for(_read_body(scope, proto, claim, size_max), limits.BODY_TIMEOUT_S)
            if encoding:
                packed = body
                body = await self._acceptor.run(
                    lambda: inflate(packed, encoding, size_max),
                    is_long=len(packed) > limits.INFLATE_INLINE_BYTES_MAX,
                )
                claim.grow_to(len(body))
            return await self._acceptor.accept(tenant, body, _CHECKS[kind], transport="http")

    async def _discard_signal(self, proto: Any, kind: str, signal: str) -> None:
        await _discard_body(proto, limits.DISCARD_BYTES_MAX)
        self._acceptor.metrics.add("discarded_requests_total", signal=signal)
        _send_message(proto, 200, kind if kind in _CHECKS else PROTOBUF, build_discarded(signal))


def build_discarded(signal: str) -> Message:
    """Build the response to a signal that is discarded."""
    response: Message = DISCARDED[signal]()
    response.partial_success.error_message = (  # type: ignore[attr-defined]  # both kinds have it
        f"spanreplay keeps traces only; {signal} are thrown away"
    )
    return response


def _explain(exc: SpanreplayError) -> _Refusal:
    if isinstance(exc, Busy):
        status, code = (429, RESOURCE_EXHAUSTED) if exc.reason == "inflight" else (503, UNAVAILABLE)
        return _Refusal(status, code, str(exc), [("retry-after", str(exc.retry_after_s))])
    if isinstance(exc, TooLarge):
        return _Refusal(413, FAILED_PRECONDITION, str(exc))
    if isinstance(exc, UnknownEncoding):
        return _Refusal(415, INVALID_ARGUMENT, str(exc), [("accept-encoding", ENCODINGS)])
    return _Refusal(400, INVALID_ARGUMENT, str(exc))


def _require_method(scope: Any, method: str) -> None:
    if scope.method != method:
        raise _Refusal(405, UNIMPLEMENTED, f"use {method}", [("allow", method)])


def _read_content_type(scope: Any) -> str:
    return str(scope.headers.get("content-type") or "").partition(";")[0].strip().lower()


async def _read_body(scope: Any, proto: Any, claim: Claim, size_max: int) -> bytes:
    """Read the whole body; each part is claimed before it is kept. Raises: TooLarge, Busy, BadRequest."""
    stated = scope.headers.get("content-length")
    if stated is not None and stated.isdecimal():
        if len(stated) > 18 or int(stated) > size_max:
            raise TooLarge(f"the request is larger than {size_max} bytes")
        claim.grow_to(min(int(stated), limits.CLAIM_AHEAD_BYTES))
    whole, size = io.BytesIO(), 0  # joined parts would be in memory twice
    # granian 2.8.7 ends this loop without an error when the client disconnects in the middle. A stated length
    # or a compression reveals it. Otherwise a part that parses is kept; its sender got no ACK and sends it again.
    async for part in proto:
        size += len(part)
        if size > size_max:
            raise TooLarge(f"the request is larger than {size_max} bytes")
        claim.grow_to(size)
        whole.write(part)
    if stated is not None and stated.isdecimal() and size != int(stated):
        raise BadRequest("the request body is shorter than its content-length")
    return whole.getvalue()


async def _discard_body(proto: Any, size_max: int) -> None:
    """Read the rest of the request, so that the client gets to read the response."""

    async def drain() -> None:
        size = 0
        async for part in proto:
            size += len(part)
            if size > size_max:
                return

    with contextlib.suppress(Exception):  # the body may have been read already, or the client is gone
        await asyncio.wait_for(drain(), limits.DISCARD_TIMEOUT_S)


def _send_message(proto: Any, status: int, kind: str, message: Message, headers: Headers | None = None) -> None:
    with contextlib.suppress(RuntimeError):  # the client is gone
        proto.response_bytes(status, [("content-type", kind), *(headers or [])], _encode(message, kind))


def _encode(message: Message, kind: str) -> bytes:
    if kind == JSON:
        return json.dumps(json_format.MessageToDict(message)).encode()
    return message.SerializeToString()


def _send_refusal(proto: Any, kind: str, refusal: _Refusal) -> None:
    if kind in _CHECKS:
        status = Status(code=refusal.code, message=refusal.message)
        _send_message(proto, refusal.status, kind, status, refusal.headers)
        return
    with contextlib.suppress(RuntimeError):
        headers = [("content-type", _TEXT), *refusal.headers]
        proto.response_str(refusal.status, headers, refusal.message + "\n")


class _OwnSocketServer(Server):
    """A granian server on a socket bound by us.

    granian binds with SO_REUSEPORT and doesn't expose the socket: a taken port would go unnoticed, and for
    port 0 the actual port would be unknown.
    """

    def __init__(self, listener: socket.socket, **settings: Any) -> None:
        address, port = listener.getsockname()[:2]
        super().__init__(address=address, port=port, **settings)
        self._listener = listener

    def _init_shared_socket(self) -> None:
        self._ssp = None
        holder: Any = SocketHolder
        self._shd = holder(self._listener.detach(), False, self.backlog)  # as its pickle support does
