"""Traces of OpenTelemetry's JavaScript SDK, sent directly and through rotel: what is stored is what was sent."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.recording.otlp.otlp import decode_attributes, iter_spans
from support.collector import RunningCollector, SwitchStore, run_collector
from support.node import run_node, run_rotel

PROTOCOLS = ("http", "proto", "grpc")
SPANS = 3


def _endpoint(running: RunningCollector, protocol: str) -> str:
    return f"http://{running.grpc}" if protocol == "grpc" else f"{running.http}/v1/traces"


def _told(output: str) -> dict[str, Any]:
    """The spans that the program sent, by id; `\\n` alone ends a line, as in JSON."""
    found = {}
    for line in output.rstrip("\n").split("\n"):
        span = json.loads(line)
        found[span.pop("id")] = span
    return found


def _stored(store: SwitchStore) -> dict[str, Any]:
    found = {}
    for payload in store.payloads():
        for filed in iter_spans(ExportTraceServiceRequest.FromString(payload)):
            assert filed.resource["telemetry.sdk.language"] == "nodejs"
            found[filed.span.span_id.hex()] = {**_describe(filed.span), "scope": filed.scope}
    return found


def _describe(span: Span) -> dict[str, Any]:
    status: dict[str, Any] = {"code": span.status.code}
    if span.status.message:
        status["message"] = span.status.message
    return {
        "trace": span.trace_id.hex(),
        "parent": span.parent_span_id.hex(),
        "name": span.name,
        "kind": span.kind,
        "start": str(span.start_time_unix_nano),
        "end": str(span.end_time_unix_nano),
        "attributes": {name: _plain(value) for name, value in decode_attributes(span.attributes).items()},
        "events": [
            {"name": e.name, "time": str(e.time_unix_nano), "attributes": decode_attributes(e.attributes)}
            for e in span.events
        ],
        "links": [
            {"trace": link.trace_id.hex(), "id": link.span_id.hex(), "attributes": decode_attributes(link.attributes)}
            for link in span.links
        ],
        "status": status,
    }


def _plain(value: Any) -> Any:
    """A value as the program states it: JSON has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _expected(output: str, *, is_json: bool) -> dict[str, Any]:
    """What the program sent, as far as its protocol can carry it."""
    told = _told(output)
    for span in told.values():
        attributes = span["attributes"]
        if "half an emoji" in attributes:
            # Neither protobuf nor UTF-8 holds half of one
            attributes["half an emoji"] = "x\N{REPLACEMENT CHARACTER}y"
            # OpenTelemetry's JSON writes null for them
            attributes.update({name: None for name in ("nan", "inf") if is_json})
    assert len(told) == SPANS + 1
    return told


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_c7_js_exporter_brings_difficult_values(protocol: str, tmp_path: Path) -> None:
    """Every value, event, link, status and time that the SDK states is stored, over JSON, protobuf and gRPC."""
    store = SwitchStore()
    with run_collector(tmp_path, store) as running:
        done = run_node("export.js", protocol, _endpoint(running, protocol), str(SPANS), cwd=tmp_path)
        running.flush()
    assert _stored(store) == _expected(done.stdout, is_json=protocol == "http")


@pytest.mark.parametrize("protocol", ["proto", "grpc"])  # rotel refuses the large numbers in OpenTelemetry's JSON
@pytest.mark.parametrize("onward", ["http", "grpc"])
def test_c7_rotel_passes_difficult_values_on(protocol: str, onward: str, tmp_path: Path) -> None:
    """What an SDK sends to rotel is stored as when it is sent directly, whichever protocol rotel speaks to us."""
    store = SwitchStore()
    with run_collector(tmp_path, store) as running:
        # rotel appends the path
        endpoint = _endpoint(running, onward).removesuffix("/v1/traces")
        with run_rotel(tmp_path, endpoint, onward) as (http, grpc):
            url = grpc if protocol == "grpc" else f"{http}/v1/traces"
            done = run_node("export.js", protocol, url, str(SPANS), cwd=tmp_path)
        running.flush()
    assert _stored(store) == _expected(done.stdout, is_json=False)
