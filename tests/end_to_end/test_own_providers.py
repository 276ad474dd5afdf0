"""The program's own providers of metrics, logs and non-SDK spans work as without us."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from support.otlp_sink import OtlpSink, serve
from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace

ASK = """
def ask():
    from openai import OpenAI
    messages = [{"role": "user", "content": "hi"}]
    return OpenAI().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content
"""
METRICS_AND_LOGS = (
    """
import logging, os
import spanreplay
from opentelemetry import metrics, trace
from opentelemetry._logs import set_logger_provider
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

resource = Resource({"service.name": "theirs"})
reader = PeriodicExportingMetricReader(OTLPMetricExporter(os.environ["THEIRS"] + "/v1/metrics"), 3_600_000)
meters = MeterProvider([reader], resource)
metrics.set_meter_provider(meters)
loggers = LoggerProvider(resource)
loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(os.environ["THEIRS"] + "/v1/logs")))
set_logger_provider(loggers)
logging.basicConfig(level=logging.INFO, handlers=[LoggingHandler(logger_provider=loggers)])
for library in ("httpx", "httpx2"):
    logging.getLogger(library).setLevel(logging.WARNING)
"""
    + ASK
    + """
@spanreplay.boundary("tool", name="lookup", effect="read")
def lookup(key):
    logging.getLogger("agent").warning("looks up %s", key)
    turns.add(1, {"inside": True})
    return key.upper()

meter = metrics.get_meter("theirs")
turns = meter.create_counter("turns")
lengths = meter.create_histogram("lengths")
meter.create_observable_gauge("open", [lambda options: [metrics.Observation(7, {"x": 1})]])
turns.add(1)
print(lookup("a"), ask())
lengths.record(12)
logging.getLogger("agent").info("answered", extra={"turn": 1})
meters.shutdown()
loggers.shutdown()
"""
)
OWN_API = """
import sys
from contextlib import contextmanager
from opentelemetry import context, trace
from opentelemetry.trace import SpanContext, TraceFlags

class OwnSpan(trace.Span):
    count = 0

    def __init__(self, name, parent):
        OwnSpan.count += 1
        self.name, self.parent, self.attributes = name, parent, {}
        trace_id = parent.trace_id if parent else 77
        self.context = SpanContext(trace_id, OwnSpan.count, False, TraceFlags(TraceFlags.SAMPLED))
        self.is_open = True

    def end(self, end_time=None):
        self.is_open = False
        print("ended", self.name, "below", self.parent and self.parent.span_id, self.attributes)

    def get_span_context(self):
        return self.context

    def set_attributes(self, attributes):
        self.attributes.update(attributes)

    def set_attribute(self, key, value):
        self.attributes[key] = value

    def add_event(self, name, attributes=None, timestamp=None):
        print("event", name)

    def update_name(self, name):
        self.name = name

    def is_recording(self):
        return self.is_open

    def set_status(self, status, description=None):
        pass

    def record_exception(self, exception, attributes=None, timestamp=None, escaped=False):
        pass

class OwnTracer(trace.Tracer):
    def start_span(self, name, context=None, *args, **kwargs):
        above = trace.get_current_span(context).get_span_context()
        return OwnSpan(name, above if above.is_valid else None)

    @contextmanager
    def start_as_current_span(self, name, *args, **kwargs):
        span = self.start_span(name)
        with trace.use_span(span, end_on_exit=True):
            yield span

class OwnProvider(trace.TracerProvider):
    def get_tracer(self, *args, **kwargs):
        return OwnTracer()
"""
WORK = (
    ASK
    + """
import spanreplay
from opentelemetry import trace

@spanreplay.boundary("tool", name="lookup", effect="read")
def lookup(key):
    with tracer.start_as_current_span("inside"):
        trace.get_current_span().set_attribute("looked.up", key)
        return key.upper()

print(type(trace.get_tracer_provider()).__name__)
tracer = trace.get_tracer("theirs")
with tracer.start_as_current_span("turn"):
    print(lookup("a"), ask())
"""
)
BY_CODE = OWN_API + "early = trace.get_tracer('early')\ntrace.set_tracer_provider(OwnProvider())\n" + WORK
OUTSIDE = OWN_API + "trace.set_tracer_provider(OwnProvider())\n" + ASK + "print(ask())\n"


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A model that always answers the same question in the same way."""
    with Provider(is_repeatable=True) as running:
        yield running


@pytest.fixture
def theirs() -> Iterator[OtlpSink]:
    """The collector to which the program sends its own metrics and logs."""
    with serve() as sink:
        yield sink


@pytest.fixture
def workplace(provider: Provider, theirs: OtlpSink, tmp_path: Path) -> Workplace:
    """A directory for a program with its collector configured."""
    return Workplace(tmp_path, {**provider.environ(), "THEIRS": theirs.endpoint})


def run_plain(workplace: Workplace, agent: Path, **environ: str) -> str:
    """The standard output of a program that runs without us."""
    done = subprocess.run(
        [str(workplace.python), str(agent)],
        cwd=workplace.path,
        env={**workplace.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def take(sink: OtlpSink) -> dict[str, list[str]]:
    """The metrics and logs that arrived since the last call, without times."""
    with sink.lock:
        seen, sink.seen[:] = list(sink.seen), []
    kinds: dict[str, Any] = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/logs": ExportLogsServiceRequest}
    found: dict[str, list[str]] = {path: [] for path in kinds}
    for each in seen:
        tree = MessageToDict(kinds[each.path].FromString(each.body))
        for batch in tree.get("resourceMetrics", tree.get("resourceLogs", [])):
            for scope in batch.get("scopeMetrics", batch.get("scopeLogs", [])):
                for item in scope.get("metrics", scope.get("logRecords", [])):
                    around = {"resource": batch["resource"], "scope": scope["scope"]}
                    found[each.path].append(json.dumps(without_times({**around, **item}), sort_keys=True))
    return {path: sorted(items) for path, items in found.items()}


def without_times(value: Any) -> Any:
    """A tree of JSON values without its times."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not k.lower().endswith("unixnano")}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_p9_metrics_and_logs_of_the_program_are_the_same(workplace: Workplace, theirs: OtlpSink) -> None:
    """The program's meter and logger providers export the same with us as without us; in a replay, nothing."""
    agent = workplace.write("agent.py", METRICS_AND_LOGS)
    printed = run_plain(workplace, agent)
    plain = take(theirs)
    names = {json.loads(item)["name"] for item in plain["/v1/metrics"]}
    assert names >= {"turns", "lengths", "open"}
    said = sorted(json.loads(item)["body"]["stringValue"] for item in plain["/v1/logs"])
    assert said == ["INFO:agent:answered", "WARNING:agent:looks up a"]
    recorded = workplace.record(agent)
    assert recorded.stdout == printed
    assert take(theirs) == plain
    recording = workplace.recording()
    assert sorted(call.kind for call in recording.calls) == ["llm", "tool"]
    assert recording.completeness().is_complete, recording.completeness().reasons
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == printed
    assert theirs.seen == []


def say_findings(workplace: Workplace, agent: Path, **environ: str) -> list[dict[str, str]]:
    """The doctor's findings about a program."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), "doctor", "--json", "--", str(workplace.python), str(agent)],
        cwd=workplace.path,
        env={**workplace.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("source", "named"), [(BY_CODE, "OwnSpan"), (OUTSIDE, "OwnProvider")], ids=["around", "apart"])
def test_p9_provider_that_is_not_the_sdks_works_and_is_named(source: str, named: str, workplace: Workplace) -> None:
    """Its spans are the same as without us; manifest and doctor say that they are not recorded."""
    agent = workplace.write("agent.py", source)
    printed = run_plain(workplace, agent)
    assert workplace.record(agent).stdout == printed
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert "llm" in {call.kind for call in recording.calls}
    assert str(recording.root.manifest["other_spans_not_heard"]).endswith(named)
    (finding,) = [each for each in say_findings(workplace, agent) if each["subject"] == "spans"]
    assert finding["level"] == "warn"
    assert named in finding["message"]
    replayed = workplace.replay(agent)
    assert (replayed.verdict["verdict"], replayed.stdout) == ("identical", printed), replayed.stderr


@pytest.mark.slow
def test_p9_provider_that_the_environment_names_is_used_and_the_run_recorded(workplace: Workplace) -> None:
    """`OTEL_PYTHON_TRACER_PROVIDER` names a provider that isn't the SDK's: the program keeps it."""
    library = workplace.path / "library"
    (library / "own-1.0.dist-info").mkdir(parents=True)
    (library / "own-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    points = "[opentelemetry_tracer_provider]\nown = own_api:OwnProvider\n"
    (library / "own-1.0.dist-info" / "entry_points.txt").write_text(points)
    (library / "own_api.py").write_text(OWN_API)
    environ = {"PYTHONPATH": str(library), "OTEL_PYTHON_TRACER_PROVIDER": "own"}
    agent = workplace.write("agent.py", WORK)
    printed = run_plain(workplace, agent, **environ)
    assert printed.startswith("OwnProvider\n")
    assert workplace.record(agent, status=0, **environ).stdout == printed
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert sorted(call.kind for call in recording.calls) == ["llm", "tool"]
    replayed = workplace.replay(agent, **environ)
    assert (replayed.verdict["verdict"], replayed.stdout) == ("identical", printed), replayed.stderr


@pytest.mark.slow
def test_p9_provider_of_the_sdk_is_not_said_to_be_unheard(workplace: Workplace) -> None:
    """A program with an SDK provider, or with none, has no unrecorded spans."""
    for source in ("", "trace.set_tracer_provider(TracerProvider())\n"):
        start = "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
        agent = workplace.write("agent.py", start + source + ASK + "print(ask())\n")
        workplace.record(agent)
        assert "other_spans_not_heard" not in workplace.recordings()[-1].root.manifest
