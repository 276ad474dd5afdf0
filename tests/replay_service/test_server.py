"""Answers and errors of the service over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from spanreplay.model import errors
from spanreplay.model.call import RootRecord
from spanreplay.model.config import CALL_BATCH_ITEMS
from spanreplay.recording.catalog import RunQuery, summarize
from spanreplay.recording.remote import wire
from spanreplay.recording.remote.client import AsyncServiceClient, ServiceCatalog
from spanreplay.v1 import replay_pb2 as pb
from spanreplay.v1 import replay_pb2_grpc
from spanreplay_collector.receive.auth import DEFAULT_TENANT
from spanreplay_service import runs
from spanreplay_service.limits import FRESHEN_MISSING_S_MAX, FRESHEN_S_MAX
from spanreplay_service.server import OPTIONS, ReplayServer, ServerSettings
from support.memory_store import MemoryStore, fill
from support.runs import make_payload, make_recording, make_run_id
from support.service import serve


def test_u3_a_generated_client_gets_a_run(server: ReplayServer) -> None:
    """A bare generated stub, as CI would use, receives manifest, calls and end in that order."""
    with grpc.insecure_channel(server.address) as channel:
        stub = replay_pb2_grpc.ReplayStub(channel)
        events = list(stub.ReplayRun(pb.ReplayRunRequest(run_id=make_run_id(1)), timeout=30))
    assert [e.WhichOneof("event") for e in events] == ["manifest", "batch", "end"]
    assert wire.build_recording(events) == make_recording(make_run_id(1))


def test_load_gives_back_what_was_recorded(catalog: ServiceCatalog) -> None:
    """The recording is equal in every field, by whole id, by prefix and with dashes."""
    run_id = make_run_id(2)
    dashed = f"{run_id[:8]}-{run_id[8:12]}-{run_id[12:16]}-{run_id[16:20]}-{run_id[20:]}".upper()
    for name in (run_id, dashed):
        assert catalog.load(name) == make_recording(run_id)


def test_long_runs_travel_in_batches(store: MemoryStore, catalog: ServiceCatalog) -> None:
    """A run of several batches arrives whole and in order."""
    recording = make_recording(make_run_id(77), calls=2 * CALL_BATCH_ITEMS + 1)
    store.load(DEFAULT_TENANT, [make_payload(recording)], "long")
    assert catalog.load(recording.run_id) == recording


def test_search_and_get_agree(server: ReplayServer, catalog: ServiceCatalog) -> None:
    """Search returns the summary of each run, Get the same summary with the calls."""
    recording = make_recording(make_run_id(1))
    found = catalog.search(RunQuery(run_id_prefix=recording.run_id, tool="get_order"))
    assert found == [summarize(recording)]
    assert len(catalog.search(RunQuery())) == 2
    assert catalog.search(RunQuery(user_id="nobody")) == []
    with grpc.insecure_channel(server.address) as channel:
        got = replay_pb2_grpc.RunsStub(channel).Get(pb.GetRequest(run_id=recording.run_id), timeout=30)
    assert wire.summary_from_message(got.summary) == found[0]
    assert tuple(wire.call_from_message(c, recording.run_id) for c in got.calls) == recording.calls


def test_export_import_is_lossless(catalog: ServiceCatalog) -> None:
    """A run exported from one service and imported into another is the same run; importing twice is harmless."""
    content = catalog.export(make_run_id(1))
    other_store = MemoryStore()
    with serve(other_store) as other, ServiceCatalog(other.address) as target:
        imported = target.import_bundle(content)
        assert (imported.run_id, imported.spans) == (make_run_id(1), 5)
        assert target.import_bundle(content) == imported
        assert target.load(imported.run_id) == catalog.load(make_run_id(1))
        assert target.export(imported.run_id) == content
    assert other_store.read_run(DEFAULT_TENANT, make_run_id(1)) == [make_payload(make_recording(make_run_id(1)))]


@pytest.mark.parametrize(
    ("run_id", "error", "message"),
    [
        ("ffffff", errors.RunNotFound, "no run 'ffffff'"),
        ("zzzzzzzz", errors.RunNotFound, "no run 'zzzzzzzz'"),
        ("f" * 32, errors.RunNotFound, "no run 'f{32}'"),
        ("0" * 33, errors.RunNotFound, "no run"),
        ("019f00", errors.AmbiguousRun, "names 2 runs"),
        ("019f", errors.ConfigError, "at least 6"),
        ("", errors.ConfigError, "at least 6"),
    ],
    ids=["unknown", "unknown whole", "not hexadecimal", "too long", "ambiguous", "short", "empty"],
)
def test_a_run_that_is_not_named_is_said_so(
    catalog: ServiceCatalog, run_id: str, error: type[Exception], message: str
) -> None:
    """Every way of requesting an unknown run gives the same error of our tree."""
    for ask in (catalog.load, catalog.export, catalog.phoenix_url):
        with pytest.raises(error, match=message):
            ask(run_id)
    with pytest.raises(error, match=message):
        catalog.report_replay(run_id=run_id, replay_run_id="", verdict="identical", report="{}")


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 no zip", b"\x00" * 3_000_000, "näh".encode()],
    ids=["empty", "cut zip", "zeros", "text"],
)
def test_garbage_is_not_imported(catalog: ServiceCatalog, store: MemoryStore, content: bytes) -> None:
    """Anything but a `.replay` file is refused by name, and nothing is stored."""
    before = catalog.search(RunQuery())
    with pytest.raises((errors.ForeignFile, errors.DamagedRecording)):
        catalog.import_bundle(content)
    assert catalog.search(RunQuery()) == before


def test_a_damaged_file_is_not_imported(catalog: ServiceCatalog) -> None:
    """A `.replay` file whose bytes were changed is refused as damaged or foreign, wherever the change is."""
    content = catalog.export(make_run_id(1))
    for at in range(0, len(content), max(1, len(content) // 40)):
        changed = bytearray(content)
        changed[at] ^= 0x20
        with contextlib.suppress(errors.SourceError):
            # A byte without meaning, such as a zip timestamp, may pass: then nothing may have changed.
            assert catalog.import_bundle(bytes(changed)).run_id == make_run_id(1)
        assert catalog.load(make_run_id(1)) == make_recording(make_run_id(1))


def test_a_file_beyond_the_limit_is_refused(catalog: ServiceCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless import is cut off, with an error that states the size."""
    monkeypatch.setattr(runs, "IMPORT_BYTES_MAX", 1000)
    with pytest.raises(errors.ServiceError, match="larger than 1000 bytes"):
        catalog.import_bundle(b"x" * 1001)


def test_a_taken_port_is_one_clear_error(store: MemoryStore, server: ReplayServer) -> None:
    """A second service on a port is refused, also if another program listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for port in (int(server.address.rpartition(":")[2]), listener.getsockname()[1]):
            with pytest.raises(errors.PortTaken, match=str(port)), serve(store, ServerSettings(port=port)):
                pass


class Sink:
    """A sink that keeps its verdicts."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def forget(self, trace_ids: Sequence[str]) -> bool:
        """Remember which traces were removed."""
        self.forgotten = list(trace_ids)
        return True

    def report(self, *, root: RootRecord, replay_run_id: str, verdict: str, report: dict[str, Any]) -> str:
        """Keep one verdict."""
        self.seen.append({"root": root, "replay_run_id": replay_run_id, "verdict": verdict, "report": report})
        return "http://phoenix/x"


def test_a_verdict_reaches_the_sink(store: MemoryStore) -> None:
    """ReportReplay passes the verdict on whole and answers with its location."""
    sink = Sink()
    report = {"schema": "divergence/1", "verdict": "diverged", "text": "größer"}
    with serve(store, sink=sink) as server, ServiceCatalog(server.address) as client:
        url = client.report_replay(
            run_id=make_run_id(1), replay_run_id=make_run_id(9), verdict="diverged", report=json.dumps(report)
        )
    assert url == "http://phoenix/x"
    assert sink.seen == [
        {
            "root": make_recording(make_run_id(1)).root,
            "replay_run_id": make_run_id(9),
            "verdict": "diverged",
            "report": report,
        }
    ]


def test_a_verdict_without_a_sink_is_taken(catalog: ServiceCatalog) -> None:
    """Without Phoenix a verdict is accepted and shown nowhere; an invalid one is refused."""
    run_id = make_run_id(1)
    assert catalog.report_replay(run_id=run_id, replay_run_id="", verdict="identical", report="") == ""
    with pytest.raises(errors.ConfigError, match="not a verdict: 'fine'"):
        catalog.report_replay(run_id=run_id, replay_run_id="", verdict="fine", report="{}")
    with pytest.raises(errors.ConfigError, match="report is not"):
        catalog.report_replay(run_id=run_id, replay_run_id="", verdict="identical", report="[1]")


def test_phoenix_link_leads_to_the_root_span(store: MemoryStore) -> None:
    """With Phoenix, a run's link opens its root span; without it, there is no link."""
    with (
        serve(store, ServerSettings(port=0, phoenix_url="http://127.0.0.1:6006/")) as server,
        ServiceCatalog(server.address) as client,
    ):
        link = client.phoenix_url(make_run_id(1))
    assert link == f"http://127.0.0.1:6006/redirects/spans/{2**60:016x}"
    with serve(store) as server, ServiceCatalog(server.address) as client:
        assert client.phoenix_url(make_run_id(1)) == ""


class BrokenStore(MemoryStore):
    """A store that fails as configured."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def read_run(self, tenant: str, run_id: str) -> list[bytes]:
        """Fail."""
        raise self._error


@pytest.mark.parametrize(
    ("raised", "arrives", "message"),
    [
        (errors.StoreError("the disk is full", hint="free some"), errors.ServiceError, "the disk is full"),
        (errors.NewerSchema("schema '9'"), errors.NewerSchema, "schema '9'"),
        (ValueError("password=hunter2"), errors.ServiceError, "its log has the reason"),
    ],
    ids=["store", "schema", "defect"],
)
def test_errors_of_the_store_arrive_named(
    raised: Exception, arrives: type[errors.SpanreplayError], message: str
) -> None:
    """Our errors arrive with message and hint; of a defect nothing but the fact is disclosed."""
    with (
        serve(BrokenStore(raised)) as server,
        ServiceCatalog(server.address) as client,
        pytest.raises(errors.SpanreplayError, match=message) as caught,
    ):
        client.load(make_run_id(1))
    assert type(caught.value) is arrives
    assert caught.value.hint == getattr(raised, "hint", "")
    assert "hunter2" not in str(caught.value)


def test_long_error_messages_fit_the_metadata() -> None:
    """A message of any length and script is cut, and still arrives as the same error."""
    error = errors.RunNotFound("ü" * 50_000, hint="→" * 50_000)
    with (
        serve(BrokenStore(error)) as server,
        ServiceCatalog(server.address) as client,
        pytest.raises(errors.RunNotFound, match=r"^ü+$"),
    ):
        client.load(make_run_id(1))


def test_a_run_larger_than_a_message_is_streamed(catalog: ServiceCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Get refuses a run that does not fit, its link is omitted, and ReplayRun still returns the whole run."""
    monkeypatch.setattr(runs, "GRPC_MESSAGE_BYTES_MAX", 1000)
    assert catalog.phoenix_url(make_run_id(1)) == ""
    assert catalog.load(make_run_id(1)) == make_recording(make_run_id(1))


def test_reads_wait_for_what_was_acknowledged(store: MemoryStore) -> None:
    """Each read first waits for the newest spans, and goes on without them if they take too long."""
    number = iter(range(10, 20))

    async def freshen(timeout_s: float) -> None:
        assert timeout_s == FRESHEN_S_MAX
        fill(store, next(number))
        raise TimeoutError

    with serve(store, freshen=freshen) as server, ServiceCatalog(server.address) as client:
        assert client.load(make_run_id(10)).run_id == make_run_id(10)
        assert make_run_id(11) in [s.root.run_id for s in client.search(RunQuery())]
        assert client.export(make_run_id(12))
        client.report_replay(run_id=make_run_id(13), replay_run_id="", verdict="identical", report="{}")


@pytest.mark.parametrize("is_found", [True, False])
def test_a_run_is_said_to_be_missing_only_by_a_store_that_has_all(store: MemoryStore, is_found: bool) -> None:
    """A store that is behind is waited for once more; then the error says that it is behind, and to try again."""
    waits: list[float] = []

    async def freshen(timeout_s: float) -> None:
        waits.append(timeout_s)
        if is_found and len(waits) == 2:
            fill(store, 30)
        raise TimeoutError

    with serve(store, freshen=freshen) as server, ServiceCatalog(server.address) as client:
        if is_found:
            assert client.load(make_run_id(30)).run_id == make_run_id(30)
        else:
            with pytest.raises(errors.SpanreplayError, match="the run may have arrived") as caught:
                client.load(make_run_id(30))
            assert not isinstance(caught.value, errors.RunNotFound)
    assert waits == [FRESHEN_S_MAX, FRESHEN_MISSING_S_MAX]


def test_the_port_is_never_shared() -> None:
    """Two services on one port would each get half of the calls."""
    assert ("grpc.so_reuseport", 0) in OPTIONS


def test_async_client_gives_the_same(store: MemoryStore, server: ReplayServer) -> None:
    """The asyncio client answers and fails like the blocking one."""
    run_id = make_run_id(1)

    async def ask() -> None:
        async with AsyncServiceClient(server.address) as client:
            assert await client.load(run_id) == make_recording(run_id)
            assert len(await client.search(RunQuery())) == 2
            content = await client.export(run_id)
            assert (await client.import_bundle(content)).run_id == run_id
            assert await client.phoenix_url(run_id) == ""
            url = await client.report_replay(run_id=run_id, replay_run_id="", verdict="identical", report="{}")
            assert url == ""
            with pytest.raises(errors.RunNotFound):
                await client.load("ffffff")

    asyncio.run(ask())


def test_many_clients_at_once(server: ReplayServer) -> None:
    """Forty threads load at the same time and each gets its run."""
    results: list[str] = []

    def load(number: int) -> None:
        with ServiceCatalog(server.address) as client:
            results.append(client.load(make_run_id(1 + number % 2)).run_id)

    threads = [threading.Thread(target=load, args=(n,)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == sorted([make_run_id(1)] * 20 + [make_run_id(2)] * 20)
