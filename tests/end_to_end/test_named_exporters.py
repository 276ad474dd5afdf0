"""Exporters that the environment names get the same spans with us as without us, and none of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import without_instrumentors
from support.collector import SwitchStore, run_collector
from support.distro import make_distro
from support.otlp_sink import OtlpSink, serve
from support.provider import Provider
from support.received import describe_traces, names_of
from support.replaying import Workplace

AGENT = """
import spanreplay
from opentelemetry import propagate, trace
from openai import OpenAI

@spanreplay.boundary("tool", name="lookup", effect="read")
def lookup(key):
    trace.get_current_span().set_attribute("looked.up", key)
    with tracer.start_as_current_span("inside") as span:
        span.add_event("found", {"note": "for the order 17"})
        headers = {}
        propagate.inject(headers)
        return headers["traceparent"].split("-")[2] == f"{span.get_span_context().span_id:016x}"

tracer = trace.get_tracer("theirs", "1.0", attributes={"scope": "kept"})
with tracer.start_as_current_span("turn", attributes={"user.id": "u-1"}):
    messages = [{"role": "user", "content": "hi"}]
    print(lookup("a"), OpenAI().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content)
"""
ASK = """
    messages = [{"role": "user", "content": "hi"}]
    print(OpenAI().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content)
"""
NAMES = ["ChatCompletion", "inside", "turn"]


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A model that always answers the same question in the same way."""
    with Provider(is_repeatable=True) as running:
        yield running


@pytest.fixture
def theirs() -> Iterator[OtlpSink]:
    """The user's backend, which is no collector of ours."""
    with serve() as sink:
        yield sink


@pytest.fixture
def workplace(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a distro that sets OpenTelemetry up from the environment, and one instrumentor."""
    made = {**make_distro(tmp_path), **without_instrumentors("openai")}
    made["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    return Workplace(tmp_path, {**provider.environ(), **made})


def take(sink: OtlpSink) -> list[list[str]]:
    """The spans that arrived since the last call."""
    with sink.lock:
        seen, sink.seen[:] = list(sink.seen), []
    return describe_traces(seen)


@pytest.mark.slow
@pytest.mark.parametrize("noun", ["ENDPOINT", "TRACES_ENDPOINT"], ids=["all_signals", "traces"])
def test_p9_otlp_named_by_the_environment_gets_the_same_spans(
    noun: str, workplace: Workplace, theirs: OtlpSink
) -> None:
    """With only `OTEL_TRACES_EXPORTER=otlp` and an address, the backend gets what it gets without us, and no more."""
    agent = workplace.write("agent.py", AGENT)
    named = {
        "OTEL_TRACES_EXPORTER": "otlp",
        f"OTEL_EXPORTER_OTLP_{noun}": theirs.endpoint + ("/v1/traces" if noun.startswith("TRACES") else ""),
    }
    plain = workplace.record(agent, status=0, SPANREPLAY_MODE="off", **named)
    assert names_of(theirs.seen) == NAMES
    sent = take(theirs)
    recorded = workplace.record(agent, status=0, **named)
    assert recorded.stdout == plain.stdout
    assert take(theirs) == sent
    assert "recordings stay on this machine" in recorded.stderr
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert sorted(call.kind for call in recording.calls) == ["llm", "tool"]
    replayed = workplace.replay(agent, **named)
    assert (replayed.verdict["verdict"], replayed.stdout) == ("identical", plain.stdout), replayed.stderr
    assert theirs.seen == []


def read_console(printed: str) -> list[object]:
    """The spans that a console exporter printed, with times and ids replaced."""
    spans = []
    decoder, at = json.JSONDecoder(), printed.find("{")
    while at >= 0:
        span, at = decoder.raw_decode(printed, at)
        spans.append(span)
        at = printed.find("{", at)
    ids: dict[str, str] = {}
    opaque = r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}"
    text = re.sub(opaque, lambda found: ids.setdefault(found[0], f"id {len(ids)}"), json.dumps(spans))
    return [json.loads(re.sub(r'"\d{4}-\d\d-\d\dT[^"]*"', '"time"', text))]


@pytest.mark.slow
def test_p9_console_named_by_the_environment_gets_the_same_spans(workplace: Workplace) -> None:
    """A console exporter prints the same spans with us as without us, and none in a replay."""
    agent = workplace.write("agent.py", AGENT)
    plain = workplace.record(agent, SPANREPLAY_MODE="off", OTEL_TRACES_EXPORTER="console")
    recorded = workplace.record(agent, status=0, OTEL_TRACES_EXPORTER="console")
    assert read_console(recorded.stdout) == read_console(plain.stdout)
    replayed = workplace.replay(agent, OTEL_TRACES_EXPORTER="console")
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert "{" not in replayed.stdout


@pytest.mark.slow
def test_p9_otlp_named_for_a_collector_of_ours_arrives_once(workplace: Workplace, tmp_path: Path) -> None:
    """If the named address is a collector of ours, it gets the recording, with each span of the program once."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    store = SwitchStore()
    with run_collector(tmp_path / "collector", store) as running:
        named = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": running.http}
        recorded = workplace.record(workplace.write("agent.py", AGENT), status=0, **named)
        running.flush()
    assert "recordings stay" not in recorded.stderr
    requests = [ExportTraceServiceRequest.FromString(payload) for payload in store.payloads()]
    spans = [s.name for r in requests for rs in r.resource_spans for scope in rs.scope_spans for s in scope.spans]
    assert "openai.chat.completions" in spans
    assert [name for name in NAMES if spans.count(name) != 1] == []


@pytest.mark.slow
def test_p9_otlp_named_where_nothing_sets_it_up_gets_nothing(
    provider: Provider, theirs: OtlpSink, tmp_path: Path
) -> None:
    """Without a distro nothing exports to the named address, and with us nothing does either."""
    workplace = Workplace(tmp_path, provider.environ())
    named = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": theirs.endpoint}
    asking = AGENT.partition("tracer = ")[0] + "with trace.get_tracer('theirs').start_as_current_span('turn'):" + ASK
    recorded = workplace.record(workplace.write("agent.py", asking), status=0, **named)
    assert theirs.seen == []
    assert "recordings stay on this machine" in recorded.stderr
    assert workplace.recording().completeness().is_complete
