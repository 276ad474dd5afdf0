"""Access and requests: tokens, tenants, TLS, garbage, limits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanreplay.model import errors
from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.remote.client import ServiceCatalog, map_error
from spanreplay.v1 import replay_pb2 as pb
from spanreplay.v1 import replay_pb2_grpc
from spanreplay_collector.receive.auth import TlsFiles, Token
from spanreplay_service import guard
from spanreplay_service.server import ReplayServer, ServerSettings
from support.certificates import make_certificates
from support.memory_store import MemoryStore, fill
from support.runs import make_run_id
from support.service import serve

TENANTS = (
    Token.of("a-token", "acme"),
    Token.of("o-token", "other"),
    Token.of("old", "acme", expires_at_s=1.0),
)


def _ask_over_tls(address: str, ca: Path) -> str:
    code = (
        "import sys\nfrom spanreplay.recording.remote.client import ServiceCatalog\n"
        "from spanreplay.model.errors import SpanreplayError\n"
        "try:\n    print(ServiceCatalog('https://' + sys.argv[1], 'a-token', timeout_s=30).load(sys.argv[2]).run_id)\n"
        "except SpanreplayError as exc:\n    print(type(exc).__name__)\n"
    )
    # gRPC's core reads the roots once per process.
    return subprocess.run(
        [sys.executable, "-c", code, address, make_run_id(5)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca)},
    ).stdout.strip()


def _run_id_field(text: str) -> bytes:
    """A message whose first field, the run id in every request, is any text."""
    return pb.GetRequest(run_id=text).SerializeToString()


class SlowStore(MemoryStore):
    """A store that answers when it is released."""

    release = threading.Event()

    def search(self, tenant: str, query: RunQuery) -> Any:
        """Wait, then answer."""
        self.release.wait(30)
        return super().search(tenant, query)


def test_r6_tenants_see_their_own_runs_only(store: MemoryStore) -> None:
    """No method finds another tenant's run; a tenant's own is found."""
    fill(store, 5, tenant="acme")
    with serve(store, ServerSettings(port=0, tokens=TENANTS)) as server:
        with ServiceCatalog(server.address, "a-token") as mine:
            assert mine.load(make_run_id(5)).run_id == make_run_id(5)
            assert [s.root.run_id for s in mine.search(RunQuery())] == [make_run_id(5)]
        with ServiceCatalog(server.address, "o-token") as theirs:
            assert theirs.search(RunQuery()) == []
            for ask in (theirs.load, theirs.export, theirs.phoenix_url):
                with pytest.raises(errors.RunNotFound):
                    ask(make_run_id(5))


@pytest.mark.parametrize("token", ["", "wrong", "old", "a-token " * 500], ids=["none", "wrong", "expired", "long"])
def test_r6_a_wrong_token_is_refused_everywhere(store: MemoryStore, token: str) -> None:
    """Without a valid token no method answers, except health."""
    with serve(store, ServerSettings(port=0, tokens=TENANTS)) as server:
        with ServiceCatalog(server.address, token) as client:
            for ask in (client.load, client.export, client.phoenix_url):
                with pytest.raises(errors.AccessDenied, match="token"):
                    ask(make_run_id(1))
            with pytest.raises(errors.AccessDenied, match="token"):
                client.search(RunQuery())
            with pytest.raises(errors.AccessDenied, match="token"):
                client.import_bundle(b"x")
            with pytest.raises(errors.AccessDenied, match="token"):
                client.report_replay(run_id="x", replay_run_id="", verdict="identical", report="")
        with grpc.insecure_channel(server.address) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="spanreplay.v1.Replay"), timeout=30
            )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_r6_two_authorization_values_are_refused(store: MemoryStore) -> None:
    """A call with two tokens is refused."""
    metadata = (("authorization", "Bearer a-token"), ("authorization", "Bearer o-token"))
    with (
        serve(store, ServerSettings(port=0, tokens=TENANTS)) as server,
        grpc.insecure_channel(server.address) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        replay_pb2_grpc.RunsStub(channel).Search(pb.SearchRequest(), timeout=30, metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_public_address_needs_a_token(store: MemoryStore) -> None:
    """Without tokens the service refuses to start on the open network."""
    with pytest.raises(errors.ConfigError, match="refusing to listen"):
        ReplayServer(store, ServerSettings(host="0.0.0.0", port=0))


def test_r6_tls_is_spoken_and_nothing_else(store: MemoryStore, tmp_path: Path) -> None:
    """On a TLS port a client with the authority's root gets its run; plaintext and other roots get nothing."""
    fill(store, 5, tenant="acme")
    files, others = make_certificates(tmp_path / "a"), make_certificates(tmp_path / "b")
    tls = TlsFiles(files.server_cert, files.server_key)
    with serve(store, ServerSettings(port=0, tokens=TENANTS, tls=tls)) as server:
        assert _ask_over_tls(server.address, files.ca) == make_run_id(5)
        assert _ask_over_tls(server.address, others.ca) == "ServiceUnavailable"
        with (
            ServiceCatalog(server.address, "a-token", timeout_s=30) as plain,
            pytest.raises(errors.ServiceUnavailable, match=server.address),
        ):
            plain.load(make_run_id(5))


def test_r6_a_client_without_certificate_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    """If clients need a certificate, a valid token alone is not accepted."""
    fill(store, 5, tenant="acme")
    files = make_certificates(tmp_path)
    tls = TlsFiles(files.server_cert, files.server_key, files.ca)
    with serve(store, ServerSettings(port=0, tokens=TENANTS, tls=tls)) as server:
        assert _ask_over_tls(server.address, files.ca) == "ServiceUnavailable"
        credentials = grpc.ssl_channel_credentials(
            files.ca.read_bytes(), files.client_key.read_bytes(), files.client_cert.read_bytes()
        )
        metadata = (("authorization", "Bearer a-token"),)
        with grpc.secure_channel(server.address, credentials) as channel:
            stub = replay_pb2_grpc.RunsStub(channel)
            found = stub.Search(pb.SearchRequest(), timeout=30, metadata=metadata)
    assert [s.run.run_id for s in found.runs] == [make_run_id(5)]


def test_tls_files_that_cannot_be_read_are_named(store: MemoryStore, tmp_path: Path) -> None:
    """A missing or broken certificate is a ConfigError before anything listens."""
    broken = tmp_path / "broken.pem"
    broken.write_text("not a certificate", encoding="utf-8")
    for path in (tmp_path / "missing.pem", broken):
        with (
            pytest.raises(errors.ConfigError, match="TLS"),
            serve(store, ServerSettings(port=0, tls=TlsFiles(path, path))),
        ):
            pass


def test_no_call_outlives_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without its own deadline is ended by the service's."""
    monkeypatch.setattr(guard.Guard.__init__, "__kwdefaults__", {"deadline_s": 0.05})
    with serve(SlowStore()) as server, ServiceCatalog(server.address) as client:
        with pytest.raises(errors.ServiceError, match=r"not done after 0.05 s"):
            client.search(RunQuery())
        SlowStore.release.set()


def test_a_tenant_that_asks_too_often_is_told(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above its burst a tenant is refused by name."""
    monkeypatch.setattr(guard, "RATE_BURST_MAX", 3.0)
    monkeypatch.setattr(guard, "RATE_PER_S_MAX", 1e-9)
    with serve(store) as server, ServiceCatalog(server.address) as client:
        for _ in range(3):
            client.search(RunQuery())
        with pytest.raises(errors.ServiceError, match="calls a second"):
            client.search(RunQuery())


def test_reflection_and_unknown_methods_are_closed(server: ReplayServer) -> None:
    """Only the three services answer."""
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("size", "compression"),
    [(5_000_000, grpc.Compression.NoCompression), (200_000_000, grpc.Compression.Gzip)],
    ids=["large", "gzip bomb"],
)
def test_r6_oversized_requests_are_refused(server: ReplayServer, size: int, compression: Any) -> None:
    """A request above the limit, as sent or decompressed, is refused, and the service goes on."""
    with grpc.insecure_channel(server.address, compression=compression) as channel:
        call = channel.unary_unary("/spanreplay.v1.Runs/Get")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\0" * size, timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        found = replay_pb2_grpc.RunsStub(channel).Search(pb.SearchRequest(), timeout=30)
    assert len(found.runs) == 2


def test_r6_garbage_requests_are_refused(server: ReplayServer, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are not a message end the call with a named error and are not logged."""
    with grpc.insecure_channel(server.address) as channel:
        for method in (
            "Replay/ReplayRun",
            "Replay/ReportReplay",
            "Runs/Search",
            "Runs/Get",
            "Runs/Import",
            "Runs/Drift",
        ):
            call = channel.stream_stream(f"/spanreplay.v1.{method}")
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([b"\xff\xff\xff\xff"]), timeout=30))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert len(replay_pb2_grpc.RunsStub(channel).Search(pb.SearchRequest(), timeout=30).runs) == 2
    assert caplog.records == []


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(
        ["Replay/ReplayRun", "Replay/ReportReplay", "Runs/Get", "Runs/Export", "Runs/Import", "Runs/Drift"]
    ),
    content=st.binary(max_size=200) | st.text(max_size=60).map(_run_id_field),
)
def test_r6_fuzzed_requests_end_in_an_error_of_ours(server: ReplayServer, method: str, content: bytes) -> None:
    """Any request is answered or refused by name, and never makes the service fail."""
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream(f"/spanreplay.v1.{method}")
        try:
            list(call(iter([content]), timeout=30))
        except grpc.RpcError as exc:
            error = map_error(exc, server.address)
            assert not isinstance(error, errors.ServiceError), error


def test_r6_a_port_of_a_browser_gets_no_answer(server: ReplayServer) -> None:
    """Plain HTTP/1.1 on the port is closed without any of our content."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"HTTP/1.1 200" not in received
