"""The wire contract carries records without loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model import errors
from spanreplay.model.call import CallRecord, Recording, RootRecord
from spanreplay.model.config import CALL_BATCH_BYTES_MAX, CALL_BATCH_ITEMS
from spanreplay.recording.catalog import RunQuery, RunSummary
from spanreplay.recording.remote import wire
from spanreplay.v1 import replay_pb2 as pb

RUN_ID = "0192f0c4a1b27c3d8e4f5a6b7c8d9e0f"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
# Lone surrogates included: JSON may name them by escape.
json_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
json_values = st.recursive(
    json_leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=10), json_values, max_size=4)
counts = st.dictionaries(texts, st.integers(0, 2**40), max_size=4)
u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
u64 = st.integers(0, 2**64 - 1)


def _fields(record: type, **given_fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = [f.name for f in dataclasses.fields(record)]
    return st.builds(record, **{name: given_fields.get(name, texts) for name in names})


calls: st.SearchStrategy[CallRecord] = _fields(
    CallRecord,
    run_id=st.just(RUN_ID),
    seq=u32,
    index=u32,
    end_seq=i64,
    parent=i64,
    start_ns=i64,
    end_ns=i64,
    joint=i64,
    clocks=st.lists(i64, max_size=4).map(tuple),
    meta=objects,
    redactions=counts,
)
roots: st.SearchStrategy[RootRecord] = _fields(
    RootRecord,
    run_id=st.just(RUN_ID),
    start_ns=i64,
    end_ns=i64,
    env=objects,
    manifest=objects,
    apart=st.integers(0, 2**32 - 1),
)
summaries: st.SearchStrategy[RunSummary] = _fields(
    RunSummary,
    root=roots,
    calls=u32,
    llm_calls=u32,
    errors=u32,
    tokens_in=u64,
    tokens_out=u64,
    tools=st.lists(texts, max_size=4).map(tuple),
)
queries: st.SearchStrategy[RunQuery] = _fields(
    RunQuery, since_ns=i64, until_ns=i64, limit=st.integers(1, 1000), include_replays=st.booleans()
)


def call(seq: int = 1, **changes: Any) -> CallRecord:
    """A plain call."""
    values: dict[str, Any] = {
        "run_id": RUN_ID,
        "seq": seq,
        "kind": "tool",
        "name": "get_order",
        "lane": "main",
        "index": 0,
        "key": "a" * 64,
        "keyspec": "tool/1",
        "request": "{}",
    }
    return CallRecord(**{**values, **changes})


@given(calls)
def test_call_survives_the_wire(record: CallRecord) -> None:
    """Every field of a call arrives as it was sent, through the serialised bytes."""
    message = pb.Call.FromString(wire.call_to_message(record).SerializeToString())
    assert wire.call_from_message(message, RUN_ID) == record


@given(roots)
def test_root_survives_the_wire(record: RootRecord) -> None:
    """Every field of a root record arrives as it was sent."""
    message = pb.Run.FromString(wire.root_to_message(record).SerializeToString())
    assert wire.root_from_message(message) == record


@given(summaries)
def test_summary_survives_the_wire(summary: RunSummary) -> None:
    """Every field of a summary arrives as it was sent."""
    message = pb.RunSummary.FromString(wire.summary_to_message(summary).SerializeToString())
    assert wire.summary_from_message(message) == summary


@given(queries)
def test_query_survives_the_wire(query: RunQuery) -> None:
    """Every field of a query arrives as it was sent."""
    message = pb.SearchRequest.FromString(wire.query_to_message(query).SerializeToString())
    assert wire.query_from_message(message) == query


@given(roots, st.lists(calls, max_size=5))
def test_recording_survives_the_stream(root: RootRecord, some: list[CallRecord]) -> None:
    """A recording is the same after it was split into events and joined again."""
    recording = Recording(root, tuple(some))
    assert wire.build_recording(wire.iter_replay_events(recording)) == recording


@pytest.mark.parametrize(
    ("message", "record", "elsewhere"),
    [
        (pb.Call, CallRecord, {"run_id"}),
        (pb.Run, RootRecord, set()),
        (pb.SearchRequest, RunQuery, set()),
    ],
    ids=["call", "run", "query"],
)
def test_messages_have_the_fields_of_the_records(message: Any, record: Any, elsewhere: set[str]) -> None:
    """A field that is added to a record but not to the contract fails this test."""
    sent = {f.name for f in message.DESCRIPTOR.fields}
    assert sent == {f.name for f in dataclasses.fields(record)} - elsewhere - {
        "number"
    }  # counted where the calls arrive


@pytest.mark.parametrize(("asked", "used"), [(0, 50), (7, 7), (1000, 1000), (4_000_000_000, 1000)])
def test_search_limit_is_bounded(asked: int, used: int) -> None:
    """A query asks for at most 1000 runs."""
    assert wire.query_from_message(pb.SearchRequest(limit=asked)).limit == used


def test_batches_are_bounded_by_items_and_bytes() -> None:
    """No batch exceeds the limits of calls and bytes; a larger call is sent alone."""
    small = [call(n) for n in range(CALL_BATCH_ITEMS + 10)]
    large = [call(1000, request="x" * (CALL_BATCH_BYTES_MAX + 1))]
    medium = [call(2000 + n, request="y" * (CALL_BATCH_BYTES_MAX // 3)) for n in range(5)]
    recording = Recording(RootRecord(RUN_ID), (*small, *large, *medium))
    events = list(wire.iter_replay_events(recording))
    batches = [e.batch.calls for e in events if e.WhichOneof("event") == "batch"]
    assert [len(b) for b in batches] == [CALL_BATCH_ITEMS, 10, 1, 2, 2, 1]
    assert all(len(b) == 1 or sum(c.ByteSize() for c in b) <= CALL_BATCH_BYTES_MAX for b in batches)
    assert events[-1].end.calls == len(recording.calls)


def test_a_stream_that_breaks_off_is_no_recording() -> None:
    """A stream with missing calls at its end is an error, never a shorter run."""
    events = list(wire.iter_replay_events(Recording(RootRecord(RUN_ID), (call(1), call(2)))))
    with pytest.raises(errors.DamagedRecording, match="broke off"):
        wire.build_recording(events[:-1])
    with pytest.raises(errors.DamagedRecording, match="0 of 2 calls"):
        wire.build_recording([events[0], events[-1]])
    with pytest.raises(errors.DamagedRecording, match="before the manifest"):
        wire.build_recording(events[1:])


def test_events_of_a_newer_service_are_passed_over() -> None:
    """An event that this version does not know is ignored."""
    recording = Recording(RootRecord(RUN_ID), (call(1),))
    events = list(wire.iter_replay_events(recording))
    assert wire.build_recording([events[0], pb.ReplayRunResponse(), *events[1:]]) == recording


@pytest.mark.parametrize(
    "record",
    [
        call(-1),
        call(2**32),
        call(1, request="\ud800"),
        call(1, meta={"when": object()}),
        call(1, start_ns=2**63),
    ],
    ids=["negative", "too large", "lone surrogate", "not JSON", "time"],
)
def test_a_call_that_cannot_be_sent_is_named(record: CallRecord) -> None:
    """A call that does not fit the contract is an error that names the call and shows none of its content."""
    with pytest.raises(errors.DamagedRecording, match=f"call {record.seq} of run {RUN_ID}"):
        wire.call_to_message(record)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000], ids=["cut", "array", "deep"])
def test_bad_json_is_damage(text: str) -> None:
    """JSON fields that are not JSON objects are reported as damage."""
    with pytest.raises(errors.DamagedRecording, match="meta is not"):
        wire.call_from_message(pb.Call(meta=text), RUN_ID)


def _all_errors() -> list[type[errors.SpanreplayError]]:
    found: list[type[errors.SpanreplayError]] = []
    todo: list[type[errors.SpanreplayError]] = [errors.SpanreplayError]
    while todo:
        error = todo.pop()
        found.append(error)
        todo.extend(error.__subclasses__())
    return [e for e in found if e.__module__ == errors.__name__]


@pytest.mark.parametrize("error", _all_errors(), ids=lambda e: e.__name__)
def test_every_error_has_a_reason_that_names_it(error: type[errors.SpanreplayError]) -> None:
    """Every error is restored as its own class, or as ServiceError if it is internal to the service."""
    raised = error("$", "object") if error is errors.Unserializable else error("m", hint="h")
    row = wire.find_reason(raised)
    arrived = wire.build_error(row.reason, "m", "h")
    if issubclass(error, (errors.SourceError, errors.ConfigError, errors.AccessDenied)):
        assert type(arrived) is error
    else:
        assert type(arrived) is errors.ServiceError
    assert (str(arrived), arrived.hint) == ("m", "h")


def test_a_reason_of_a_newer_service_is_a_service_error() -> None:
    """A reason that this version does not know is still an error of our tree."""
    assert type(wire.build_error("NEW", "m")) is errors.ServiceError


@given(st.binary(max_size=100), st.integers(1, 30))
def test_pieces_make_the_whole(content: bytes, piece_bytes: int) -> None:
    """Pieces are bounded, there is at least one, and together they give the content."""
    pieces = list(wire.split_bytes(content, piece_bytes))
    assert b"".join(pieces) == content
    assert pieces
    assert all(len(p) <= piece_bytes for p in pieces)
