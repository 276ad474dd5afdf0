"""A recorded run passes through other tools' JSON and either replays or is refused with a list of what was lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.recording.bundle import unpack
from spanreplay.recording.otlp.otlp import decode_attributes
from spanreplay.recording.otlp.otlp_json import write_request
from spanreplay.recording.spool import SpoolCatalog
from support.agents import AGENTS
from support.collector import SwitchStore, run_collector, wait_until
from support.phoenix_server import PhoenixServer, start_phoenix
from support.provider import Provider
from support.replaying import BIN, Workplace

AGENT = ("langgraph_agent.py", "parallel", "nested")
FROM_PHOENIX = {"langgraph": AGENT, "openai tool loop": ("openai_agent.py", "tools")}


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PhoenixServer]:
    """A real Phoenix server."""
    server = start_phoenix(tmp_path_factory.mktemp("phoenix"))
    yield server
    server.stop()


def _cli(workplace: Workplace, *args: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(BIN / "spanreplay"), *args],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    return done


def _payloads(workplace: Workplace) -> list[bytes]:
    catalog = SpoolCatalog(workplace.path / ".spanreplay")
    try:
        return unpack(catalog.export(workplace.recording().run_id))[1]
    finally:
        catalog.close()


def assert_replays_elsewhere(
    workplace: Workplace, tmp_path: Path, text: str, stdout: str, agent: Sequence[str] = AGENT
) -> None:
    """Import spans into an empty directory with the same redaction key, and replay from there."""
    elsewhere = Workplace(tmp_path / "elsewhere", workplace.environ)
    elsewhere.path.mkdir()
    elsewhere.environ["SPANREPLAY_REDACT_KEY"] = str(workplace.path / ".spanreplay" / "redact.key")
    (elsewhere.path / "spans.json").write_text(text, encoding="utf-8")
    imported = _cli(elsewhere, "import", "spans.json", "--json")
    assert json.loads(imported.stdout)["run_id"] == workplace.recording().run_id
    theirs, ours = elsewhere.recording(), workplace.recording()
    assert [c.key for c in theirs.calls] == [c.key for c in ours.calls]
    assert theirs.root.manifest == ours.root.manifest
    replayed = elsewhere.replay(AGENTS / agent[0], *agent[1:])
    assert (replayed.verdict.get("verdict"), replayed.stdout) == ("identical", stdout), replayed.stderr
    assert replayed.verdict["counts"]["exact"] + replayed.verdict["counts"]["covered"] == len(ours.calls)


@pytest.mark.slow
@pytest.mark.phoenix
@pytest.mark.parametrize("name", FROM_PHOENIX)
def test_s12_s52_run_comes_back_from_phoenix_and_replays(
    name: str, phoenix: PhoenixServer, provider: Provider, workplace: Workplace, tmp_path: Path
) -> None:
    """Collector → Phoenix → its REST API → import → replay: identical, with the provider gone."""
    agent = FROM_PHOENIX[name]
    recorded = workplace.record(AGENTS / agent[0], *agent[1:])
    provider.stop()
    payloads = _payloads(workplace)
    with run_collector(tmp_path / "data", SwitchStore(), phoenix_url=phoenix.url) as running:
        with httpx.Client(trust_env=False, timeout=30) as client:
            for payload in payloads:
                headers = {"content-type": "application/x-protobuf"}
                client.post(running.http + "/v1/traces", content=payload, headers=headers).raise_for_status()
        running.flush_phoenix()
    project = workplace.recording().root.app
    url = f"{phoenix.url}/v1/projects/{project}/spans?limit=1000"
    found: dict[str, Any] = {}

    def is_all_there() -> bool:
        answer = httpx.get(url, trust_env=False, timeout=30)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return False  # Phoenix accepts spans first and creates the project when it processes them
        found.update(answer.json())
        return len(found.get("data", ())) >= len({each for payload in payloads for each in _span_ids(payload)})

    wait_until(is_all_there)
    assert_replays_elsewhere(workplace, tmp_path, json.dumps(found), recorded.stdout, agent)


def _parse(payload: bytes) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(payload)


def _span_ids(payload: bytes) -> list[bytes]:
    return [span.span_id for b in _parse(payload).resource_spans for s in b.scope_spans for span in s.spans]


def _iso(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc).isoformat(timespec="milliseconds")


def _unchanged(value: Any) -> Any:
    return value


def _as_langfuse(payloads: list[bytes], dump: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Observations as Langfuse's OTel ingestion keeps them: the newest record of a span id, its attributes below
    `metadata`, ints of 0 as the JSON of their OTLP value, times in milliseconds. Some versions return objects as text.
    """

    def keep(value: Any) -> Any:
        return '{"intValue":0}' if value == 0 and isinstance(value, int) and not isinstance(value, bool) else value

    found: dict[str, dict[str, Any]] = {}
    for payload in payloads:
        for batch in _parse(payload).resource_spans:
            for scope in batch.scope_spans:
                for span in scope.spans:
                    attributes = {k: keep(v) for k, v in decode_attributes(span.attributes).items()}
                    found[span.span_id.hex()] = {
                        "id": span.span_id.hex(),
                        "traceId": span.trace_id.hex(),
                        "parentObservationId": span.parent_span_id.hex() or None,
                        "type": "SPAN",
                        "name": span.name,
                        "startTime": _iso(span.start_time_unix_nano),
                        "endTime": _iso(span.end_time_unix_nano),
                        "level": "ERROR" if span.status.code == 2 else "DEFAULT",
                        "metadata": {
                            "attributes": dump(attributes),
                            "resourceAttributes": dump(decode_attributes(batch.resource.attributes)),
                            "scope": dump({"name": scope.scope.name, "attributes": {}}),
                        },
                    }
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["otlp", "otlp-lines", "langfuse", "langfuse-text", "langfuse-trace"])
@pytest.mark.sampled(3)
def test_s52_run_comes_back_from_json_and_replays(
    form: str, provider: Provider, workplace: Workplace, tmp_path: Path
) -> None:
    """This holds for OTLP/JSON and for each JSON shape that Langfuse returns."""
    recorded = workplace.record(AGENTS / AGENT[0], *AGENT[1:])
    provider.stop()
    payloads = _payloads(workplace)
    trees = [write_request(_parse(p)) for p in payloads]
    observations = _as_langfuse(payloads, json.dumps if form == "langfuse-text" else _unchanged)
    text = {
        "otlp": json.dumps({"resourceSpans": [batch for tree in trees for batch in tree["resourceSpans"]]}),
        "otlp-lines": "\n".join(json.dumps(tree) for tree in trees),
        "langfuse": json.dumps({"data": observations, "meta": {"page": 1}}),
        "langfuse-text": json.dumps({"data": observations}),
        "langfuse-trace": json.dumps({"id": "x", "observations": observations}),
    }[form]
    assert_replays_elsewhere(workplace, tmp_path, text, recorded.stdout)


def test_s12_values_that_a_tool_cut_are_listed(provider: Provider, workplace: Workplace) -> None:
    """A run that a tool truncated is refused whole; the list names each span and what it lacks."""
    workplace.record(AGENTS / "langgraph_agent.py", "parallel")
    spans = _as_langfuse(_payloads(workplace), _unchanged)
    cut = [s for s in spans if "spanreplay.response" in s["metadata"]["attributes"]][:2]
    for span in cut:
        value = span["metadata"]["attributes"]["spanreplay.response"]
        span["metadata"]["attributes"]["spanreplay.response"] = value[: len(value) // 2]
    (workplace.path / "spans.json").write_text(json.dumps({"data": spans}), encoding="utf-8")
    refused = _cli(workplace, "import", "spans.json", status=1)
    assert "does not hold the run whole, 2 values were cut" in refused.stderr.replace("\n", " ")
    assert all(f"span {span['id']}" in refused.stderr.replace("\n", " ") for span in cut)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "holds 0 spans, and none has spanreplay.run_id"),
        ('{"data": [{"name": "x"}]}', "is not JSON of spans"),
        ("{", "is not JSON of spans"),
        (
            '{"data": [{"context": {"trace_id": "q", "span_id": "r"}, "name": "x", "start_time": "soon"}]}',
            "not JSON of spans",
        ),
    ],
)
def test_s52_other_json_is_refused_in_one_line(content: str, says: str, workplace: Workplace) -> None:
    """JSON that holds no run is named as such, with the expected format."""
    (workplace.path / "spans.json").write_text(content, encoding="utf-8")
    refused = _cli(workplace, "import", "spans.json", status=1)
    assert says in refused.stderr.replace("\n", " ")
    assert "hint:" in refused.stderr
