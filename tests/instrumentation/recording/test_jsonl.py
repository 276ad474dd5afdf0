"""A run as JSON lines: lossless, readable by OTLP tools, refused with the number of the bad line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.errors import DamagedRecording, ForeignFile, NewerSchema, SourceError
from spanreplay.recording.jsonl import read_jsonl, write_jsonl
from spanreplay.recording.otlp.otlp_json import read_request
from support.otlp_strategies import requests
from support.spool_tools import RUN, call, root


def _text(*payloads: bytes) -> bytes:
    return b"".join(write_jsonl(RUN, payloads))


@settings(max_examples=60, deadline=None)
@given(requests(RUN))
def test_s9_every_otlp_request_survives_json_lines(request: ExportTraceServiceRequest) -> None:
    """Ids, bytes, nested values, floats and odd text come back unchanged."""
    run_id, payloads = read_jsonl(_text(request.SerializeToString()))
    assert run_id == RUN
    assert [ExportTraceServiceRequest.FromString(p) for p in payloads] == [request]


def test_s9_lines_are_keyed_by_hash_and_are_otlp() -> None:
    """A call's line begins with its key and position; each line is an OTLP/JSON request with hexadecimal ids."""
    header, line, last = _text(call(seq=2, key="ab" * 32), root()).splitlines()
    assert json.loads(header) == {"format": "spanreplay.jsonl", "version": 1, "run_id": RUN, "spans": 2}
    value = json.loads(line)
    shown = {"key": "ab" * 32, "boundary": "tool:place_order", "lane": "main", "index": 2, "outcome": "ok"}
    assert dict(list(value.items())[:5]) == shown
    assert list(json.loads(last)) == ["resourceSpans"]
    (span,) = value["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["spanId"]) == ("0" * 31 + "1", f"{1002:016x}")
    assert read_request(value) == ExportTraceServiceRequest.FromString(call(seq=2, key="ab" * 32))


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", ForeignFile, "does not begin with a line of JSON"),
        (b"\xff\xfe", ForeignFile, "does not begin with a line of JSON"),
        (b'{"resourceSpans":[]}\n', ForeignFile, "does not say format"),
        (_text().replace(b'"version":1', b'"version":2'), NewerSchema, "has version 2"),
        (_text().replace(RUN.encode(), b"nobody"), DamagedRecording, "lacks version, run_id or spans"),
        (_text(call()) + b"{torn", DamagedRecording, "line 3 of the file is not OTLP/JSON"),
        (_text(call()) + b"[1]\n", DamagedRecording, "line 3 of the file is not a JSON object"),
        (_text(call()).replace(b'"traceId":"0', b'"traceId":"x'), DamagedRecording, "line 2 of the file"),
        (_text(call(), root()).rsplit(b"\n", 2)[0], DamagedRecording, "holds 1 spans, its first line says 2"),
    ],
)
def test_bad_json_lines_are_refused(data: bytes, error: type[SourceError], says: str) -> None:
    """Unreadable input is refused with its line number and a remedy."""
    with pytest.raises(error, match=says) as refused:
        read_jsonl(data)
    assert refused.value.hint


def test_json_lines_may_be_edited() -> None:
    """Blank lines are ignored and lines may be moved by an editor; payloads keep the order of the lines."""
    header, first, second = _text(call(seq=1), call(seq=2)).splitlines()
    _, payloads = read_jsonl(b"\n".join([header, b"", second, b"  ", first]))
    assert [ExportTraceServiceRequest.FromString(p) for p in payloads] == [
        ExportTraceServiceRequest.FromString(call(seq=2)),
        ExportTraceServiceRequest.FromString(call(seq=1)),
    ]
