"""A batch on the wire has each resource once and no open record beside its end; nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import Outcome, Recording
from spanreplay.recording.otlp import otlp
from spanreplay.recording.spool.merge import _OPEN_PAIR, merge_requests
from support.otlp_strategies import requests
from support.recordings import split_request
from support.runs import make_payload, make_recording, make_request, make_run_id

RUN = make_run_id(3)


def _spans(payloads: Sequence[bytes]) -> list[bytes]:
    """Every span with its resource and scope, as comparable bytes."""
    found = []
    for payload in payloads:
        request = ExportTraceServiceRequest.FromString(payload)
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    alone = ExportTraceServiceRequest()
                    outer = alone.resource_spans.add()
                    outer.CopyFrom(resource_spans)
                    del outer.scope_spans[:]
                    inner = outer.scope_spans.add()
                    inner.CopyFrom(scope_spans)
                    del inner.spans[:]
                    inner.spans.add().CopyFrom(span)
                    found.append(alone.SerializeToString(deterministic=True))
    return sorted(found)


def _opened(recording: Recording) -> Recording:
    calls = tuple(
        replace(c, outcome=Outcome.OPEN.value, response="", end_ns=c.start_ns, end_seq=-1) for c in recording.calls
    )
    return Recording(replace(recording.root, outcome=Outcome.OPEN.value, manifest={}), calls)


def _split(recording: Recording) -> list[bytes]:
    return split_request(make_request(recording))


@settings(max_examples=100, deadline=None)
@given(st.lists(requests(RUN), max_size=4))
def test_l29_merging_keeps_every_span_of_anybody(some: list[ExportTraceServiceRequest]) -> None:
    """Spans with any attributes, resources and scopes are unchanged in the merged request, which parses."""
    payloads = [request.SerializeToString() for request in some]
    ids = [span.span_id + span.trace_id for r in some for f in otlp.iter_spans(r) for span in [f.span]]
    if len(set(ids)) == len(ids):
        assert _spans([merge_requests(payloads)]) == _spans(payloads)


@pytest.mark.parametrize("order", ["open_first", "end_first", "twice_open"])
def test_l29_an_open_record_beside_its_end_stays_behind(order: str) -> None:
    """If a call started and ended within a batch, only its end is sent, in whatever order they were written."""
    recording = make_recording(RUN, calls=12)
    opened, ended = _split(_opened(recording)), _split(recording)
    payloads = {
        "open_first": opened + ended,
        "end_first": ended + opened,
        "twice_open": opened + opened + ended,
    }[order]
    merged = merge_requests(payloads)
    assert _spans([merged]) == _spans(ended)
    request = ExportTraceServiceRequest.FromString(merged)
    assert [len(each.scope_spans) for each in request.resource_spans] == [1]
    assert otlp.build_recording([request]) == recording


def test_l29_a_call_that_has_not_ended_travels_open() -> None:
    """An open record without its end in the batch is sent; of several, the last, which is the most complete."""
    recording = make_recording(RUN, calls=3)
    opened = _opened(recording)
    further = replace(opened, calls=tuple(replace(c, response='"so far"') for c in opened.calls))
    merged = merge_requests([*_split(opened), *_split(further)])
    assert otlp.build_recording([ExportTraceServiceRequest.FromString(merged)]) == further


def test_l29_text_that_looks_like_an_open_record_is_text() -> None:
    """Content that contains the bytes of an open outcome does not make its call open."""
    recording = make_recording(RUN, calls=1)
    looks = replace(recording.calls[0], response=_OPEN_PAIR.decode())
    recording = replace(recording, calls=(looks,))
    merged = merge_requests([*_split(recording), *_split(_opened(recording))])
    assert otlp.build_recording([ExportTraceServiceRequest.FromString(merged)]) == recording


@pytest.mark.parametrize("odd", [b"", b"\xff", b"\x0a\x05\x12", b"\x12\x00", b"\x0b", b"\x0a\xff\xff\xff\xff\xff\xff"])
def test_l29_what_is_no_request_of_ours_is_sent_as_it_is(odd: bytes) -> None:
    """Bytes that are laid out differently are joined, so that the collector can refuse them one by one."""
    payload = make_payload(make_recording(RUN, calls=2))
    merged = merge_requests([payload, odd, payload])
    assert merged == (payload + odd + payload if odd else merge_requests([payload, payload]))


def test_l29_a_batch_is_less_than_half_of_its_records() -> None:
    """With a resource as the SDK makes it, twenty spans of twelve calls take less than half of their former size."""
    request = make_request(make_recording(RUN, calls=12))
    request.resource_spans[0].resource.attributes.extend(otlp.encode_attributes({"process.command_args": ["x" * 400]}))
    opened = make_request(_opened(make_recording(RUN, calls=8)))
    opened.resource_spans[0].resource.CopyFrom(request.resource_spans[0].resource)
    payloads = [*split_request(opened), *split_request(request)]
    assert len(merge_requests(payloads)) * 2 < sum(map(len, payloads))
