"""Clients of the replay service: addresses, errors and imports."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from spanreplay.model import errors
from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.remote import client, wire
from spanreplay.recording.remote.client import ServiceCatalog
from spanreplay.v1 import replay_pb2, replay_pb2_grpc
from support.memory_store import MemoryStore
from support.runs import make_payload, make_recording, make_run_id
from support.service import serve


class Refusal(grpc.RpcError):  # type: ignore[misc] # grpcio ships no types
    """An error as raised by grpc."""

    def __init__(self, code: str, details: str | None = "", trailing: Any = ()) -> None:
        super().__init__()
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        """The status."""
        return grpc.StatusCode[self._code]

    def details(self) -> str | None:
        """The peer's message."""
        return self._details

    def trailing_metadata(self) -> Any:
        """Metadata sent with the status."""
        return self._trailing


def stated(reason: str, message: str, hint: str = "", domain: str = wire.ERROR_DOMAIN) -> Refusal:
    """An error that carries an ErrorInfo."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata={"hint": hint} if hint else {})
    packed = AnyMessage()
    packed.Pack(info)
    status = status_pb2.Status(code=5, message=message, details=[packed])
    trailing = (("x-other", "1"), (wire.STATUS_DETAILS_KEY, status.SerializeToString()))
    return Refusal("NOT_FOUND", "first line only", trailing)


@pytest.mark.parametrize(
    ("endpoint", "address", "is_tls"),
    [
        ("localhost", "localhost:4319", False),
        ("127.0.0.1:9", "127.0.0.1:9", False),
        (" http://ci.example:443/ ", "ci.example:443", False),
        ("https://ci.example", "ci.example:4319", True),
        ("grpcs://ci.example:1", "ci.example:1", True),
        ("[::1]", "[::1]:4319", False),
        ("[::1]:5", "[::1]:5", False),
    ],
)
def test_endpoint_says_what_is_dialled(endpoint: str, address: str, is_tls: bool) -> None:
    """An endpoint is a host with an optional port and scheme; `.address` is the dialled address."""
    assert client.parse_endpoint(endpoint) == (address, is_tls)
    with ServiceCatalog(endpoint) as catalog:
        assert catalog.address == address


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "http://",
        "host:0",
        "host:65536",
        "host:x",
        ":4319",
        "ftp://host",
        "host/path",
        "a@b",
        "unix:/x",
        "a b",
    ],
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    """Any other endpoint is a ConfigError that quotes it."""
    with pytest.raises(errors.ConfigError, match="not an address"):
        client.parse_endpoint(endpoint)


def test_a_token_that_cannot_travel_is_refused() -> None:
    """A token that no header can carry is refused without being shown."""
    with pytest.raises(errors.ConfigError, match="not ASCII") as caught:
        ServiceCatalog("localhost", "gehéim")
    assert "gehéim" not in str(caught.value)


@pytest.mark.parametrize("reason", wire.list_reasons())
def test_every_reason_maps_to_an_error(reason: str) -> None:
    """Each reason that the service may state becomes an error of our tree with its message and hint."""
    error = client.map_error(stated(reason, "what happened", "what to do"), "h:1")
    assert isinstance(error, (errors.SourceError, errors.ServiceError, errors.ConfigError))
    assert (str(error), error.hint) == ("what happened", "what to do")


def test_an_error_info_of_someone_else_is_not_ours() -> None:
    """An ErrorInfo of a proxy, or bytes that are not one, fall back to the status code."""
    foreign = stated("RUN_NOT_FOUND", "m", domain="googleapis.com")
    garbage = Refusal("NOT_FOUND", "x", ((wire.STATUS_DETAILS_KEY, b"\xff\xff"),))
    text = Refusal("NOT_FOUND", "x", ((wire.STATUS_DETAILS_KEY, "text"),))
    for refusal in (foreign, garbage, text):
        assert type(client.map_error(refusal, "h:1")) is errors.ServiceError


@pytest.mark.parametrize("code", [c.name for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_every_status_maps_to_one_clear_line(code: str) -> None:
    """Each gRPC status becomes an error of our tree: one line that names the address."""
    for details in ("first\nsecond " + "x" * 10_000, None):
        error = client.map_error(Refusal(code, details, None), "host:1")
        assert isinstance(error, errors.ServiceError)
        assert "host:1" in str(error)
        assert "\n" not in str(error)
        assert len(str(error)) < 500


def test_nobody_listening_names_endpoint_and_remedy() -> None:
    """A closed port gives ServiceUnavailable with the endpoint and `spanreplay up` as remedy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with ServiceCatalog(f"127.0.0.1:{port}", timeout_s=30) as catalog:
        calls: list[Callable[[], object]] = [
            lambda: catalog.load(make_run_id()),
            lambda: catalog.search(RunQuery()),
            lambda: catalog.export(make_run_id()),
            lambda: catalog.import_bundle(b"x"),
            lambda: catalog.phoenix_url(make_run_id()),
            lambda: catalog.report_replay(run_id="x", replay_run_id="", verdict="identical", report=""),
        ]
        for call in calls:
            with pytest.raises(errors.ServiceUnavailable, match=f"127.0.0.1:{port}") as caught:
                call()
            assert "spanreplay up" in caught.value.hint


def test_a_silent_peer_is_unavailable() -> None:
    """A call to a listener that never answers ends after the timeout, which the error states."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ServiceCatalog(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2) as catalog,
        pytest.raises(errors.ServiceUnavailable, match=r"127\.0\.0\.1"),
    ):
        catalog.search(RunQuery())


def test_reads_are_retried_and_writes_are_not() -> None:
    """The service config retries UNAVAILABLE for reads; calls that change something are sent once."""
    options = dict(client._channel_options("127.0.0.1:1"))
    (method_config,) = json.loads(options["grpc.service_config"])["methodConfig"]
    assert method_config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    retried = {(n["service"], n["method"]) for n in method_config["name"]}
    known = {
        (service.full_name, method.name)
        for service in replay_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    writes = {("spanreplay.v1.Runs", name) for name in ("Import", "Pin", "Erase")}
    assert known - retried == {("spanreplay.v1.Replay", "ReportReplay"), *writes}
    assert retried <= known


def test_a_read_survives_a_refusal() -> None:
    """A read is tried a third time after a server answered UNAVAILABLE twice."""
    asked: list[str] = []

    class Flaky(replay_pb2_grpc.RunsServicer):
        def Search(self, request: Any, context: Any) -> Any:
            asked.append("Search")
            if len(asked) < 3:
                context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
            return replay_pb2.SearchResponse()

        def Get(self, request: Any, context: Any) -> Any:
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

        def Export(self, request: Any, context: Any) -> Any:
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

        def Drift(self, request: Any, context: Any) -> Any:
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

        def Pin(self, request: Any, context: Any) -> Any:
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

        def Erase(self, request: Any, context: Any) -> Any:
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

        def Import(self, request_iterator: Any, context: Any) -> Any:
            asked.append("Import")
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        replay_pb2_grpc.add_RunsServicer_to_server(Flaky(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with ServiceCatalog(f"127.0.0.1:{port}") as catalog:
                assert catalog.search(RunQuery()) == []
                with pytest.raises(errors.ServiceUnavailable, match="draining"):
                    catalog.import_bundle(b"x")
        finally:
            server.stop(0).wait()
    assert asked == ["Search"] * 3 + ["Import"]


def test_a_proxy_variable_does_not_catch_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with HTTP proxies set for the agent, a service on this machine is dialled directly."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    store = MemoryStore()
    store.load("default", [make_payload(make_recording())], "t")
    with serve(store) as server, ServiceCatalog(server.address) as catalog:
        assert catalog.load(make_run_id()) == make_recording()


def _run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_the_module_imports_no_grpc() -> None:
    """Importing the client costs neither grpc nor protobuf."""
    heavy = ("grpc", "google.protobuf")
    code = f"import sys, spanreplay.recording.remote.client; print([m for m in {heavy} if m in sys.modules])"
    assert _run(code) == "[]"


@pytest.mark.parametrize("missing", ["grpc", "google.rpc"])
def test_missing_grpcio_says_what_to_install(missing: str) -> None:
    """Without the extra, making a client is a ConfigError whose hint is the command to run."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from spanreplay.recording.remote.client import ServiceCatalog\n"
        "from spanreplay.model.errors import ConfigError\n"
        "try:\n    ServiceCatalog('localhost')\n"
        "except ConfigError as exc:\n    print(exc.hint)\n"
    )
    assert _run(code) == "pip install 'spanreplay[client] @ git+https://github.com/spanreplay/spanreplay'"


def test_dialling_says_nothing_on_stderr() -> None:
    """A failed dial raises one error; gRPC's own core writes nothing."""
    code = (
        "from spanreplay.recording.remote.client import ServiceCatalog\n"
        "from spanreplay.recording.catalog import RunQuery\n"
        "from spanreplay.model.errors import ServiceUnavailable\n"
        "try:\n    ServiceCatalog('127.0.0.1:1').search(RunQuery())\n"
        "except ServiceUnavailable:\n    print('unavailable')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert (result.stdout, result.stderr) == ("unavailable\n", "")
