"""The program's own OpenTelemetry exporter gets the same spans with us as without us, and none in a replay."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import spanreplay
from spanreplay.model.call import Kind
from spanreplay.recording.spool import iter_frames
from support.agents import ENVIRONMENTS, without_instrumentors
from support.collector import SwitchStore, run_collector
from support.otlp_sink import OtlpSink, serve
from support.provider import Provider
from support.received import describe_traces, names_of
from support.replaying import BIN, TIMEOUT_S, Workplace

SECRET = "sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"
ASK = """
def ask():
    from openai import OpenAI
    messages = [{"role": "user", "content": "hi"}]
    return OpenAI().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content
"""
PROVIDER = (
    """
import os
import spanreplay
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

early = trace.get_tracer("early")
provider = TracerProvider(resource=Resource({"service.name": "theirs"}), sampler=ParentBased(TraceIdRatioBased(RATIO)))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(os.environ["THEIRS"] + "/v1/traces")))
"""
    + ASK
)
TOOL = """
@spanreplay.boundary("tool", name="lookup", effect="read")
def lookup(key):
    trace.get_current_span().set_attribute("looked.up", "SECRET")
    with tracer.start_as_current_span("inside"):
        headers = {}
        propagate.inject(headers)
        here = trace.get_current_span().get_span_context()
        return headers["traceparent"].split("-")[1:3] == [f"{here.trace_id:032x}", f"{here.span_id:016x}"]

print("none is current", not trace.get_current_span().get_span_context().is_valid)
with tracer.start_as_current_span("turn"):
    print(lookup("a"), ask())
""".replace("SECRET", SECRET)
GLOBAL = (
    PROVIDER.replace("RATIO", "1.0")
    + """
from openinference.instrumentation.openai import OpenAIInstrumentor
trace.set_tracer_provider(provider)
OpenAIInstrumentor().instrument()
tracer = trace.get_tracer("theirs")
with early.start_as_current_span("early"):
    pass
"""
    + TOOL
)
BY_HAND = (
    PROVIDER.replace("RATIO", "1.0")
    + "tracer = provider.get_tracer('theirs')\n"
    + """
with early.start_as_current_span("nobody's"):
    with tracer.start_as_current_span("below nobody's"):
        pass
    headers = {}
    propagate.inject(headers)
    print("sent on", headers)
"""
    + TOOL
)
SAMPLED_OUT = (
    PROVIDER.replace("RATIO", "0.0")
    + """
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("theirs")
with tracer.start_as_current_span("left out") as span:
    print("recording", span.is_recording(), ask())
"""
)
PHOENIX = (
    ASK
    + """
import os
from phoenix.otel import register
register(project_name="theirs", endpoint=os.environ["THEIRS"] + "/v1/traces", auto_instrument=True, verbose=False)
print(ask())
"""
)
LANGFUSE = (
    ASK
    + """
from langfuse import get_client, observe
langfuse = get_client()

@observe()
def answer(question):
    langfuse.update_current_span(metadata={"k": "v"})
    return ask()

print(answer("hi"))
langfuse.flush()
"""
)
LOGFIRE = """
import os
import logfire
from openai import OpenAI
logfire.add_non_user_code_prefix(os.environ["INSTALLED"])  # as what lies in site-packages
logfire.configure(
    token="pylf_v1_local_x", console=False, service_name="theirs", inspect_arguments=False,
    advanced=logfire.AdvancedOptions(base_url=os.environ["THEIRS"]),
)
client = OpenAI()
logfire.instrument_openai(client)
with logfire.span("work {x}", x=1):
    messages = [{"role": "user", "content": "hi"}]
    print(client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content)
logfire.force_flush()
"""
PROGRAMS = {
    "own": (GLOBAL, ["ChatCompletion", "early", "inside", "turn"]),
    "by_hand": (BY_HAND, ["below nobody's", "inside", "turn"]),
    "sampled_out": (SAMPLED_OUT, []),
    "phoenix": (PHOENIX, ["ChatCompletion"]),
    "langfuse": (LANGFUSE, ["answer"]),
    "logfire": (LOGFIRE, None),
}


UNASKED = (
    PROVIDER.replace("RATIO", "1.0")
    + """
trace.set_tracer_provider(provider)
with trace.get_tracer("theirs").start_as_current_span("turn"):
    print(ask())
"""
)
"""A program that instruments nothing, although an instrumentor is installed."""


ASKED = (
    PROVIDER.replace("RATIO", "1.0")
    + """
from openinference.instrumentation.openai import OpenAIInstrumentor
OpenAIInstrumentor().instrument(tracer_provider=provider)
print(ask())
"""
)


HALFWAY = """
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.instrumentation.utils import unwrap
from opentelemetry.trace import get_tracer
from wrapt import wrap_function_wrapper

WRAPPED = ("openai.resources.chat.completions", "Completions.create")

class Instrumentor(BaseInstrumentor):
    def instrumentation_dependencies(self):
        return ()

    def _instrument(self, **options):
        tracer = get_tracer("halfway", tracer_provider=options.get("tracer_provider"))

        def ask(wrapped, instance, args, kwargs):
            with tracer.start_as_current_span("asked"):
                return wrapped(*args, **kwargs)

        wrap_function_wrapper(*WRAPPED, ask)

    def _uninstrument(self, **options):
        UNDO
"""
"""An instrumentor whose own undoing takes nothing back: several published ones are like that."""
ASKED_IF_NOT_YET = (
    PROVIDER.replace("RATIO", "1.0")
    + """
trace.set_tracer_provider(provider)
from halfway import Instrumentor
if not Instrumentor().is_instrumented_by_opentelemetry:
    Instrumentor().instrument()
print(ask())
"""
)


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A model that always answers the same question in the same way."""
    with Provider(is_repeatable=True) as running:
        yield running


@pytest.fixture
def theirs() -> Iterator[OtlpSink]:
    """The collector to which the program sends its own spans."""
    with serve() as sink:
        yield sink


@pytest.fixture
def workplace(provider: Provider, theirs: OtlpSink, tmp_path: Path) -> Workplace:
    """A directory for a program with its collector configured."""
    own = {
        "THEIRS": theirs.endpoint,
        "INSTALLED": str(Path(spanreplay.__file__).parent),
        "LANGFUSE_BASE_URL": theirs.endpoint,
        "LANGFUSE_HOST": theirs.endpoint,
        "LANGFUSE_PUBLIC_KEY": "pk-lf-x",
        "LANGFUSE_SECRET_KEY": "sk-lf-x",
    }
    return Workplace(tmp_path, {**provider.environ(), **own})


def run_plain(workplace: Workplace, *command: str, **environ: str) -> str:
    """The standard output of a command that runs without us."""
    done = subprocess.run(
        command,
        cwd=workplace.path,
        env={**workplace.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def take(sink: OtlpSink) -> list[list[str]]:
    """The spans that arrived since the last call."""
    with sink.lock:
        seen, sink.seen[:] = list(sink.seen), []
    return describe_traces(seen)


def read_spool(workplace: Workplace) -> tuple[set[str], set[str]]:
    """The trace ids and names of all recorded spans, the program's and ours."""
    payloads = [p for path in (workplace.path / ".spanreplay" / "spool").glob("*.spool") for p in iter_frames(path)]
    requests = map(ExportTraceServiceRequest.FromString, payloads)
    spans = [span for r in requests for rs in r.resource_spans for scope in rs.scope_spans for span in scope.spans]
    return {span.trace_id.hex() for span in spans}, {span.name for span in spans}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(3)
def test_p9_exporter_of_the_program_gets_the_same_spans(name: str, workplace: Workplace, theirs: OtlpSink) -> None:
    """Names, attributes, parents, traces and sampling are as without us, without our spans; a replay sends none."""
    source, names = PROGRAMS[name]
    if name == "logfire":
        workplace = Workplace(workplace.path, workplace.environ, ENVIRONMENTS["logfire"])
        if not workplace.python.exists():
            pytest.skip(f"no {workplace.python}: `make matrix` builds it")
        theirs.told = b'{"project_name": "theirs", "project_url": "http://localhost/theirs"}'
    agent = workplace.write("agent.py", source)
    printed = run_plain(workplace, str(workplace.python), str(agent))
    plain_names = names_of(theirs.seen)
    plain = take(theirs)
    assert plain_names == names or (names is None and plain_names)
    recorded = workplace.record(agent)
    assert recorded.stdout == printed
    assert take(theirs) == plain
    recording = workplace.recording()
    assert [call.kind for call in recording.calls if call.kind == Kind.LLM.value] == [Kind.LLM.value]
    assert recording.completeness().is_complete, recording.completeness().reasons
    traces, kept = read_spool(workplace)
    assert traces == {recording.root.trace_id}
    assert kept > set(plain_names)
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == printed
    assert "Traceback" not in recorded.stderr + replayed.stderr
    assert theirs.seen == []


@pytest.mark.slow
def test_p9_instrumentor_that_nobody_asked_for_stays_out_of_the_programs_exporter(
    workplace: Workplace, theirs: OtlpSink
) -> None:
    """`spanreplay record` loads instrumentors that the plain command would not: their spans are not exported."""
    agent = workplace.write("agent.py", UNASKED)
    loaded = without_instrumentors("openai")
    printed = run_plain(workplace, str(workplace.python), str(agent), **loaded)
    assert names_of(theirs.seen) == ["turn"]
    plain = take(theirs)
    assert (
        run_plain(workplace, str(BIN / "spanreplay"), "record", "--", str(workplace.python), str(agent), **loaded)
        == printed
    )
    assert take(theirs) == plain
    assert len(workplace.recording().calls) == 1
    assert workplace.replay(agent, **loaded).verdict["verdict"] == "identical"
    assert theirs.seen == []


@pytest.mark.slow
def test_p9_instrumentors_of_opentelemetry_instrument_stay(workplace: Workplace, theirs: OtlpSink) -> None:
    """`opentelemetry-instrument` loads them without us too, so the program's exporter still gets their spans."""
    agent = workplace.write("agent.py", UNASKED)
    there = Workplace(workplace.path, {**workplace.environ, **without_instrumentors("openai")})
    plain = there.record(agent, SPANREPLAY_MODE="off")
    assert names_of(theirs.seen) == ["ChatCompletion", "turn"]
    sent = take(theirs)
    recorded = there.record(agent)
    assert (recorded.stdout, take(theirs)) == (plain.stdout, sent)
    assert there.replay(agent).verdict["verdict"] == "identical"
    assert theirs.seen == []


@pytest.mark.slow
def test_p9_instrumentor_that_the_program_asks_for_has_the_programs_provider(
    workplace: Workplace, theirs: OtlpSink
) -> None:
    """An instrumentor already loaded by us is instrumented again, with the provider passed by the program."""
    agent = workplace.write("agent.py", ASKED)
    printed = run_plain(workplace, str(workplace.python), str(agent))
    assert names_of(theirs.seen) == ["ChatCompletion"]
    plain = take(theirs)
    there = Workplace(workplace.path, {**workplace.environ, **without_instrumentors("openai")})
    assert there.record(agent).stdout == printed
    assert take(theirs) == plain


@pytest.mark.slow
@pytest.mark.parametrize("undo", ["unwrap(*WRAPPED)", "pass"])
def test_p9_instrumentor_that_undoes_nothing_makes_each_span_once(
    undo: str, workplace: Workplace, theirs: OtlpSink
) -> None:
    """What an unasked instrumentor has wrapped is taken back here before the program applies it again."""
    installed = workplace.path / "site-packages"
    about = installed / "halfway-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: halfway\nVersion: 1.0\n")
    entry = "[opentelemetry_instrumentor]\nhalfway = halfway:Instrumentor\n"
    (about / "entry_points.txt").write_text(entry)
    (installed / "halfway.py").write_text(HALFWAY.replace("UNDO", undo))
    environ = {**workplace.environ, **without_instrumentors("openai"), "PYTHONPATH": str(installed)}
    there = Workplace(workplace.path, environ)
    agent = there.write("agent.py", ASKED_IF_NOT_YET)
    printed = run_plain(there, str(there.python), str(agent))
    assert names_of(theirs.seen) == ["asked"]
    plain = take(theirs)
    recorded = run_plain(there, str(BIN / "spanreplay"), "record", "--", str(there.python), str(agent))
    assert (recorded, take(theirs)) == (printed, plain)
    assert there.replay(agent).verdict["verdict"] == "identical"
    assert theirs.seen == []


@pytest.mark.slow
def test_p9_address_of_the_programs_exporter_is_left_to_it(workplace: Workplace, theirs: OtlpSink) -> None:
    """The program's exporter reads `OTEL_EXPORTER_OTLP_ENDPOINT`; we send to SPANREPLAY_COLLECTOR if it is set."""
    agent = workplace.write("agent.py", UNASKED.replace('os.environ["THEIRS"] + "/v1/traces"', ""))
    address = {"OTEL_EXPORTER_OTLP_ENDPOINT": theirs.endpoint}
    run_plain(workplace, str(workplace.python), str(agent), **address)
    assert names_of(theirs.seen) == ["turn"]
    plain = take(theirs)
    with serve() as ours:
        there = Workplace(workplace.path, {**workplace.environ, **address, "SPANREPLAY_COLLECTOR": ours.endpoint})
        there.record(agent)
        assert take(theirs) == plain
        assert {"agent", "turn"} < set(names_of(ours.accepted))


@pytest.mark.slow
def test_p9_backend_of_the_program_gets_none_of_ours(workplace: Workplace, theirs: OtlpSink) -> None:
    """If `OTEL_EXPORTER_OTLP_ENDPOINT` is the program's and no collector of ours, recordings stay on this machine."""
    agent = workplace.write("agent.py", UNASKED.replace('os.environ["THEIRS"] + "/v1/traces"', ""))
    address = {"OTEL_EXPORTER_OTLP_ENDPOINT": theirs.endpoint}
    run_plain(workplace, str(workplace.python), str(agent), **address)
    plain = take(theirs)
    recorded = workplace.record(agent, status=0, **address)
    assert take(theirs) == plain
    assert theirs.asked == ["/healthz"]
    (said,) = [line for line in recorded.stderr.splitlines() if "recordings stay on this machine" in line]
    assert f"{theirs.endpoint}/v1/traces" in said
    assert "SPANREPLAY_COLLECTOR" in said
    assert workplace.recording().completeness().is_complete
    # A later run whose program exports nothing itself doesn't send the earlier recordings either
    other = workplace.write("other.py", ASK + "print(ask())\n")
    before = len(theirs.accepted)
    workplace.record(other, status=0, **address)
    assert set(names_of(theirs.accepted[before:])) == {"openai.chat.completions", "other"}
    silent = workplace.record(agent, status=0, **address, SPANREPLAY_COLLECTOR="none")
    assert "recordings stay" not in silent.stderr


@pytest.mark.slow
def test_p9_collector_of_ours_that_the_program_exports_to_gets_both(workplace: Workplace, tmp_path: Path) -> None:
    """If the shared address is a collector of ours, it gets the program's export and the recording."""
    store = SwitchStore()
    with run_collector(tmp_path / "collector", store) as running:
        agent = workplace.write("agent.py", UNASKED.replace('os.environ["THEIRS"] + "/v1/traces"', ""))
        recorded = workplace.record(agent, status=0, OTEL_EXPORTER_OTLP_ENDPOINT=running.http)
        running.flush()
    assert "recordings stay" not in recorded.stderr
    requests = [ExportTraceServiceRequest.FromString(payload) for payload in store.payloads()]
    spans = [s.name for r in requests for rs in r.resource_spans for scope in rs.scope_spans for s in scope.spans]
    assert spans.count("turn") == 2  # once from the program's exporter, once from the recording
    assert "openai.chat.completions" in " ".join(spans)
