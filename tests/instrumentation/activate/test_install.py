"""Installation in real processes: settings that are honoured, exporters that are replaced or kept, refused replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from spanreplay.activate.install import Installation
from spanreplay.recording.spool.target import target_of
from spanreplay.redact import Redactor
from spanreplay.runtime.patches import Patches
from spanreplay.seams.telemetry import named_exporters
from support.distro import make_distro
from support.in_process import KEY
from support.otlp_sink import OtlpSink, serve
from support.replaying import BIN, Workplace
from support.runs import make_run_id

SECRET = "sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"
AGENT = f"""
import json, sys
import spanreplay
from opentelemetry import trace

@spanreplay.boundary("tool", name="f", effect="read")
def f(key):
    print("body", file=sys.stderr)
    return "done"

with trace.get_tracer("mine").start_as_current_span("work") as span:
    span.set_attribute("note", "key {SECRET}")
    print("answer", f("{SECRET}"))
"""
OBSERVED = AGENT.replace(
    "@spanreplay.boundary",
    """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class Observer(SpanExporter):
    def export(self, spans):
        for span in spans:
            print("SEEN", span.to_json(indent=None), file=sys.stderr)
        return SpanExportResult.SUCCESS

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(Observer()))

@spanreplay.boundary""",
    1,
)


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """A directory to record in."""
    return Workplace(tmp_path)


def with_settings(workplace: Workplace, settings: dict[str, str]) -> Workplace:
    """Return the same directory with more variables."""
    return Workplace(workplace.path, {**workplace.environ, **settings})


def names_of(sink: OtlpSink) -> list[str]:
    """The names of all delivered spans, in order."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    requests = [ExportTraceServiceRequest.FromString(seen.body) for seen in sink.accepted]
    return [span.name for r in requests for rs in r.resource_spans for scope in rs.scope_spans for span in scope.spans]


# ── What is honoured ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, "OTEL_SDK_DISABLED is set"),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "the sampler leaves this run out"),
    ],
    ids=["disabled", "sampled_out"],
)
def test_run_that_otel_leaves_out_is_not_recorded_and_said_once(
    setting: dict[str, str], reason: str, workplace: Workplace
) -> None:
    """With the SDK disabled or the run sampled out nothing is written, one line says so, and the agent runs."""
    done = with_settings(workplace, setting).record(workplace.write("agent.py", AGENT))
    assert done.stdout == "answer done\n"
    assert done.stderr.count("not recorded") == 1
    assert f"not recorded: {reason}" in done.stderr
    assert not (workplace.path / ".spanreplay").exists()


def test_mode_off_leaves_no_trace(workplace: Workplace) -> None:
    """SPANREPLAY_MODE=off writes nothing and says nothing."""
    done = workplace.record(workplace.write("agent.py", AGENT), SPANREPLAY_MODE="off")
    assert (done.stdout, done.stderr) == ("answer done\n", "body\n")
    assert not (workplace.path / ".spanreplay").exists()


def test_resource_and_names_are_the_users(workplace: Workplace) -> None:
    """Service name, user and session from the environment are in the recording."""
    workplace.record(
        workplace.write("agent.py", AGENT),
        OTEL_SERVICE_NAME="refunds",
        SPANREPLAY_USER_ID="u-7",
        SPANREPLAY_SESSION_ID="s-1",
    )
    root = workplace.recording().root
    assert (root.app, root.user_id, root.session_id) == ("refunds", "u-7", "s-1")


def test_s46_failing_installation_leaves_the_agent_alone(workplace: Workplace) -> None:
    """If the data directory can't be made, the agent runs unrecorded, and one line says what is lost."""
    (workplace.path / ".spanreplay").write_text("a file is in the way")
    done = workplace.record(workplace.write("agent.py", AGENT))
    assert done.stdout == "answer done\n"
    assert SECRET not in done.stderr
    assert len(done.stderr.splitlines()) < 8


# ── What is replaced, what stays ────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("has_distro", [False, True], ids=["no_distro", "distro"])
def test_otlp_export_is_replaced_and_not_doubled(has_distro: bool, workplace: Workplace, tmp_path: Path) -> None:
    """With or without a distro that sets OTLP export up, each span arrives once, redacted."""
    settings = make_distro(tmp_path) if has_distro else {}
    with serve() as sink:
        settings["OTEL_EXPORTER_OTLP_ENDPOINT"] = sink.endpoint
        with_settings(workplace, settings).record(workplace.write("agent.py", AGENT))
        names = names_of(sink)
        assert names.count("f") == 1
        assert names.count("work") == 1
        assert SECRET.encode() not in b"".join(seen.body for seen in sink.seen)


def test_r1_exporter_that_the_user_named_stays_behind_the_redactor(workplace: Workplace, tmp_path: Path) -> None:
    """A console exporter set up by OpenTelemetry exports the agent's spans without secrets, and none of ours."""
    settings = {"OTEL_TRACES_EXPORTER": "console", **make_distro(tmp_path)}
    done = with_settings(workplace, settings).record(workplace.write("agent.py", AGENT))
    assert '"name": "work"' in done.stdout
    assert '"parent_id": null' in done.stdout
    assert '"name": "f"' not in done.stdout
    assert "spanreplay.run_id" not in done.stdout
    assert "rdx-" in done.stdout
    assert SECRET not in done.stdout.replace("answer done", "")


@pytest.mark.parametrize(
    ("named", "collector", "stays"),
    [("otlp", "8", True), ("otlp", "9", False), ("otlp", "", True), ("", "", False), ("", "9", False)],
    ids=["named", "named_and_our_collector", "named_and_shared", "default", "default_and_our_collector"],
)
def test_p9_otlp_exporter_stays_where_the_user_named_it(
    named: str, collector: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OTLP exporter is removed if the environment does not name it, or if it exports to SPANREPLAY_COLLECTOR."""
    monkeypatch.setattr(named_exporters, "_read_named", lambda: [named] if named else [])
    if collector:
        monkeypatch.setenv("SPANREPLAY_COLLECTOR", f"http://127.0.0.1:{collector}")
    provider = TracerProvider(shutdown_on_exit=False)
    processor = SimpleSpanProcessor(OTLPSpanExporter("http://127.0.0.1:9/v1/traces"))
    provider.add_span_processor(processor)
    target = target_of(f"http://127.0.0.1:{collector or 9}")
    named_exporters.redact_exports(Patches(), provider, Redactor(KEY, "b").run(), target)
    left = provider._active_span_processor._span_processors
    assert [vars(each)["_downstream"] for each in left] == ([(processor,)] if stays else [])
    processor.shutdown()


def test_p9_processor_that_the_agent_adds_sees_its_spans_and_none_of_ours(workplace: Workplace) -> None:
    """The agent's own processor exports the same spans as without us; our recording of them holds no secret."""
    done = workplace.record(workplace.write("agent.py", OBSERVED))
    seen = [json.loads(line.removeprefix("SEEN ")) for line in done.stderr.splitlines() if line.startswith("SEEN ")]
    assert [(span["name"], span["parent_id"], span["attributes"]) for span in seen] == [
        ("work", None, {"note": f"key {SECRET}"})
    ]
    (spool,) = (workplace.path / ".spanreplay" / "spool").glob("*.spool")
    content = spool.read_bytes()
    assert b"work" in content
    assert SECRET.encode() not in content


def test_distro_that_fails_leaves_the_agent_running(workplace: Workplace, tmp_path: Path) -> None:
    """Without the exporter that a distro needs, OpenTelemetry fails before us, and the agent runs unrecorded.

    `spanreplay record` runs the agent with settings under which that can't happen.
    """
    there = with_settings(workplace, make_distro(tmp_path, exporter="not_installed"))
    agent = there.write("agent.py", AGENT)
    assert there.record(agent).stdout == "answer done\n"
    assert not (workplace.path / ".spanreplay").exists()
    done = subprocess.run(
        [str(BIN / "spanreplay"), "record", "--", sys.executable, str(agent)],
        cwd=workplace.path,
        env=there.environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "answer done\n"
    assert len(workplace.recording().calls) == 1


# ── What a replay refuses ───────────────────────────────────────────────────────────────────────────
def refused(workplace: Workplace, source: str, **environ: str) -> tuple[str, dict[str, Any]]:
    """Run a replay that can't be set up; return its error line and its report. No tool body has run."""
    report = workplace.path / "report.json"
    settings = {
        "SPANREPLAY_MODE": "replay",
        "SPANREPLAY_REPLAY_SOURCE": source,
        "SPANREPLAY_REPLAY_REPORT": str(report),
        **environ,
    }
    done = with_settings(workplace, settings).record(workplace.path / "agent.py", status=3)
    assert done.stdout == ""
    assert "body" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0], json.loads(report.read_text())


def _damage(workplace: Workplace, how: str) -> str:
    recording = workplace.recording()
    if how == "unknown":
        return make_run_id(5)
    spool = next((workplace.path / ".spanreplay" / "spool").glob("*.spool"))
    content = spool.read_bytes()
    if how == "newer":
        spool.write_bytes(b"SPRSPOOL9\n" + content[len(b"SPRSPOOL2\n") :])
        return str(spool)
    exported = workplace.path / "run.replay"
    subprocess.run(
        [str(BIN / "spanreplay"), "export", recording.run_id, "-o", str(exported)],
        cwd=workplace.path,
        env=workplace.environ,
        check=True,
        capture_output=True,
    )
    exported.write_bytes(exported.read_bytes()[:-40])
    return str(exported)


@pytest.mark.parametrize("how", ["unknown", "truncated", "newer"])
def test_s27_replay_that_cannot_be_set_up_ends_with_3_before_the_agent(how: str, workplace: Workplace) -> None:
    """An unknown run, a torn file and a newer format give one clear line and exit 3 before the agent's first line."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    line, report = refused(workplace, _damage(workplace, how))
    assert line.startswith("error: the replay can't be set up: ")
    assert report["verdict"] == "error"
    assert report["error"] in line


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SPANREPLAY_REPLAY_PLAN": "{"}, "the replay plan is not JSON"),
        ({"SPANREPLAY_REPLAY_PID": "1"}, "a Python subprocess of a replayed process"),
    ],
    ids=["plan", "child"],
)
def test_s27_replay_with_a_bad_plan_or_in_a_child_is_refused(
    environ: dict[str, str], expected: str, workplace: Workplace
) -> None:
    """An unreadable plan is not taken for the default plan; a child of a replayed process does not run live."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    line, _ = refused(workplace, workplace.recording().run_id, **environ)
    assert expected in line


def test_s27_seam_that_fails_in_a_replay_ends_it(workplace: Workplace) -> None:
    """A library that can't be covered is a hole when recording; in a replay it ends the process before its use."""
    (workplace.path / "httpx.py").write_text("class Client: pass\n")
    agent = workplace.write("agent.py", "import httpx\n" + AGENT)
    recorded = workplace.record(agent)
    assert recorded.stdout == "answer done\n"
    assert any("httpx could not be covered" in r for r in workplace.recording().completeness().reasons)
    replayed = workplace.replay(agent)
    assert "the replay can't cover httpx" in replayed.stderr
    assert "body" not in replayed.stderr
    assert replayed.status == 1
    assert replayed.verdict.get("verdict", "error") == "error"


def test_replay_in_a_process_whose_sampler_is_off_still_replays(workplace: Workplace) -> None:
    """Sampling decides whether a run is recorded, never whether a replay may go live."""
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent)
    replayed = workplace.replay(agent, OTEL_TRACES_SAMPLER="always_off", OTEL_SDK_DISABLED="true")
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout)
    assert "body" not in replayed.stderr


def test_a_verdict_is_written_once_and_whole_if_two_threads_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's thread ends its replay, and with it the process, just as the main thread ends."""
    begun, may_end, written = threading.Event(), threading.Event(), list[str]()
    installation = object.__new__(Installation)
    run = SimpleNamespace(is_member=False, is_ended=False, environment={}, ended_by="", output=None)
    run.finish = lambda *_: setattr(run, "is_ended", True)

    def write(*_: object) -> None:
        begun.set()
        assert may_end.wait(60)
        written.append(threading.current_thread().name)

    monkeypatch.setattr(installation, "_write_verdict", write, raising=False)
    vars(installation).update(run=run, session=object(), _pid=os.getpid(), _spool=None)
    threads = [threading.Thread(target=installation.finish, args=(0,), name=name) for name in ("main", "server")]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    assert written == []
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert written == ["main"]
