"""`spanreplay up` as a process: everything sent over OTLP comes out over gRPC, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spanreplay.model import errors
from spanreplay.model.call import Recording
from spanreplay.model.config import CALL_BATCH_ITEMS
from spanreplay.recording import bundle
from spanreplay.recording.catalog import Erasure, RunQuery, summarize
from spanreplay.recording.model_drift import DriftQuery
from spanreplay.recording.remote.client import AsyncServiceClient, ServiceCatalog
from support.runs import make_payload, make_recording, make_run_id
from support.up_server import UpServer, command, start_up

RECORDINGS = (
    make_recording(make_run_id(1)),
    make_recording(make_run_id(2), calls=50, user_id="u-8", app="trades"),
    make_recording(make_run_id(3), calls=2 * CALL_BATCH_ITEMS + 1),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpServer]:
    """A server that has received three runs over OTLP."""
    with start_up(tmp_path_factory.mktemp("up")) as running:
        for recording in RECORDINGS:
            running.export(make_payload(recording))
        yield running


@pytest.fixture
def catalog(server: UpServer) -> Iterator[ServiceCatalog]:
    """A client of that server."""
    with ServiceCatalog(server.endpoint) as client:
        yield client


@pytest.mark.parametrize("recording", RECORDINGS, ids=["4 calls", "50 calls", "513 calls"])
def test_u3_what_was_sent_comes_back(catalog: ServiceCatalog, recording: Recording) -> None:
    """A run sent over OTLP/HTTP is streamed back equal in every field, right after its acknowledgement."""
    assert catalog.load(recording.run_id) == recording


def test_u3_search_and_get_say_the_same(catalog: ServiceCatalog) -> None:
    """The store's summaries equal those of the recordings."""
    found = catalog.search(RunQuery(limit=1000))
    assert sorted(found, key=lambda s: s.root.run_id) == [summarize(r) for r in RECORDINGS]
    assert [s.root.run_id for s in catalog.search(RunQuery(user_id="u-8"))] == [make_run_id(2)]
    assert [s.root.run_id for s in catalog.search(RunQuery(app="trades", tool="get_order"))] == [make_run_id(2)]
    assert catalog.search(RunQuery(tool="never_called")) == []


def test_spans_are_found_at_once(server: UpServer, catalog: ServiceCatalog) -> None:
    """Twenty times, a run is complete in the read after its acknowledgement."""
    for number in range(100, 120):
        recording = make_recording(make_run_id(number), calls=2, app="at-once")
        server.export(make_payload(recording))
        assert catalog.load(recording.run_id) == recording


def test_unknown_and_ambiguous_runs(catalog: ServiceCatalog) -> None:
    """An unknown run, and a prefix of several, are errors that say so."""
    with pytest.raises(errors.RunNotFound, match="fedcba"):
        catalog.load("fedcba")
    with pytest.raises(errors.AmbiguousRun, match=make_run_id(1)[:8]):
        catalog.load(make_run_id(1)[:8])


def test_a_run_moves_to_another_server_without_loss(server: UpServer, catalog: ServiceCatalog, tmp_path: Path) -> None:
    """Exported and imported into an empty server, the recording, summary and file are the same."""
    for recording in RECORDINGS:
        content = catalog.export(recording.run_id)
        assert catalog.export(recording.run_id) == content
    bundles = [catalog.export(r.run_id) for r in RECORDINGS]
    with start_up(tmp_path) as other, ServiceCatalog(other.endpoint) as target:
        for recording, content in zip(RECORDINGS, bundles, strict=True):
            for _ in range(2):  # a second time changes nothing
                imported = target.import_bundle(content)
                assert (imported.run_id, imported.spans) == (recording.run_id, len(recording.calls) + 1)
            assert target.load(recording.run_id) == recording
            assert target.export(recording.run_id) == content
        assert len(target.search(RunQuery())) == len(RECORDINGS)
        with pytest.raises(errors.ForeignFile):
            target.import_bundle(b"not a file of ours")


def test_async_client_against_the_real_store(server: UpServer) -> None:
    """The asyncio client loads twenty runs at the same time."""

    async def load() -> list[Recording]:
        async with AsyncServiceClient(server.endpoint) as client:
            return list(await asyncio.gather(*(client.load(make_run_id(2)) for _ in range(20))))

    assert asyncio.run(load()) == [RECORDINGS[1]] * 20


def test_health_says_serving(server: UpServer) -> None:
    """grpc.health.v1 answers for the server and both services; an unknown service is unknown."""
    with grpc.insecure_channel(server.endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "spanreplay.v1.Replay", "spanreplay.v1.Runs"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=30)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_kill_and_restart_keeps_everything(tmp_path: Path) -> None:
    """Everything acknowledged before kill -9 is there after a restart, complete and once."""
    with start_up(tmp_path) as first:
        for recording in RECORDINGS:
            first.export(make_payload(recording))
        first.kill()
        assert (first.data_dir / "up.json").exists()
    with start_up(tmp_path) as second, ServiceCatalog(second.endpoint) as client:
        assert [client.load(r.run_id) for r in RECORDINGS] == list(RECORDINGS)
        assert sorted(client.search(RunQuery()), key=lambda s: s.root.run_id) == [summarize(r) for r in RECORDINGS]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """A signal ends it with status 0, nothing loaded is lost, and `up.json` exists as long as the server runs."""
    with start_up(tmp_path) as running:
        status = json.loads((running.data_dir / "up.json").read_text(encoding="utf-8"))
        assert status == running.status
        assert status["pid"] == running.process.pid
        running.export(make_payload(RECORDINGS[0]))
        for _ in range(2):  # a terminal and a wrapper may both forward one
            running.process.send_signal(number)
        assert running.process.wait(60) == 0
    assert not (running.data_dir / "up.json").exists()
    assert "Traceback" not in running.log
    with start_up(tmp_path) as again, ServiceCatalog(again.endpoint) as client:
        assert client.load(RECORDINGS[0].run_id) == RECORDINGS[0]


def _run(data_dir: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(data_dir, arguments),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environ},
    )


def _assert_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert (result.returncode, result.stdout) == (1, "")
    lines = [line for line in result.stderr.splitlines() if not line.startswith("hint: ")]
    assert len(lines) == 1, result.stderr
    assert all(word in lines[0] for word in words), lines[0]


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port", "--port"])
def test_a_taken_port_is_one_line_and_status_1(tmp_path: Path, option: str) -> None:
    """A port in use ends `up` with one line that names it; nothing is left running or locked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        _assert_one_line(_run(tmp_path / "server", option, port), port)
    with start_up(tmp_path):
        pass


def test_a_second_server_on_the_same_directory_is_one_line(server: UpServer) -> None:
    """An embedded store belongs to one process; the second is told so, and the first goes on."""
    _assert_one_line(_run(server.data_dir), "another `spanreplay up`", str(server.data_dir))
    with ServiceCatalog(server.endpoint) as client:
        assert client.load(make_run_id(1)) == RECORDINGS[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), ("refusing to listen",)),
        (("--tls-cert", "c.pem"), ("--tls-key",)),
        (("--tokens", "/nowhere"), ("/nowhere",)),
        (("--clickhouse-url", "http://127.0.0.1:1/db"), ("127.0.0.1:1",)),
        (("--clickhouse-url", "ftp://x"), ("ftp",)),
    ],
    ids=["public", "half of TLS", "no tokens file", "no ClickHouse", "no URL"],
)
def test_settings_that_cannot_work_are_one_line(
    tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """A setting that cannot be used ends `up` with one line."""
    _assert_one_line(_run(tmp_path / "server", *arguments), *words)


def test_a_data_dir_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    """A data directory that cannot be made is named in the error."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    _assert_one_line(_run(tmp_path / "file" / "server"), "file/server")


def test_r6_tokens_guard_both_ways_in(tmp_path: Path) -> None:
    """With tokens, export and read need one, and a tenant reads only its own exports."""
    tokens = tmp_path / "tokens.json"
    entries = [{"tenant": "acme", "token": "a-token"}, {"tenant": "other", "token": "o-token"}]
    tokens.write_text(json.dumps(entries), encoding="utf-8")
    with start_up(tmp_path, arguments=("--tokens", str(tokens))) as running:
        payload = make_payload(RECORDINGS[0])
        for token in ("", "wrong"):
            with pytest.raises(OSError, match="401"):
                running.export(payload, token=token)
            with ServiceCatalog(running.endpoint, token) as client, pytest.raises(errors.AccessDenied):
                client.load(make_run_id(1))
        running.export(payload, token="a-token")
        with ServiceCatalog(running.endpoint, "a-token") as client:
            assert client.load(make_run_id(1)) == RECORDINGS[0]
        with ServiceCatalog(running.endpoint, "o-token") as client:
            assert client.search(RunQuery()) == []
            with pytest.raises(errors.RunNotFound):
                client.load(make_run_id(1))
            # The other tenant may hold a run with the same id; neither sees the other's.
            other = make_recording(make_run_id(1), calls=1)
            running.export(make_payload(other), token="o-token")
            assert client.load(make_run_id(1)) == other
        with ServiceCatalog(running.endpoint, "a-token") as client:
            assert client.load(make_run_id(1)) == RECORDINGS[0]


def test_c9_only_a_token_that_may_erase_erases(tmp_path: Path) -> None:
    """An agent's token can't remove what it recorded, and nobody another tenant's runs."""
    tokens = tmp_path / "tokens.json"
    entries = [
        {"tenant": "acme", "token": "agent"},
        {"tenant": "acme", "token": "officer", "erase": True},
        {"tenant": "other", "token": "o-officer", "erase": True},
    ]
    tokens.write_text(json.dumps(entries), encoding="utf-8")
    chosen = Erasure(user_ids=("u-7",))
    with start_up(tmp_path, arguments=("--tokens", str(tokens))) as running:
        for recording in RECORDINGS:
            running.export(make_payload(recording), token="agent")
        with ServiceCatalog(running.endpoint, "agent") as client:
            assert client.pin(make_run_id(1), reason="ticket") == make_run_id(1)
            before = client.search(RunQuery())
            with pytest.raises(errors.AccessDenied, match="may not erase"):
                client.erase(chosen)
        with ServiceCatalog(running.endpoint, "o-officer") as client:
            assert client.erase(chosen).run_ids == ()
        with ServiceCatalog(running.endpoint, "officer") as client:
            with pytest.raises(errors.ConfigError, match="none of them empty"):
                client.erase(Erasure(user_ids=("",)))
            assert client.search(RunQuery()) == before
            found = client.erase(chosen, is_trial=True)
            assert client.search(RunQuery()) == before
            erased = client.erase(chosen)
            assert set(erased.run_ids) == set(found.run_ids) == {make_run_id(1), make_run_id(3)}
            assert {s.root.run_id for s in client.search(RunQuery())} == {make_run_id(2)}
            running.export(make_payload(RECORDINGS[0]), token="agent")
            with pytest.raises(errors.RunNotFound):
                client.load(make_run_id(1))
            with pytest.raises(errors.SourceError, match="was erased here"):
                client.import_bundle(bundle.pack(make_run_id(1), [make_payload(RECORDINGS[0])]))


def test_c8_a_tenant_never_sees_another_tenants_runs(tmp_path: Path) -> None:
    """Listing, searching, loading, pinning, comparing and erasing with a token find the runs of its tenant alone."""
    tokens = tmp_path / "tokens.json"
    entries = [{"tenant": name, "token": f"{name}-token", "erase": True} for name in ("acme", "other")]
    tokens.write_text(json.dumps(entries), encoding="utf-8")
    theirs = make_run_id(1)
    with start_up(tmp_path, arguments=("--tokens", str(tokens))) as running:
        for recording in RECORDINGS:
            running.export(make_payload(recording), token="acme-token")
        with ServiceCatalog(running.endpoint, "acme-token") as client:
            before = client.search(RunQuery(include_replays=True))
            assert len(before) == len(RECORDINGS)
        with ServiceCatalog(running.endpoint, "other-token") as client:
            for query in (RunQuery(include_replays=True), RunQuery(user_id="u-7"), RunQuery(run_id_prefix=theirs[:8])):
                assert client.search(query) == []
            for use in (client.load, client.pin, client.export):
                with pytest.raises(errors.RunNotFound):
                    use(theirs)
            assert client.scan_drift(DriftQuery()).runs == 0
            for chosen in (Erasure(run_ids=(theirs,)), Erasure(user_ids=("u-7",)), Erasure(session_ids=("s-1",))):
                with suppress(errors.RunNotFound):
                    assert client.erase(chosen).run_ids == ()
        with ServiceCatalog(running.endpoint, "acme-token") as client:
            assert client.search(RunQuery(include_replays=True)) == before
            assert client.load(theirs).run_id == theirs


def test_s45_a_service_removes_what_is_old(tmp_path: Path) -> None:
    """With --keep-days old runs go at the start, pinned ones and failures stay."""
    now_ns = time.time_ns()
    old_ns = now_ns - 10 * 86_400 * 10**9
    old, pinned, new = (_aged(number, at_ns) for number, at_ns in enumerate((old_ns, old_ns, now_ns)))
    with start_up(tmp_path) as running:
        for recording in (old, pinned, new):
            running.export(make_payload(recording))
        with ServiceCatalog(running.endpoint) as client:
            client.pin(pinned.run_id)
            assert len(client.search(RunQuery())) == 3
    with start_up(tmp_path, arguments=("--keep-days", "5")) as running, ServiceCatalog(running.endpoint) as client:
        for _ in range(600):
            if len(found := client.search(RunQuery())) == 2:
                break
            time.sleep(0.1)  # the pass runs beside the service
        assert {s.root.run_id for s in found} == {pinned.run_id, new.run_id}
        assert client.load(pinned.run_id) == pinned


def _aged(number: int, at_ns: int) -> Recording:
    run_id = f"{at_ns // 1_000_000:012x}70008{number:015x}"
    made = make_recording(run_id, start_ns=at_ns, end_ns=at_ns + 9)
    return replace(made, calls=tuple(replace(call, start_ns=at_ns, end_ns=at_ns + 5) for call in made.calls))


def test_one_token_from_the_environment(tmp_path: Path) -> None:
    """SPANREPLAY_TOKEN is the token of the default tenant."""
    with start_up(tmp_path, environ={"SPANREPLAY_TOKEN": "s3cret"}) as running:
        running.export(make_payload(RECORDINGS[0]), token="s3cret")
        with ServiceCatalog(running.endpoint, "s3cret") as client:
            assert client.load(make_run_id(1)) == RECORDINGS[0]
        with ServiceCatalog(running.endpoint) as client, pytest.raises(errors.AccessDenied):
            client.load(make_run_id(1))
    assert "s3cret" not in running.log


def test_what_it_says_can_be_pasted(server: UpServer) -> None:
    """The two environment lines are printed, and nothing but JSON goes to standard output."""
    assert f"export OTEL_EXPORTER_OTLP_ENDPOINT={server.otlp_endpoint}\n" in server.log
    assert f"export SPANREPLAY_ENDPOINT={server.endpoint}\n" in server.log
    expected: dict[str, Any] = {"pid": server.process.pid, "phoenix_url": "", "phoenix_port": 0}
    assert {k: server.status[k] for k in expected} == expected
    assert server.endpoint == f"127.0.0.1:{server.status['port']}"
