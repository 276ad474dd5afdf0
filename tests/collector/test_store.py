"""The store on both engines: loaded spans are read back once, whole, and by their owner only."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.model.errors import ConfigError, DamagedRecording, RunNotFound, StoreError
from spanreplay.recording.catalog import RunQuery, summarize
from spanreplay.recording.otlp import otlp
from spanreplay_collector.store import store as store_module
from spanreplay_collector.store.rows import derive_run_id
from spanreplay_collector.store.store import Store
from support.otlp_strategies import requests
from support.runs import TRACE_ID, make_payload, make_recording, make_request, make_run_id

TENANT = "acme"
_numbers = iter(range(1, 1_000_000))


def _spans(payloads: Iterable[bytes]) -> list[bytes]:
    """Every span with its resource and scope, as comparable bytes, in no particular order."""
    found: list[bytes] = []
    for payload in payloads:
        request = ExportTraceServiceRequest.FromString(payload)
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    alone = ExportTraceServiceRequest()
                    holder = alone.resource_spans.add(schema_url=resource_spans.schema_url)
                    holder.resource.CopyFrom(resource_spans.resource)
                    inner = holder.scope_spans.add(schema_url=scope_spans.schema_url)
                    if scope_spans.HasField("scope"):
                        inner.scope.CopyFrom(scope_spans.scope)
                    inner.spans.append(span)
                    found.append(alone.SerializeToString(deterministic=True))
    return sorted(found)


def _recording(store: Store, run_id: str, tenant: str = TENANT) -> Recording:
    return otlp.build_recording(map(ExportTraceServiceRequest.FromString, store.read_run(tenant, run_id)))


def _open(call: CallRecord) -> CallRecord:
    """Return the record that is written when a call starts."""
    return replace(
        call, outcome=Outcome.OPEN.value, response="", end_ns=call.start_ns, end_seq=-1, meta={"model": "gpt-5"}
    )


def _opened(recording: Recording) -> Recording:
    root = replace(recording.root, outcome="open", manifest={}, end_ns=recording.root.start_ns)
    return Recording(root, tuple(_open(c) for c in recording.calls))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(generated=st.data())
def test_store_any_span_is_read_back_equal(store: Store, generated: st.DataObject) -> None:
    """Every attribute with its type, event, link, status, flag, resource and scope comes back as it was."""
    number = next(_numbers)
    run_id = make_run_id(number)
    request = generated.draw(requests(run_id))
    payload = request.SerializeToString()
    expected = _spans([payload])
    assert store.load(TENANT, [payload], f"property-{number}") == len(expected)
    if expected:
        assert _spans(store.read_run(TENANT, run_id)) == expected


def test_store_a_run_is_read_back_in_start_order(store: Store) -> None:
    """Calls come back one per payload, ordered by start, whatever the order and batches they were sent in."""
    recording = make_recording(calls=30)
    parts = [Recording(recording.root, (call,)) for call in recording.calls]
    random.Random(7).shuffle(parts)
    for number, part in enumerate(parts):
        store.load(TENANT, [make_payload(part)], f"part-{number}")
    payloads = store.read_run(TENANT, recording.run_id)
    assert len(payloads) == 31
    seqs = [
        int(otlp.decode_attributes(filed.span.attributes).get("spanreplay.seq", 0))
        for payload in payloads
        for filed in otlp.iter_spans(ExportTraceServiceRequest.FromString(payload))
    ]
    assert seqs == list(range(31))
    assert otlp.build_recording([ExportTraceServiceRequest.FromString(b"".join(payloads))]) == recording


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["open_first", "final_first"])
@pytest.mark.parametrize("is_one_load", [True, False], ids=["together", "apart"])
def test_store_the_final_record_of_a_call_wins(store: Store, order: Sequence[int], is_one_load: bool) -> None:
    """A call that was recorded open and then finished is one finished call, in whatever order its records arrive."""
    recording = make_recording(calls=5)
    both = [make_payload(_opened(recording)), make_payload(recording)]
    payloads = [both[place] for place in order]
    if is_one_load:
        store.load(TENANT, payloads, "both")
    else:
        for number, payload in enumerate(payloads):
            store.load(TENANT, [payload], f"load-{number}")
    assert _recording(store, recording.run_id) == recording
    assert store.search(TENANT, RunQuery()) == [summarize(recording)]


def test_store_an_unfinished_run_is_read_as_far_as_it_came(store: Store) -> None:
    """A run whose process died is readable with its open records, and is incomplete."""
    opened = _opened(make_recording(calls=3))
    store.load(TENANT, [make_payload(opened)], "t")
    assert _recording(store, opened.run_id) == opened
    (summary,) = store.search(TENANT, RunQuery())
    assert summary == summarize(opened)
    assert summary.status == "incomplete"


@pytest.mark.parametrize("token", ["first", "second"], ids=["same_token", "other_token"])
@pytest.mark.parametrize("is_reopened", [False, True], ids=["same_process", "after_restart"])
def test_store_a_repeated_load_changes_nothing(store: Store, store_url: str, token: str, is_reopened: bool) -> None:
    """Loading the same spans again leaves every run and every count as it was."""
    recording = make_recording(calls=9)
    payloads = [make_payload(_opened(recording)), make_payload(recording)]
    store.load(TENANT, payloads, "first")
    with Store.open(store_url) as other:
        repeated = other if is_reopened else store
        assert repeated.load(TENANT, payloads, token) == 20
        assert _recording(repeated, recording.run_id) == recording
        assert repeated.search(TENANT, RunQuery()) == [summarize(recording)]


def test_store_tenants_never_see_each_other(store: Store) -> None:
    """The same run of two tenants under the same token is two runs, and neither tenant finds the other's."""
    mine = make_recording(calls=2, user_id="mine")
    theirs = make_recording(calls=3, user_id="theirs")
    store.load("acme", [make_payload(mine)], "token")
    store.load("other", [make_payload(theirs)], "token")
    only = make_recording(make_run_id(9), calls=1)
    store.load("other", [make_payload(only)], "more")
    assert _recording(store, mine.run_id, "acme") == mine
    assert _recording(store, theirs.run_id, "other") == theirs
    assert [s.root.user_id for s in store.search("acme", RunQuery())] == ["mine"]
    with pytest.raises(RunNotFound):
        store.read_run("acme", only.run_id)
    with pytest.raises(RunNotFound):
        store.resolve_run_id("acme", only.run_id)
    with pytest.raises(RunNotFound):
        store.read_run("nobody", mine.run_id)


def test_store_foreign_spans_are_filed_under_their_run(store: Store) -> None:
    """Spans of other instrumentors come back with the run that their resource names, or with a derived one."""
    recording = make_recording(calls=2)
    request = make_request(recording)
    scope = request.resource_spans[0].scope_spans.add()
    scope.scope.name = "openinference.instrumentation.openai"
    scope.spans.add(trace_id=b"t" * 16, span_id=b"foreign1", name="ChatCompletion", start_time_unix_nano=5)
    store.load(TENANT, [request.SerializeToString()], "t")
    assert _spans(store.read_run(TENANT, recording.run_id)) == _spans([request.SerializeToString()])
    assert _recording(store, recording.run_id) == recording

    del request.resource_spans[0].resource.attributes[:]
    del request.resource_spans[0].scope_spans[0]
    start_ns = 1_790_000_000_000_000_000
    request.resource_spans[0].scope_spans[0].spans[0].start_time_unix_nano = start_ns
    store.load(TENANT, [request.SerializeToString()], "t2")
    derived = derive_run_id(b"t" * 16, start_ns).hex()
    assert _spans(store.read_run(TENANT, derived)) == _spans([request.SerializeToString()])
    assert store.resolve_run_id(TENANT, derived[:16]) == derived


@pytest.mark.parametrize("size", [5 * 1024 * 1024, 17 * 1024 * 1024], ids=["5_MB", "17_MB"])
def test_store_c5_a_large_span_and_its_neighbours_are_whole(store: Store, size: int) -> None:
    """A span of many megabytes is stored whole and does not affect the others of its batch."""
    recording = make_recording(calls=3)
    text = "".join(random.Random(1).choices('abcdefghij \n"é', k=size))
    large = replace(recording.calls[1], response=text)
    recording = Recording(recording.root, (recording.calls[0], large, recording.calls[2]))
    store.load(TENANT, [make_payload(recording)], "t")
    assert _recording(store, recording.run_id) == recording


def test_store_a_history_is_stored_once(store: Store) -> None:
    """Forty calls that resend a growing history take little more space than the history."""
    recording = make_recording(calls=40)
    messages = [f'{{"role": "user", "content": "{number} {"word " * 200}"}}' for number in range(40)]
    calls = tuple(
        replace(call, request=f'{{"body": {{"messages": [{", ".join(messages[: call.seq])}]}}}}')
        for call in recording.calls
    )
    recording = Recording(recording.root, calls)
    for call in calls:  # as the shipper sends it: a batch every half second
        store.load(TENANT, [make_payload(Recording(recording.root, (call,)))], f"t{call.seq}")
    with store._engine.client() as client:
        (row,) = client.query("SELECT sum(length(body)), count() FROM blobs").result_rows
    logical = sum(len(call.request) for call in calls)
    assert row[0] < logical / 15
    assert row[1] < 100
    assert _recording(store, recording.run_id) == recording


def test_store_a_load_over_many_days_is_taken(store: Store) -> None:
    """A backlog that spans more than a hundred partitions loads like any other."""
    recordings = [
        make_recording(f"{1_600_000_000_000 + day * 86_400_000:012x}7000{'8' + '0' * 15}", calls=1)
        for day in range(120)
    ]
    store.load(TENANT, [make_payload(r) for r in recordings], "backlog")
    assert len(store.search(TENANT, RunQuery(limit=1000))) == 120
    assert _recording(store, recordings[0].run_id) == recordings[0]


def test_store_threads_load_and_read_at_the_same_time(store: Store) -> None:
    """Twelve threads that load, read and search share one store without mixing up their runs."""
    start = threading.Barrier(12)

    def work(number: int) -> None:
        start.wait(timeout=60)
        for turn in range(3):
            recording = make_recording(make_run_id(number * 100 + turn), calls=6, user_id=f"u{number}")
            store.load(TENANT, [make_payload(recording)], f"{number}-{turn}")
            assert _recording(store, recording.run_id) == recording
            found = store.search(TENANT, RunQuery(user_id=f"u{number}"))
            assert len(found) == turn + 1

    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(work, number) for number in range(12)]:
            done.result(timeout=120)
    assert len(store.search(TENANT, RunQuery())) == 36


def test_store_the_memory_of_stored_blobs_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's memory of past blobs never exceeds its limit, and forgetting loses nothing."""
    monkeypatch.setattr(store_module, "KNOWN_BLOBS_MAX", 5)
    recording = make_recording(calls=20)
    calls = tuple(replace(c, response="x" * 600 + str(c.seq)) for c in recording.calls)
    recording = Recording(recording.root, calls)
    for number in range(2):
        store.load(TENANT, [make_payload(recording)], f"t{number}")
    assert len(store._known_blobs) <= 5
    assert _recording(store, recording.run_id) == recording


def test_store_a_large_load_is_written_in_bounded_inserts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs that exceed the size of one insert go into several, and a repeated load changes nothing."""
    monkeypatch.setattr(store_module, "INSERT_BYTES_MAX", 5_000)
    recording = make_recording(calls=20)
    calls = tuple(replace(c, response=f"{c.seq} " * 1_000) for c in recording.calls)
    recording = Recording(recording.root, calls)
    for _ in range(2):
        store.load(TENANT, [make_payload(recording)], "t")
        store._known_blobs.clear()
    assert _recording(store, recording.run_id) == recording


def test_store_foreign_bytes_store_nothing(store: Store) -> None:
    """A load with a payload that is not an OTLP request is refused as a whole."""
    recording = make_recording(calls=1)
    with pytest.raises(DamagedRecording):
        store.load(TENANT, [make_payload(recording), b"\xff\xff\xff"], "t")
    with pytest.raises(RunNotFound):
        store.read_run(TENANT, recording.run_id)
    assert store.load(TENANT, [make_payload(recording)], "t") == 2


def test_store_an_empty_load_is_no_load(store: Store) -> None:
    """Empty loads and payloads without spans are accepted and store nothing."""
    assert store.load(TENANT, [], "t") == 0
    assert store.load(TENANT, [b""], "t") == 0
    assert store.search(TENANT, RunQuery()) == []


@pytest.mark.parametrize("run_id", ["", "xyz", "0" * 31, make_run_id(404)])
def test_store_an_unknown_run_is_not_found(store: Store, run_id: str) -> None:
    """Reading a run that does not exist, or with an invalid id, says so."""
    with pytest.raises(RunNotFound, match="run"):
        store.read_run(TENANT, run_id)


def test_store_refuses_a_load_without_tenant_or_token(store: Store) -> None:
    """Without a tenant nobody could read the load; without a token a repetition could not be recognised."""
    payload = make_payload(make_recording(calls=1))
    with pytest.raises(ConfigError):
        store.load(TENANT, [payload], "")
    for tenant in ("", "x" * 200):
        with pytest.raises(StoreError, match="tenant"):
            store.load(tenant, [payload], "t")


def test_store_a_missing_blob_is_damage(store: Store) -> None:
    """A run that lost parts is reported as damaged, never returned with holes."""
    recording = make_recording(calls=1)
    store.load(TENANT, [make_payload(recording)], "t")
    with store._engine.client() as client:
        client.command("TRUNCATE TABLE blobs")
    with pytest.raises(DamagedRecording):
        store.read_run(TENANT, recording.run_id)


def test_store_s3_moving_parts_are_columns(store: Store) -> None:
    """SQL over plain columns finds the one run of a commit whose answering model is not the requested one."""
    planted = make_recording(make_run_id(1), calls=4, env={"git_sha": "c0ffee"})
    odd = replace(
        planted.calls[0],
        kind="llm",
        meta={
            "model": "gpt-x",
            "response_model": "gpt-x-2026-10-01",
            "temperature": 0.7,
            "fingerprint": "fp_1",
            "seed": 7,
            "chunk_ids": "a,b",
        },
    )
    planted = Recording(planted.root, (odd, *planted.calls[1:]))
    others = [make_recording(make_run_id(n), calls=4, env={"git_sha": "c0ffee"}) for n in (2, 3)]
    for number, recording in enumerate([planted, *others]):
        store.load(TENANT, [make_payload(recording)], f"t{number}")
    with store._engine.client() as client:
        rows = client.query(
            "SELECT run, fingerprint, seed, meta['chunk_ids'], user_id, trace_id FROM calls "
            "WHERE tenant = 'acme' AND git_sha = 'c0ffee' AND response_model NOT IN ('', model) AND temperature = 0.7"
        ).result_rows
    assert list(rows) == [(planted.run_id, "fp_1", 7, "a,b", "u-7", bytes.fromhex(TRACE_ID))]


def test_store_closed_is_closed(store_url: str) -> None:
    """Closing twice is fine; a closed store says that it is closed."""
    opened = Store.open(store_url)
    opened.close()
    opened.close()
    with pytest.raises(StoreError, match="closed"):
        opened.search(TENANT, RunQuery())
