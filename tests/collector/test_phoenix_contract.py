"""The fan-out and the annotations against a real Phoenix, to check our assumptions about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model import attributes as names
from spanreplay.model.call import Recording
from spanreplay.recording.otlp.otlp import encode_attributes
from spanreplay_collector.phoenix.fanout import PhoenixAnnotator, deep_link
from support.collector import SwitchStore, make_payload, run_collector, wait_until
from support.phoenix_server import PhoenixServer, start_phoenix
from support.recordings import make_incident, split_request
from support.runs import make_recording, make_request, make_run_id

pytestmark = [pytest.mark.phoenix, pytest.mark.slow]
PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PhoenixServer]:
    server = start_phoenix(tmp_path_factory.mktemp("phoenix"))
    yield server
    server.stop()


def get(url: str) -> Any:
    with httpx.Client(trust_env=False, timeout=30) as client:
        answer = client.get(url)
        return answer.json() if answer.status_code == 200 else {"data": []}


def read_spans(phoenix: PhoenixServer, project: str) -> dict[str, dict[str, Any]]:
    spans = get(f"{phoenix.url}/v1/projects/{project}/spans?limit=500")["data"]
    return {span["context"]["span_id"]: span for span in spans}


def send(tmp_path: Path, phoenix: PhoenixServer, payloads: list[bytes]) -> None:
    with run_collector(tmp_path, SwitchStore(), phoenix_url=phoenix.url) as running:
        with httpx.Client(trust_env=False, timeout=30) as client:
            for payload in payloads:
                client.post(running.http + "/v1/traces", content=payload, headers=PROTOBUF).raise_for_status()
        running.flush_phoenix()
        assert running.count("phoenix_dropped_spans_total") == 0


def open_note(payload: bytes) -> bytes:
    """Return the record that a recorder writes when the run starts: the same span id, no end."""
    request = ExportTraceServiceRequest.FromString(payload)
    span = request.resource_spans[0].scope_spans[0].spans[0]
    kept = [pair for pair in span.attributes if pair.key not in (names.OUTCOME, names.MANIFEST)]
    del span.attributes[:]
    span.attributes.extend([*kept, *encode_attributes({names.OUTCOME: "open"})])
    span.end_time_unix_nano = span.start_time_unix_nano
    return request.SerializeToString()


def with_ids(recording: Recording, trace: int) -> list[bytes]:
    """Return the recording's payloads under their own trace and span ids."""
    request = make_request(recording)
    for span in request.resource_spans[0].scope_spans[0].spans:
        span.trace_id = trace.to_bytes(16, "big")
        for field in ("span_id", "parent_span_id"):
            old = getattr(span, field)
            if old:
                setattr(span, field, bytes([trace]) + old[1:])
    return split_request(request)


def root_id(payloads: list[bytes]) -> str:
    for payload in payloads:
        span = ExportTraceServiceRequest.FromString(payload).resource_spans[0].scope_spans[0].spans[0]
        if not span.parent_span_id:
            return span.span_id.hex()
    raise AssertionError("no root")


def test_u2_run_is_one_trace_in_the_project_of_its_app(tmp_path: Path, phoenix: PhoenixServer) -> None:
    """The incident is in project trade-bot with five spans: the root is final and an AGENT, the others its children."""
    payloads = with_ids(make_incident(1), trace=0x11)
    root = root_id(payloads)
    send(tmp_path, phoenix, [open_note(payloads[-1]), *payloads])
    wait_until(lambda: len(read_spans(phoenix, "trade-bot")) == 5)
    spans = read_spans(phoenix, "trade-bot")
    assert {span["context"]["trace_id"] for span in spans.values()} == {"11".rjust(32, "0")}
    shown = spans[root]
    assert shown["span_kind"] == "AGENT"
    assert shown["attributes"][names.OUTCOME] == "ok"
    assert names.MANIFEST in shown["attributes"]
    assert shown["end_time"] > shown["start_time"]
    assert sum(span["parent_id"] == root for span in spans.values()) == 4
    link = deep_link(phoenix.url, root)
    with httpx.Client(trust_env=False, timeout=30) as client:
        assert client.get(link).status_code == 200


def test_u2_replays_and_plain_otlp_have_their_projects(tmp_path: Path, phoenix: PhoenixServer) -> None:
    """A replay is filed under `{app}-replays`, a trace of any other SDK under its service."""
    replay = with_ids(make_recording(make_run_id(2), 2, replay_of=make_run_id(1)), trace=0x22)
    send(tmp_path, phoenix, [*replay, make_payload(3, spans=2, resource={"service.name": "web"})])
    wait_until(lambda: len(read_spans(phoenix, "refunds-replays")) == 3)
    wait_until(lambda: len(read_spans(phoenix, "web")) == 2)
    assert all(s["attributes"]["service.name"] == "web" for s in read_spans(phoenix, "web").values())


def test_c7_difficult_values_reach_phoenix(tmp_path: Path, phoenix: PhoenixServer) -> None:
    """NUL, bytes, NaN, nesting and 5 MB of text lose neither the span nor its neighbours."""
    attributes = {
        "nul": "a\0b",
        "bytes": b"\0\xff",
        "nan": float("nan"),
        "deep": {"a": [{"b": ["c\0", b"\1"]}]},
        "big": "ü" * 2_500_000,
    }
    payload = make_payload(4, spans=3, attributes=attributes, resource={"service.name": "difficult"})
    send(tmp_path, phoenix, [payload])
    wait_until(lambda: len(read_spans(phoenix, "difficult")) == 3)
    shown = next(iter(read_spans(phoenix, "difficult").values()))["attributes"]
    assert (shown["nul"], shown["bytes"], shown["nan"]) == ("ab", "AP8=", "nan")
    assert shown["big"].endswith("5000000 bytes in all; the whole text is in the store]")


def test_u2_verdict_is_an_annotation(tmp_path: Path, phoenix: PhoenixServer) -> None:
    """A verdict that is posted before the spans arrive and then replaced is one annotation per span, the latest."""
    payloads = with_ids(make_incident(5), trace=0x55)
    root = root_id(payloads)
    call = ExportTraceServiceRequest.FromString(payloads[1]).resource_spans[0].scope_spans[0].spans[0].span_id.hex()
    annotator = PhoenixAnnotator(phoenix.url)
    annotator.annotate_verdict(root, call, "diverged", "notional differs", {"replay": "r1"}, divergence="changed_call")
    send(tmp_path, phoenix, payloads)

    def read_annotations() -> dict[str, dict[str, Any]]:
        url = f"{phoenix.url}/v1/projects/trade-bot/span_annotations?span_ids={root}&span_ids={call}&limit=50"
        found = get(url)["data"]
        assert len(found) <= 2, "a verdict must replace the one before"
        return {item["name"]: item for item in found}

    wait_until(lambda: len(read_annotations()) == 2)
    first = read_annotations()
    assert first["replay.verdict"]["span_id"] == root
    assert first["replay.verdict"]["result"]["label"] == "diverged"
    assert first["replay.verdict"]["annotator_kind"] == "CODE"
    assert first["replay.verdict"]["identifier"] == "replay:latest"
    assert first["replay.divergence"]["span_id"] == call
    assert first["replay.divergence"]["result"]["label"] == "changed_call"
    annotator.annotate_verdict(root, None, "identical", "", {"replay": "r2"})
    wait_until(lambda: read_annotations()["replay.verdict"]["result"]["label"] == "identical")
    verdict = read_annotations()["replay.verdict"]
    assert json.dumps(verdict["metadata"]) == '{"replay": "r2"}'


def test_r6_phoenix_with_auth_takes_the_shared_secret(tmp_path: Path) -> None:
    """With auth on, the admin secret is accepted for ingestion and annotations; without it the breaker opens."""
    secret = "spanreplay-test-admin-secret-000000000001"
    server = start_phoenix(
        tmp_path / "phoenix",
        PHOENIX_ENABLE_AUTH="true",
        PHOENIX_SECRET="spanreplay-test-signing-secret-0000000001",
        PHOENIX_ADMIN_SECRET=secret,
    )
    try:
        store = SwitchStore()
        settings: dict[str, Any] = {"phoenix_url": server.url}
        with run_collector(tmp_path / "data", store, **settings) as running:
            with httpx.Client(trust_env=False) as client:
                client.post(running.http + "/v1/traces", content=make_payload(1), headers=PROTOBUF)
            running.flush()
            wait_until(lambda: "spanreplay_phoenix_breaker_open 1" in running.collector.metrics.render())
        with run_collector(tmp_path / "data", store, **settings, phoenix_token=secret) as running:
            running.flush_phoenix()
            assert running.count("phoenix_sent_spans_total") == 1
        PhoenixAnnotator(server.url, secret).annotate_verdict("ab" * 8, None, "identical", "", {})
    finally:
        server.stop()
