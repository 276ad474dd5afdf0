"""Recordings on disk for tests, framed according to the format's description and not by our own writer."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import CallRecord, Recording
from support.runs import START_NS, make_call, make_recording, make_request

_FRAME = struct.Struct("<II")


def split_request(request: ExportTraceServiceRequest) -> list[bytes]:
    """Return one payload per span, as a recorder writes them."""
    payloads = []
    resource_spans = request.resource_spans[0]
    scope_spans = resource_spans.scope_spans[0]
    for span in scope_spans.spans:
        single = ExportTraceServiceRequest()
        added = single.resource_spans.add()
        added.resource.CopyFrom(resource_spans.resource)
        scope = added.scope_spans.add()
        scope.scope.CopyFrom(scope_spans.scope)
        scope.spans.append(span)
        payloads.append(single.SerializeToString())
    return payloads


def write_spool(directory: Path, recording: Recording) -> Path:
    """Write a recording as a spool file below a data directory."""
    spool = directory / "spool"
    spool.mkdir(parents=True, exist_ok=True)
    path = spool / f"{recording.run_id}.1-0.spool"
    frames = [b"SPRSPOOL1\n"]
    for payload in split_request(make_request(recording)):
        frames.append(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
    path.write_bytes(b"".join(frames))
    return path


def _sse(*events: dict[str, Any]) -> list[list[Any]]:
    return [[i * 10, f"data: {json.dumps(e)}\n\n"] for i, e in enumerate(events)] + [[99, "data: [DONE]\n\n"]]


_ASK: dict[str, Any] = {"model": "gpt-5", "messages": [{"role": "user", "content": "sell 1,000 worth"}]}
_HEAD: dict[str, Any] = {"method": "POST", "url": "http://127.0.0.1/v1/chat/completions", "headers": {}}


def make_incident(number: int = 0, *, start_ns: int = START_NS, user_id: str = "u-7") -> Recording:
    """Return a trading agent's run that orders for $190,000: four calls in two lanes, one nested, one streamed."""
    run_id = f"{start_ns // 1_000_000:012x}7{number:03x}8{0:015x}"
    recording = make_recording(
        run_id,
        4,
        app="trade-bot",
        start_ns=start_ns,
        end_ns=start_ns + 41_200_000_000,
        user_id=user_id,
        manifest={"calls": 4, "exit": 0},
        env={"argv": ["agent.py"], "python": "3.11.7", "git_sha": "1a2b3c4d5e6f7a8b"},
    )
    calls = (_make_decision(run_id), *_make_order(run_id), _make_summary(run_id))
    return Recording(recording.root, calls)


def _make_decision(run_id: str) -> CallRecord:
    order = {"function": {"name": "place_order", "arguments": '{"notional": 190000}'}}
    answer = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [order]}}]}
    return make_call(
        run_id,
        1,
        name="openai.chat.completions",
        kind="llm",
        request=json.dumps({**_HEAD, "body": _ASK}),
        response=json.dumps({"status": 200, "chunks": [[5, json.dumps(answer)]], "end": "complete"}),
        meta={
            "model": "gpt-5",
            "response_model": "gpt-5-2026-10-01",
            "temperature": 0.7,
            "tokens_in": 812,
            "tokens_out": 45,
        },
    )


def _make_order(run_id: str) -> tuple[CallRecord, CallRecord]:
    tool = make_call(
        run_id,
        2,
        kind="tool",
        name="place_order",
        effect="irreversible",
        request=json.dumps({"args": [], "kwargs": {"notional": 190000}}),
        response=json.dumps({"value": {"state": "filled"}}),
    )
    request = make_call(
        run_id,
        3,
        kind="http",
        name="POST broker",
        parent=2,
        request=json.dumps({"method": "POST", "url": "http://127.0.0.1/orders"}),
        response=json.dumps({"status": 201, "chunks": [[1, "created"]]}),
        meta={},
    )
    return tool, request


def _make_summary(run_id: str) -> CallRecord:
    deltas = ("Order ", "filled: $190,000")
    chunks = _sse(*({"choices": [{"delta": {"content": text}}]} for text in deltas))
    return make_call(
        run_id,
        4,
        kind="llm",
        lane="main/report#1",
        name="openai.chat.completions",
        request=json.dumps({**_HEAD, "body": {**_ASK, "stream": True}}),
        response=json.dumps({"status": 200, "chunks": chunks}),
        meta={"model": "gpt-5", "stream": True, "tokens_in": 900, "tokens_out": 9},
    )
