"""Clients of the replay service: `ServiceCatalog` for threads, `AsyncServiceClient` for asyncio.

A client dials one address, its `.address` (host:port), and nothing else: replay allows exactly that one.
gRPC is imported when a client is made, so this module can be imported without grpcio.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from spanreplay.model.call import Recording
from spanreplay.model.config import GRPC_MESSAGE_BYTES_MAX, SERVICE_PORT
from spanreplay.model.errors import (
    AccessDenied,
    ConfigError,
    ServiceError,
    ServiceUnavailable,
    SpanreplayError,
)
from spanreplay.model.how_to_install import install_command
from spanreplay.recording.catalog import Erased, Erasure, Imported, RunQuery, RunSummary

if TYPE_CHECKING:
    from spanreplay.recording.model_drift import DriftQuery, DriftScan
    from spanreplay.v1 import replay_pb2 as pb

TIMEOUT_S: Final = 60.0
"""Longest wait for a whole answer."""
IMPORT_PIECE_BYTES: Final = 1024 * 1024
EXPORT_BYTES_MAX: Final = 1024**3
"""A `.replay` file larger than this is refused."""
DETAILS_CHARS_MAX: Final = 300

# Reads are idempotent: a refused connection or a restart may be tried again. ReportReplay and Import are not
# listed: the caller decides. A stream is retried only before its first message.
_READS: Final = (("Replay", "ReplayRun"), ("Runs", "Search"), ("Runs", "Get"), ("Runs", "Export"), ("Runs", "Drift"))
_SERVICE_CONFIG: Final = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": f"spanreplay.v1.{s}", "method": m} for s, m in _READS],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


def parse_endpoint(endpoint: str) -> tuple[str, bool]:
    """Parse an endpoint (`host`, `host:port`, `http://…` or `https://…`) into host:port and whether it uses TLS.

    Raises: ConfigError for anything else.
    """
    scheme, _, rest = endpoint.strip().rpartition("://")
    rest = rest.rstrip("/")
    if scheme not in ("", "http", "https", "grpc", "grpcs") or not rest or any(c in rest for c in "/@?# "):
        raise ConfigError(
            f"not an address of a replay service: {endpoint!r}", hint="write host:port, or https://host:port"
        )
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]"):  # no port; [::1] is a bare IPv6 address
        host, port = rest, str(SERVICE_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"not an address of a replay service: {endpoint!r}", hint="write host:port")
    return f"{host}:{port}", scheme in ("https", "grpcs")


def _import_grpc() -> ModuleType:
    try:
        import google.rpc.error_details_pb2
        import grpc
    except ImportError as exc:
        raise ConfigError(
            f"a replay service needs a package that is missing: {exc.name}",
            hint=install_command("client"),
        ) from exc
    del google
    module: ModuleType = grpc
    return module


def _channel_options(address: str) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
        ("grpc.service_config", _SERVICE_CONFIG),
        ("grpc.enable_retries", 1),
        # A channel of our own, never one that the agent's code has already opened.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def _read_error_info(trailing: Any) -> tuple[str, str, str] | None:
    """(reason, message, hint) if our service stated them."""
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    from spanreplay.recording.remote import wire

    for key, value in trailing or ():
        if key != wire.STATUS_DETAILS_KEY:
            continue
        try:
            status = status_pb2.Status.FromString(value)
            for detail in status.details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == wire.ERROR_DOMAIN:
                    return info.reason, status.message, info.metadata.get("hint", "")
        except (DecodeError, TypeError):
            return None
    return None


def map_error(error: Any, address: str, timeout_s: float = TIMEOUT_S) -> SpanreplayError:
    """Map a grpc.RpcError to a SpanreplayError with a one-line message; pure."""
    from spanreplay.recording.remote import wire

    stated = _read_error_info(error.trailing_metadata())
    if stated is not None:
        return wire.build_error(*stated)
    code = error.code().name
    lines = (error.details() or "").splitlines() or [""]
    details = lines[0][:DETAILS_CHARS_MAX]
    if code == "UNAVAILABLE":
        return ServiceUnavailable(
            f"no replay service answers at {address} ({details})",
            hint="start one with `spanreplay up`, or correct SPANREPLAY_ENDPOINT",
        )
    if code == "DEADLINE_EXCEEDED":
        return ServiceUnavailable(
            f"the replay service at {address} did not answer within {timeout_s:g} s",
            hint="start one with `spanreplay up`, or correct SPANREPLAY_ENDPOINT",
        )
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return AccessDenied(f"the replay service at {address} refused the token", hint="set SPANREPLAY_TOKEN")
    if code == "UNIMPLEMENTED":
        return ServiceError(
            f"{address} answers, but not as a replay service of this version ({details})",
            hint="the replay service's own port is 4319 unless it was changed",
        )
    return ServiceError(f"the replay service at {address} failed: {code} ({details})")


def _link(base_url: str, span_id: str) -> str:
    return f"{base_url.rstrip('/')}/redirects/spans/{quote(span_id)}" if base_url and span_id else ""


def _check_export(total_bytes: int) -> None:
    if total_bytes > EXPORT_BYTES_MAX:
        raise ServiceError(f"the `.replay` file is larger than {EXPORT_BYTES_MAX} bytes")


class _Client:
    """Base of both clients: the address, the token, the channel."""

    def __init__(self, endpoint: str, token: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        self._address, self._is_tls = parse_endpoint(endpoint)
        self._timeout_s = timeout_s
        try:
            token.encode("ascii")
        except UnicodeEncodeError as exc:
            raise ConfigError("the token is not ASCII", hint="set SPANREPLAY_TOKEN") from exc
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._grpc = _import_grpc()

    @property
    def address(self) -> str:
        """The one host:port that this client dials."""
        return self._address

    def _call_options(self) -> dict[str, Any]:
        return {"timeout": self._timeout_s, "metadata": self._metadata}

    def _is_too_large(self, error: Any) -> bool:
        return bool(error.code() is self._grpc.StatusCode.RESOURCE_EXHAUSTED)

    def _map(self, error: Any) -> SpanreplayError:
        return map_error(error, self._address, self._timeout_s)

    def _open_channel(self, module: Any) -> Any:
        options = _channel_options(self._address)
        if self._is_tls:
            return module.secure_channel(self._address, self._grpc.ssl_channel_credentials(), options=options)
        return module.insecure_channel(self._address, options=options)


class ServiceCatalog(_Client):
    """A `Catalog` at a replay service; thread-safe. Use as a context manager or call `close`."""

    def __init__(self, endpoint: str, token: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(endpoint, token, timeout_s=timeout_s)
        from spanreplay.v1 import replay_pb2_grpc

        self._channel = self._open_channel(self._grpc)
        self._replay = replay_pb2_grpc.ReplayStub(self._channel)
        self._runs = replay_pb2_grpc.RunsStub(self._channel)

    def __enter__(self) -> ServiceCatalog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._channel.close()

    def search(self, query: RunQuery) -> list[RunSummary]:
        """Matching runs, newest first."""
        from spanreplay.recording.remote import wire

        try:
            response = self._runs.Search(wire.query_to_message(query), **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        return [wire.summary_from_message(m) for m in response.runs]

    def load(self, run_id: str) -> Recording:
        """All boundary calls of a run, over one ReplayRun stream."""
        from spanreplay.recording.remote import wire
        from spanreplay.v1 import replay_pb2 as pb

        stream = self._replay.ReplayRun(pb.ReplayRunRequest(run_id=run_id), **self._call_options())
        try:
            return wire.build_recording(stream)
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        finally:
            stream.cancel()

    def export(self, run_id: str) -> bytes:
        """The run as the bytes of a `.replay` file."""
        from spanreplay.v1 import replay_pb2 as pb

        stream = self._runs.Export(pb.ExportRequest(run_id=run_id), **self._call_options())
        content = bytearray()
        try:
            for response in stream:
                content += response.data
                _check_export(len(content))
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        finally:
            stream.cancel()
        return bytes(content)

    def import_bundle(self, bundle: bytes) -> Imported:
        """Send a `.replay` file to the service; sending it twice is harmless."""
        try:
            response = self._runs.Import(_iter_import(bundle), **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        return Imported(response.run_id, response.spans)

    def scan_drift(self, query: DriftQuery) -> DriftScan:
        """Requests to models that have more than one serving stack or output."""
        from spanreplay.recording.remote import wire

        try:
            response = self._runs.Drift(wire.drift_query_to_message(query), **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        return wire.drift_from_message(response)

    def pin(self, run_id: str, *, is_pinned: bool = True, reason: str = "") -> str:
        """Keep a run whatever its age, or no longer; return its whole id."""
        from spanreplay.v1 import replay_pb2 as pb

        request = pb.PinRequest(run_id=run_id, unpin=not is_pinned, reason=reason)
        try:
            return str(self._runs.Pin(request, **self._call_options()).run_id)
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc

    def erase(self, chosen: Erasure, *, is_trial: bool = False) -> Erased:
        """Remove runs for good, or with `is_trial` only find them."""
        try:
            response = self._runs.Erase(_erase_request(chosen, is_trial), **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        return Erased(tuple(response.run_ids), is_shown=response.is_shown)

    def report_replay(self, *, run_id: str, replay_run_id: str, verdict: str, report: str) -> str:
        """Report a verdict (`report`: JSON, divergence/1); return its Phoenix URL, or ""."""
        from spanreplay.v1 import replay_pb2 as pb

        request = pb.ReportReplayRequest(run_id=run_id, replay_run_id=replay_run_id, verdict=verdict, report=report)
        try:
            response = self._replay.ReportReplay(request, **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        url: str = response.phoenix_url
        return url

    def phoenix_url(self, run_id: str) -> str:
        """URL of the run in Phoenix; "" without Phoenix, and for a run larger than one message."""
        from spanreplay.v1 import replay_pb2 as pb

        try:
            response = self._runs.Get(pb.GetRequest(run_id=run_id), **self._call_options())
        except self._grpc.RpcError as exc:
            if self._is_too_large(exc):
                return ""
            raise self._map(exc) from exc
        return _link(response.phoenix_url, response.summary.run.span_id)


def _erase_request(chosen: Erasure, is_trial: bool) -> pb.EraseRequest:
    from spanreplay.v1 import replay_pb2

    if chosen.before_ns:
        raise ConfigError(
            "a service removes old runs itself",
            hint="`spanreplay up --keep-days N` and `spanreplay collect --keep-days N` say when",
        )
    return replay_pb2.EraseRequest(
        run_ids=chosen.run_ids, user_ids=chosen.user_ids, session_ids=chosen.session_ids, is_trial=is_trial
    )


def _iter_import(bundle: bytes) -> Iterator[pb.ImportRequest]:
    from spanreplay.recording.remote import wire
    from spanreplay.v1 import replay_pb2

    for piece in wire.split_bytes(bundle, IMPORT_PIECE_BYTES):
        yield replay_pb2.ImportRequest(data=piece)


async def _aiter_import(bundle: bytes) -> AsyncIterator[pb.ImportRequest]:
    for request in _iter_import(bundle):
        yield request


class AsyncServiceClient(_Client):
    """The same methods as coroutines; belongs to the event loop it is made in."""

    def __init__(self, endpoint: str, token: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(endpoint, token, timeout_s=timeout_s)
        import grpc.aio

        from spanreplay.v1 import replay_pb2_grpc

        self._channel = self._open_channel(grpc.aio)
        # The generated class serves both kinds of channel; only its types are split.
        self._replay: Any = replay_pb2_grpc.ReplayStub(self._channel)
        self._runs: Any = replay_pb2_grpc.RunsStub(self._channel)

    async def __aenter__(self) -> AsyncServiceClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; idempotent."""
        await self._channel.close()

    async def search(self, query: RunQuery) -> list[RunSummary]:
        """Matching runs, newest first."""
        from spanreplay.recording.remote import wire

        try:
            response = await self._runs.Search(wire.query_to_message(query), **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        return [wire.summary_from_message(m) for m in response.runs]

    async def load(self, run_id: str) -> Recording:
        """All boundary calls of a run, over one ReplayRun stream."""
        from spanreplay.recording.remote import wire
        from spanreplay.v1 import replay_pb2 as pb

        stream = self._replay.ReplayRun(pb.ReplayRunRequest(run_id=run_id), **self._call_options())
        builder = wire.RecordingBuilder()
        try:
            async for event in stream:
                builder.add(event)
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        finally:
            stream.cancel()
        return builder.build()

    async def export(self, run_id: str) -> bytes:
        """The run as the bytes of a `.replay` file."""
        from spanreplay.v1 import replay_pb2 as pb

        stream = self._runs.Export(pb.ExportRequest(run_id=run_id), **self._call_options())
        content = bytearray()
        try:
            async for response in stream:
                content += response.data
                _check_export(len(content))
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        finally:
            stream.cancel()
        return bytes(content)

    async def import_bundle(self, bundle: bytes) -> Imported:
        """Send a `.replay` file to the service; sending it twice is harmless."""
        try:
            response = await self._runs.Import(_aiter_import(bundle), **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        return Imported(response.run_id, response.spans)

    async def scan_drift(self, query: DriftQuery) -> DriftScan:
        """Requests to models that have more than one serving stack or output."""
        from spanreplay.recording.remote import wire

        try:
            response = await self._runs.Drift(wire.drift_query_to_message(query), **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        return wire.drift_from_message(response)

    async def pin(self, run_id: str, *, is_pinned: bool = True, reason: str = "") -> str:
        """Keep a run whatever its age, or no longer; return its whole id."""
        from spanreplay.v1 import replay_pb2 as pb

        request = pb.PinRequest(run_id=run_id, unpin=not is_pinned, reason=reason)
        try:
            return str((await self._runs.Pin(request, **self._call_options())).run_id)
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc

    async def erase(self, chosen: Erasure, *, is_trial: bool = False) -> Erased:
        """Remove runs for good, or with `is_trial` only find them."""
        try:
            response = await self._runs.Erase(_erase_request(chosen, is_trial), **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        return Erased(tuple(response.run_ids), is_shown=response.is_shown)

    async def report_replay(self, *, run_id: str, replay_run_id: str, verdict: str, report: str) -> str:
        """Report a verdict (`report`: JSON, divergence/1); return its Phoenix URL, or ""."""
        from spanreplay.v1 import replay_pb2 as pb

        request = pb.ReportReplayRequest(run_id=run_id, replay_run_id=replay_run_id, verdict=verdict, report=report)
        try:
            response = await self._replay.ReportReplay(request, **self._call_options())
        except self._grpc.RpcError as exc:
            raise self._map(exc) from exc
        url: str = response.phoenix_url
        return url

    async def phoenix_url(self, run_id: str) -> str:
        """URL of the run in Phoenix; "" without Phoenix, and for a run larger than one message."""
        from spanreplay.v1 import replay_pb2 as pb

        try:
            response = await self._runs.Get(pb.GetRequest(run_id=run_id), **self._call_options())
        except self._grpc.RpcError as exc:
            if self._is_too_large(exc):
                return ""
            raise self._map(exc) from exc
        return _link(response.phoenix_url, response.summary.run.span_id)
