"""What is too old is removed, what somebody pinned or what failed stays, what somebody erases is gone for good."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path

import pytest

from spanreplay.model.call import Recording
from spanreplay.model.errors import RunNotFound
from spanreplay.recording.catalog import RunQuery
from spanreplay_collector.store import retention
from spanreplay_collector.store.store import Store
from support.runs import make_call, make_payload, make_recording

TENANT = "default"
DAY_NS = 86_400 * 1_000_000_000
_BYTES = {"String": "bytes"}
FIRST_NS = int(datetime(2026, 6, 1, 12, tzinfo=timezone.utc).timestamp()) * 1_000_000_000


def _make_run(number: int, day: int, *, lasts_days: int = 0, trace: str = "", **root: object) -> Recording:
    """A run that began on a day of June, with text of its own."""
    start_ns = FIRST_NS + (day - 1) * DAY_NS
    run_id = f"{start_ns // 1_000_000:012x}70008{number:015x}"
    made = make_recording(run_id, user_id=f"u-{number}", session_id=f"s-{number}")
    end_ns = start_ns + lasts_days * DAY_NS + 1_000
    calls = tuple(
        make_call(
            run_id,
            seq,
            start_ns=start_ns,
            end_ns=end_ns,
            trace_id=trace or f"{number + 1:032x}",
            request=f'{{"secret of": "user {number}", "history": "{"x" * 2000}"}}',
        )
        for seq in range(1, 4)
    )
    changed = {"manifest": {"calls": 3}, "trace_id": calls[0].trace_id, **root}
    return replace(made, root=replace(made.root, start_ns=start_ns, end_ns=end_ns, **changed), calls=calls)  # type: ignore[arg-type]


def _load(store: Store, *runs: Recording, tenant: str = TENANT) -> None:
    for run in runs:
        store.load(tenant, [make_payload(run)], f"{run.run_id}/{len(run.calls)}")


def _found(store: Store, tenant: str = TENANT) -> set[str]:
    return {each.root.run_id for each in store.search(tenant, RunQuery(include_replays=True, limit=100))}


def _rows(store: Store) -> dict[str, int]:
    """How many rows each table holds, hidden ones of earlier versions too."""
    with store._engine.client() as client:
        return {
            table: int(client.query(f"SELECT count() FROM {table}").result_rows[0][0]) for table in retention.TABLES
        }


def _before(day: int) -> int:
    return FIRST_NS + (day - 1) * DAY_NS


def test_s45_c9_a_pinned_run_survives_and_the_others_are_gone(store: Store) -> None:
    """Runs, spans and blobs of an old day go; the pinned run reads as before, and so do younger ones."""
    old, pinned, young = _make_run(1, 1), _make_run(2, 1), _make_run(3, 20)
    _load(store, old, pinned, young)
    before = {run.run_id: store.read_run(TENANT, run.run_id) for run in (pinned, young)}
    assert store.pin(TENANT, pinned.run_id[:20] + pinned.run_id[20:], reason="ticket 904") == pinned.run_id
    removed = store.remove_older(_before(10))
    assert (removed.runs, removed.days) == (1, 1)
    assert _found(store) == {pinned.run_id, young.run_id}
    for run_id, payloads in before.items():
        assert store.read_run(TENANT, run_id) == payloads
    with pytest.raises(RunNotFound):
        store.read_run(TENANT, old.run_id)
    assert store.remove_older(_before(10)) == retention.Retained(0, 1)


def test_s45_a_run_that_is_unpinned_goes(store: Store) -> None:
    """Also a failed one, which would stay otherwise."""
    failed, pinned = _make_run(1, 1, outcome="error"), _make_run(2, 1)
    _load(store, failed, pinned)
    store.pin(TENANT, pinned.run_id)
    store.remove_older(_before(10))
    assert _found(store) == {failed.run_id, pinned.run_id}
    for run in (failed, pinned):
        store.pin(TENANT, run.run_id, is_pinned=False)
    store.remove_older(_before(10))
    assert _found(store) == set()
    assert not any(_rows(store).values())


def test_s45_failures_may_go_too(store: Store) -> None:
    """Where nobody wants to keep them."""
    _load(store, _make_run(1, 1, outcome="error"))
    store.remove_older(_before(10), keep_failures=False)
    assert _found(store) == set()


def test_s45_a_run_counts_by_its_last_span(store: Store) -> None:
    """A service's process that began long ago and still records is not old."""
    process = _make_run(1, 1, lasts_days=15)
    _load(store, process, _make_run(2, 1))
    store.remove_older(_before(10))
    assert _found(store) == {process.run_id}


def test_s45_the_process_of_a_pinned_unit_stays(store: Store) -> None:
    """A request replays with the start of its process, however old that is."""
    process, other = _make_run(1, 1), _make_run(2, 1)
    unit = _make_run(3, 5, outcome="error", env={"unit": {"process": process.run_id, "start": 1}})
    _load(store, process, other, unit)
    store.remove_older(_before(10))
    assert _found(store) == {process.run_id, unit.run_id}


def test_s45_a_run_that_names_no_time_goes_when_it_is_old(store: Store) -> None:
    """Ids that are no UUIDv7 share a partition, from which only the old ones are removed."""
    runs = [_make_run(1, 1), _make_run(2, 20)]
    renamed = [
        replace(run, root=replace(run.root, run_id=run_id), calls=tuple(replace(c, run_id=run_id) for c in run.calls))
        for run, run_id in zip(runs, ("a" * 32, "b" * 32), strict=True)
    ]
    _load(store, *renamed)
    store.remove_older(_before(10))
    assert _found(store) == {"b" * 32}


def test_c9_a_user_is_erased_everywhere_and_stays_so(store: Store, tmp_path: Path) -> None:
    """Runs, replays, child processes and pins of one user go; nobody else's; what arrives later is not stored."""
    mine = _make_run(1, 1)
    replay = _make_run(2, 3, replay_of=mine.run_id, user_id="")
    child = _make_run(3, 1, user_id="", env={"parent": {"run_id": mine.run_id, "seq": 1}})
    other = _make_run(4, 1)
    _load(store, mine, replay, child, other)
    _load(store, mine, tenant="another")
    store.pin(TENANT, mine.run_id)
    before = store.read_run(TENANT, other.run_id)
    found = store.find_related(TENANT, users=["u-1"])
    assert set(found) == {mine.run_id, replay.run_id, child.run_id}
    store.erase(TENANT, found)
    assert _found(store) == {other.run_id}
    assert store.read_run(TENANT, other.run_id) == before
    assert _found(store, "another") == {mine.run_id}, "a tenant erases only its own"
    late = replace(mine, calls=(*mine.calls, make_call(mine.run_id, 9)))
    assert store.load(TENANT, [make_payload(late), make_payload(_make_run(5, 1))], "late") == 4
    assert store.erased_spans == len(late.calls) + 1
    assert _found(store) == {other.run_id, _make_run(5, 1).run_id}
    assert store.is_erased(TENANT, mine.run_id)
    with store._engine.client() as client:
        kept = "SELECT body FROM blobs WHERE tenant = 'default'"
        texts = [bytes(body) for (body,) in client.query(kept, query_formats=_BYTES).result_rows]
    assert not any(b"user 1" in text for text in texts), "not even its parts are stored"
    assert any(b"user 5" in text for text in texts)


def test_c9_a_session_and_a_run_are_erased(store: Store) -> None:
    """By what people have at hand."""
    runs = [_make_run(number, 1) for number in range(1, 4)]
    _load(store, *runs)
    store.erase(TENANT, store.find_related(TENANT, sessions=["s-1"], run_ids=[runs[1].run_id]))
    assert _found(store) == {runs[2].run_id}


def test_c9_spans_of_other_instrumentors_are_erased_with_their_trace(store: Store) -> None:
    """They name no run, and hold the same texts."""
    mine = _make_run(1, 1)
    foreign = make_payload_of_trace(mine)
    _load(store, mine)
    store.load(TENANT, [foreign], "foreign")
    store.erase(TENANT, [mine.run_id])
    assert not any(_rows(store).values())


def make_payload_of_trace(run: Recording) -> bytes:
    """A span without a run id in the trace of a run."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id = bytes.fromhex(run.root.trace_id), os.urandom(8)
    span.name, span.start_time_unix_nano, span.end_time_unix_nano = "SELECT", run.root.start_ns, run.root.end_ns
    return request.SerializeToString()


def test_c9_nothing_of_an_erased_run_is_left_on_disk(tmp_path: Path) -> None:
    """Not in parts that are no longer read either."""
    url = f"chdb://{tmp_path / 'store'}"
    with Store.open(url) as store:
        store.migrate()
        mine, other = _make_run(1, 1), _make_run(2, 1)
        _load(store, mine, other)
        store.erase(TENANT, [mine.run_id])
        with store._engine.client() as client:
            parts = (
                "SELECT table, sum(rows) FROM system.parts WHERE active AND table IN ('spans', 'blobs') GROUP BY table"
            )
            rows = {str(table): int(count) for table, count in client.query(parts).result_rows}
            texts = [
                bytes(body) for (body,) in client.query("SELECT body FROM blobs", query_formats=_BYTES).result_rows
            ]
    assert rows["spans"] == len(other.calls) + 1
    assert rows["blobs"] == len(texts)
    assert not any(b"user 1" in text for text in texts)
    assert any(b"user 2" in text for text in texts)


def test_s45_a_day_of_nobody_is_dropped_whole(store: Store) -> None:
    """Days in between, with a pinned run, stay."""
    runs = [_make_run(number, day) for number, day in enumerate((1, 2, 3, 4), 1)]
    _load(store, *runs)
    store.pin(TENANT, runs[1].run_id)
    removed = store.remove_older(_before(4))
    assert removed == retention.Retained(2, 3)
    with store._engine.client() as client:
        days = {row[0] for row in client.query("SELECT DISTINCT day FROM blobs").result_rows}
    assert days == {date(2026, 6, 2), date(2026, 6, 4)}
