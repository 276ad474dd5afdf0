"""The first record of a span stays, whatever comes later, by any route and after any merge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import Outcome, Recording
from spanreplay.model.errors import SourceError
from spanreplay.recording import bundle
from spanreplay.recording.catalog import RunQuery, summarize
from spanreplay.recording.otlp import otlp
from spanreplay.recording.remote.client import ServiceCatalog
from spanreplay.recording.seal.check import find_tampering
from spanreplay.recording.seal.tree import LEAF_VERSION, hash_leaf, hash_root
from spanreplay.recording.spool.reader import SpoolCatalog
from spanreplay_collector.store import firsts
from spanreplay_collector.store.store import Store
from support.collector import run_collector
from support.runs import make_call, make_payload, make_recording, make_request, make_run_id
from support.service import serve
from support.stores import fresh_chdb_url

TENANT = "default"
CALLS = 4


def _sealed(recording: Recording) -> Recording:
    """A recording whose manifest states the root of its calls; anybody can compute such a seal."""
    leaves = [hash_leaf(call, LEAF_VERSION) for call in recording.calls]
    manifest = {"calls": len(leaves), "leaves": len(leaves), "leaf_version": LEAF_VERSION, "root": hash_root(leaves)}
    return replace(recording, root=replace(recording.root, manifest=manifest))


ORIGINAL = _sealed(make_recording(make_run_id(61), calls=CALLS))


def _changed_call(**changes: object) -> Recording:
    first, second, *rest = ORIGINAL.calls
    forged = replace(second, response='{"value": 999999}', **changes)  # type: ignore[arg-type]  # fields of a call
    return _sealed(replace(ORIGINAL, calls=(first, forged, *rest)))


def _added_call() -> Recording:
    added = make_call(ORIGINAL.run_id, CALLS + 1, response='{"value": 999999}')
    return _sealed(replace(ORIGINAL, calls=(*ORIGINAL.calls, added)))


def _other_root() -> Recording:
    return replace(ORIGINAL, root=replace(_changed_call().root, span_id="77" * 8, user_id="mallory"))


END_NS = ORIGINAL.calls[1].end_ns
FORGERIES: dict[str, Callable[[], Recording]] = {
    "same_times": _changed_call,
    "later_end": lambda: _changed_call(end_ns=END_NS + 10**12),
    "earlier_end": lambda: _changed_call(end_ns=END_NS - 1),
    "other_seq": lambda: _changed_call(seq=99),
    "other_trace": lambda: _changed_call(trace_id="01" * 16),
    "added_call": _added_call,
    "other_root": _other_root,
}
APART = {"added_call": 2, "other_root": 1}
"""Number of records that differ; a changed call also changes the seal in the root."""


def _merge(store: Store) -> None:
    with store._engine.client() as client:
        for table in ("spans", "boundaries", "blobs", "runs"):
            client.command(f"OPTIMIZE TABLE {table} FINAL")


def _read(store: Store) -> Recording:
    return otlp.build_recording(
        map(ExportTraceServiceRequest.FromString, store.read_run(TENANT, ORIGINAL.run_id)), ORIGINAL.run_id
    )


def _check_original(store: Store, payloads: list[bytes]) -> None:
    """Assert that every reader sees the original run, before and after every merge."""
    for _ in range(2):
        assert store.read_run(TENANT, ORIGINAL.run_id) == payloads
        assert _read(store) == ORIGINAL
        assert find_tampering(_read(store)) == ""
        assert store.search(TENANT, RunQuery()) == [summarize(ORIGINAL)]
        _merge(store)


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.sampled(5)
def test_r5_a_stored_run_never_changes(store: Store, name: str) -> None:
    """Other content under the ids of a run is counted and kept apart; reads, merges and the seal use the first."""
    store.load(TENANT, [make_payload(ORIGINAL)], "genuine")
    payloads = store.read_run(TENANT, ORIGINAL.run_id)
    forged = FORGERIES[name]()
    apart = APART.get(name, 2)
    for number in range(2):  # the second time under another token, as when a sender retries
        taken = store.load(TENANT, [make_payload(forged)], f"forged-{number}")
        assert taken == len(forged.calls) + 1 - apart
    assert store.count_apart(TENANT, ORIGINAL.run_id) == apart
    assert store.count_apart("other", ORIGINAL.run_id) == 0
    assert store.apart_spans == 2 * apart
    _check_original(store, payloads)


def test_r5_within_one_load_the_first_record_stays(store: Store) -> None:
    """If one load has two final records of one span, the first becomes part of the run."""
    store.load(TENANT, [make_payload(ORIGINAL), make_payload(_changed_call(end_ns=END_NS + 5))], "both")
    assert _read(store) == ORIGINAL
    assert store.count_apart(TENANT, ORIGINAL.run_id) == 2


def test_r5_records_of_earlier_releases_stay_too(store: Store) -> None:
    """A store that was filled before versions encoded the arrival order keeps its records as well."""
    store.load(TENANT, [make_payload(ORIGINAL)], "genuine")
    payloads = store.read_run(TENANT, ORIGINAL.run_id)
    with store._engine.client() as client:
        for table in ("spans", "boundaries"):
            client.command(f"CREATE TABLE old_{table} AS {table}")
            client.command(f"INSERT INTO old_{table} SELECT * REPLACE (end_ns AS version) FROM {table}")
            client.command(f"EXCHANGE TABLES old_{table} AND {table}")
    store.load(TENANT, [make_payload(_changed_call(end_ns=END_NS + 5))], "forged")
    _check_original(store, payloads)


def test_r5_an_insert_that_nobody_looked_at_loses_every_merge(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """If two collectors of one server both find nothing stored, the merge keeps the record that came first."""
    store.load(TENANT, [make_payload(ORIGINAL)], "genuine")
    payloads = store.read_run(TENANT, ORIGINAL.run_id)
    monkeypatch.setattr(firsts, "_read_known", lambda *_: iter(()))
    monkeypatch.setattr(firsts, "_read_closed", lambda *_: frozenset())
    store.load(TENANT, [make_payload(_changed_call(end_ns=END_NS + 10**12))], "forged")
    for _ in range(2):
        assert store.read_run(TENANT, ORIGINAL.run_id) == payloads
        _merge(store)


def test_r5_what_is_kept_apart_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All spans with other content are counted, and only a limited number is kept."""
    monkeypatch.setattr(firsts, "APART_PER_LOAD_MAX", 1)
    store.load(TENANT, [make_payload(ORIGINAL)], "genuine")
    assert store.load(TENANT, [make_payload(_changed_call())], "forged") == CALLS - 1
    assert store.apart_spans == 2
    assert store.count_apart(TENANT, ORIGINAL.run_id) == 1


def test_r5_a_run_that_goes_on_takes_its_calls(store: Store) -> None:
    """Calls that arrive one by one, open and then ended, before and after the end of their run, are all accepted."""
    root = replace(ORIGINAL, calls=())
    store.load(TENANT, [make_payload(root)], "root")
    for call in reversed(ORIGINAL.calls):
        opened = replace(call, outcome=Outcome.OPEN.value, response="", end_ns=call.start_ns, end_seq=-1)
        store.load(TENANT, [make_payload(replace(ORIGINAL, calls=(opened,)))], f"open-{call.seq}")
    for call in ORIGINAL.calls:
        store.load(TENANT, [make_payload(replace(ORIGINAL, calls=(call,)))], f"end-{call.seq}")
    assert _read(store) == ORIGINAL
    assert store.apart_spans == 0
    assert store.search(TENANT, RunQuery()) == [summarize(ORIGINAL)]


@contextmanager
def _service(tmp_path: Path) -> Iterator[tuple[Store, str, ServiceCatalog, Callable[[], None]]]:
    with Store.open(fresh_chdb_url()) as store:
        store.migrate()
        with (
            run_collector(tmp_path, store) as running,
            serve(store) as server,
            ServiceCatalog(server.address, timeout_s=60) as catalog,
        ):
            yield store, running.http, catalog, running.flush


def test_r5_a_run_behind_a_service_never_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over OTLP and by import, through loader, reads, `.replay` and merges, the first stays, the rest is reported."""
    forged = _changed_call(end_ns=END_NS + 10**12)
    with _service(tmp_path) as (store, otlp_url, catalog, flush), httpx.Client(trust_env=False, timeout=60) as http:
        headers = {"content-type": "application/x-protobuf"}

        def post(recording: Recording) -> None:
            content = make_request(recording).SerializeToString()
            assert http.post(f"{otlp_url}/v1/traces", content=content, headers=headers).status_code == 200
            flush()

        post(ORIGINAL)
        file = catalog.export(ORIGINAL.run_id)
        post(forged)
        with pytest.raises(SourceError, match=r"stored already, and 2 of the file's 5 records differ"):
            catalog.import_bundle(bundle.pack(ORIGINAL.run_id, [make_payload(forged)]))
        assert catalog.import_bundle(file).spans == CALLS + 1
        _merge(store)
        found = catalog.load(ORIGINAL.run_id)
        assert found.calls == ORIGINAL.calls
        assert found.root == replace(ORIGINAL.root, apart=2)
        assert find_tampering(found) == ""
        assert catalog.export(ORIGINAL.run_id) == file
        metrics = http.get(f"{otlp_url}/metrics").text
    assert "spanreplay_kept_apart_spans 4\n" in metrics
    said = [r.getMessage() for r in caplog.records if "kept in the table" in r.getMessage()]
    assert len(said) == 2
    assert all(ORIGINAL.run_id in line and "2 records" in line and "999999" not in line for line in said)


@pytest.mark.parametrize("name", FORGERIES)
def test_r5_a_local_run_never_changes(tmp_path: Path, name: str) -> None:
    """A file with other content for a run in the local directory is refused, but the run's own file is not."""
    catalog = SpoolCatalog(tmp_path)
    genuine = bundle.pack(ORIGINAL.run_id, [make_payload(ORIGINAL)])
    catalog.import_bundle(genuine)
    with pytest.raises(SourceError, match="is here already"):
        catalog.import_bundle(bundle.pack(ORIGINAL.run_id, [make_payload(FORGERIES[name]())]))
    assert catalog.import_bundle(genuine).run_id == ORIGINAL.run_id
    assert catalog.load(ORIGINAL.run_id) == ORIGINAL
