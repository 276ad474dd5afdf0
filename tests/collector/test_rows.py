"""Spans as rows: how they are filed, and that nothing in them stops a load."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model import attributes as names
from spanreplay.model.errors import DamagedRecording
from spanreplay.recording.otlp.otlp import encode_attributes
from spanreplay_collector.store.rows import (
    BLOB_COLUMNS,
    BOUNDARY_COLUMNS,
    NO_DAY,
    SPAN_COLUMNS,
    Batch,
    build_batches,
    day_of_run,
    derive_run_id,
    parse_run_id,
)
from support.runs import make_run_id

TRACE = bytes(range(16))
NOON_NS = 1_790_000_000_000_000_000


def _payload(resource: dict[str, Any], attributes: dict[str, Any], **span: Any) -> bytes:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(encode_attributes(resource))
    values = {"trace_id": TRACE, "span_id": b"12345678", "start_time_unix_nano": NOON_NS, **span}
    resource_spans.scope_spans.add().spans.append(Span(**values, attributes=encode_attributes(attributes)))
    return request.SerializeToString()


def _build(payloads: Sequence[bytes]) -> Batch:
    (batch,) = build_batches("t", payloads)
    return batch


def _run_of(payload: bytes) -> bytes:
    (run_id,) = {row[1] for row in _build([payload]).spans}
    assert isinstance(run_id, bytes)
    return run_id


def test_run_of_a_span_is_its_own_attribute_before_its_resource() -> None:
    """A span is filed under the run that it names, else under the one that its resource names."""
    own, shared = make_run_id(1), make_run_id(2)
    assert _run_of(_payload({names.RUN_ID: shared}, {names.RUN_ID: own})).hex() == own
    assert _run_of(_payload({names.RUN_ID: shared}, {})).hex() == shared
    assert _run_of(_payload({names.RUN_ID: shared}, {names.RUN_ID: "rubbish"})).hex() == shared


def test_run_of_an_unnamed_span_is_its_trace_and_day() -> None:
    """Spans of one trace on one day share a derived UUIDv7 of that day; another trace has another run."""
    run_id = _run_of(_payload({}, {}))
    assert run_id == derive_run_id(TRACE, NOON_NS + 3_600_000_000_000)
    assert run_id != derive_run_id(TRACE[::-1], NOON_NS)
    assert day_of_run(run_id) == date(2026, 9, 21)
    assert run_id[6] >> 4 == 7
    assert run_id[8] >> 6 == 2


@pytest.mark.parametrize(
    ("run_id", "day"),
    [
        (make_run_id(), date(2026, 6, 25)),
        ("00" * 16, NO_DAY),
        ("ff" * 16, NO_DAY),
        ("5b" * 16, NO_DAY),
        ("ffffffffffff7000" + "80" * 8, NO_DAY),
    ],
    ids=["uuid7", "zero", "ones", "random", "far_future"],
)
def test_day_of_run_is_bounded(run_id: str, day: date) -> None:
    """An id without a plausible time goes to one partition, so that no sender can open thousands."""
    parsed = parse_run_id(run_id)
    assert parsed is not None
    assert day_of_run(parsed) == day


@pytest.mark.parametrize("text", ["", "0" * 31, "g" * 32, 7, None, "é" * 32])
def test_parse_run_id_refuses_what_is_none(text: object) -> None:
    """Only 32 hexadecimal digits are a run id."""
    assert parse_run_id(text) is None


@pytest.mark.parametrize(
    "odd",
    [
        {names.SEQ: -1, names.INDEX: 2**63 - 1, names.END_SEQ: "x", names.PARENT: -(2**63)},
        {names.META: "not json", names.REDACTIONS: "[1]", names.ENV: "{", names.MANIFEST: "[" * 5000},
        {names.META: '{"temperature": 1e999, "seed": 1e99, "tokens_in": -5, "model": ["a"], "x": NaN}'},
        {names.META: '{"model": "\\ud800", "tokens_out": 99999999999999999999999}'},
        {names.KEY: b"bytes", names.NAME: 5, names.OUTCOME: ["ok"], names.REQUEST: {"a": 1}},
        {names.MANIFEST: '{"calls": -3, "dropped": "many", "holes": 7}', names.ENV: '{"git_sha": 7}'},
    ],
    ids=["numbers", "json", "floats", "surrogate", "types", "manifest"],
)
@pytest.mark.parametrize("kind", ["llm", "run"])
def test_rows_of_odd_attributes_fit_their_columns(kind: str, odd: dict[str, Any]) -> None:
    """A span with values that no recorder writes still makes rows of the right width."""
    attributes = {names.SCHEMA: "1", names.KIND: kind, names.RUN_ID: make_run_id(), **odd}
    batch = _build([_payload({}, attributes)])
    (span,), (boundary,) = batch.spans, batch.boundaries
    assert len(span) == len(SPAN_COLUMNS)
    assert len(boundary) == len(BOUNDARY_COLUMNS)
    assert len(BLOB_COLUMNS) == 5
    for value, (_, kind_of_column) in zip(boundary, BOUNDARY_COLUMNS, strict=True):
        if kind_of_column.startswith("UInt"):
            assert 0 <= value < 2 ** int(kind_of_column[4:])


@pytest.mark.parametrize(
    "span_ids", [(b"", b""), (b"\0" * 8, b"\0" * 8), (b"123", b"123")], ids=["empty", "zero", "short"]
)
def test_spans_with_invalid_ids_do_not_replace_each_other(span_ids: tuple[bytes, bytes]) -> None:
    """Spans with invalid ids are all kept: their content tells them apart."""
    payloads = [_payload({}, {"n": n}, span_id=span_id) for n, span_id in enumerate(span_ids)]
    rows = _build(payloads).spans
    assert len({row[5] for row in rows}) == 2
    assert all(len(row[5]) == 8 for row in rows)


def test_build_batch_foreign_bytes_are_named() -> None:
    """A payload that is not an OTLP request is refused by its position and size, without its content."""
    with pytest.raises(DamagedRecording, match=r"payload 1 of 2 \(6 bytes\)"):
        _build([b"", b"secret"])


def test_c5_batches_are_bounded_and_hold_every_span() -> None:
    """A load above the size of a batch comes in several, the same ones each time, with no span lost or duplicated."""
    payloads = [
        _payload({"service.name": "a"}, {"place": place, "text": "x" * 1000}, span_id=place.to_bytes(8, "big"))
        for place in range(1, 26)
    ]
    joined = b"".join(payloads[:20])
    for limit in ({"rows_max": 4}, {"bytes_max": 4 * 1100}):
        batches = list(build_batches("t", [joined, *payloads[20:]], **limit))
        assert [len(batch.spans) for batch in batches] == [4] * 6 + [1]
        assert [row[5] for batch in batches for row in batch.spans] == [n.to_bytes(8, "big") for n in range(1, 26)]
        assert batches == list(build_batches("t", [joined, *payloads[20:]], **limit))
        for batch in batches:  # a batch stands alone: everything that its rows refer to is in it
            assert {row[-5] for row in batch.spans} <= set(batch.blobs[batch.spans[0][1]])


def test_c5_no_batch_comes_before_all_payloads_were_checked() -> None:
    """A payload that is not a request fails the load before the first row, not in the middle."""
    good = _payload({}, {})
    with pytest.raises(DamagedRecording, match="payload 1 of 2"):
        next(build_batches("t", [good, b"\xff"], rows_max=1))
