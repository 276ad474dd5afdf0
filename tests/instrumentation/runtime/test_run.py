"""The run's bookkeeping: its manifest matches its records, and it ends once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final

import pytest

import spanreplay
from spanreplay.model import attributes as names
from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.model.errors import RunNotFound
from spanreplay.recording.otlp.otlp import decode_attributes, iter_spans
from spanreplay.recording.seal.check import find_tampering
from spanreplay.recording.spool import SpoolCatalog, SpoolWriter
from spanreplay.recording.spool.processor import SpoolSpanProcessor
from spanreplay.runtime import run as run_module
from spanreplay.runtime.caller.running import entered
from spanreplay.runtime.calls.open_call import open_crossing
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.run import Run, active_run, set_process_run
from support.in_process import MemoryProcessor, inside, make_run, recorded
from support.replaying import LONG_S
from support.runs import make_run_id


@spanreplay.boundary("tool", name="f", effect="read")
def f(x: Any = 0) -> Any:
    """A call."""
    return x


def attributes_of(memory: MemoryProcessor) -> list[dict[str, Any]]:
    """The attributes of every span, in the order of writing."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    requests = map(ExportTraceServiceRequest.FromString, memory.payloads)
    return [decode_attributes(filed.span.attributes) for request in requests for filed in iter_spans(request)]


def test_n3_manifest_counts_what_was_recorded() -> None:
    """Calls, calls per lane, drops and the root hash are stated, and match the records."""

    async def main() -> None:
        import asyncio

        await asyncio.gather(ask(), ask())
        f()

    async def ask() -> None:
        f()

    recording = recorded(main)
    manifest = recording.root.manifest
    assert (manifest["calls"], manifest["leaves"], manifest["dropped"]) == (3, 3, 0)
    assert set(manifest["lanes"]) == {c.lane for c in recording.calls}
    assert list(manifest["lanes"].values()) == [1, 1, 1]
    assert find_tampering(recording) == ""
    assert recording.completeness().is_complete


def test_first_call_announces_the_run() -> None:
    """The root's open record precedes the first call, so that a killed run has a name; nothing is written earlier."""
    memory = MemoryProcessor()
    run = make_run(memory, user_id="u-7", session_id="s-1")
    with inside(run):
        assert memory.payloads == []
        f()
        first, second = attributes_of(memory)
        assert (first[names.KIND], first[names.OUTCOME]) == (names.KIND_RUN, Outcome.OPEN.value)
        assert (first[names.USER_ID], first[names.SESSION_ID]) == ("u-7", "s-1")
        assert names.MANIFEST not in first
        assert second[names.KIND] == "tool"
        run.finish()
    assert names.MANIFEST in attributes_of(memory)[-1]


def test_run_without_calls_leaves_nothing() -> None:
    """A program that crosses no boundary writes no record."""
    with pytest.raises(RunNotFound):
        recorded(lambda: None)


def test_end_comes_once() -> None:
    """A run that is finished twice has one final record."""
    memory = MemoryProcessor()
    run = make_run(memory)
    with inside(run):
        f()
        run.finish(Outcome.ERROR, 1)
        run.finish(Outcome.OK, 0)
    finals = [a for a in attributes_of(memory) if names.MANIFEST in a]
    assert [json.loads(a[names.MANIFEST])["exit"] for a in finals] == [1]
    assert memory.recording(run.run_id).root.outcome == Outcome.ERROR.value


def test_ended_run_records_nothing_more() -> None:
    """Calls after the end are made unrecorded."""
    memory = MemoryProcessor()
    run = make_run(memory)
    with inside(run):
        f()
        run.finish()
        assert active_run() is None
        assert f(3) == 3
    assert len(memory.recording(run.run_id).calls) == 1


def test_n3_call_in_flight_at_the_end_is_open_and_named() -> None:
    """A call that has not ended before the run is in the recording, and makes it incomplete."""
    memory = MemoryProcessor()
    run = make_run(memory)

    @spanreplay.boundary("tool", name="endless")
    def endless() -> None:
        run.finish()

    with inside(run):
        endless()
    recording = memory.recording(run.run_id)
    assert [c.outcome for c in recording.calls] == ["open"]
    assert recording.completeness().reasons == ("call 1 (tool:endless) was started and never finished",)


def test_holes_are_kept_to_a_limit_and_counted_all() -> None:
    """Of many holes the first fifty are named; the manifest states their number."""
    memory = MemoryProcessor()
    run = make_run(memory)
    with inside(run):
        f()
        for n in range(80):
            run.hole(f"hole {n}")
        run.finish()
    manifest = memory.recording(run.run_id).root.manifest
    assert (len(manifest["holes"]), manifest["holes_total"]) == (run_module.HOLES_MAX, 80)


def test_n3_processor_that_fails_is_a_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that could not be written is counted, and makes the run incomplete."""
    monkeypatch.setenv("SPANREPLAY_GUARD", "production")
    monkeypatch.setattr(guard, "failures", {})

    class Flaky(MemoryProcessor):
        def on_end(self, span: Any) -> None:
            if len(self.payloads) == 2:
                self.payloads.append(b"")
                raise OSError("no space left on device")
            super().on_end(span)

    memory = Flaky()
    run = make_run(memory)
    with inside(run):
        assert [f(1), f(2), f(3)] == [1, 2, 3]
        run.finish()
    reasons = memory.recording(run.run_id).completeness().reasons
    assert "2 of 3 calls are here" in reasons
    assert "1 calls dropped" in reasons


def test_n3_call_that_could_not_be_described_is_a_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a seam fails to describe a call, the call is made unrecorded, and the run is incomplete."""
    monkeypatch.setenv("SPANREPLAY_GUARD", "production")
    monkeypatch.setattr(guard, "failures", {})
    from spanreplay.runtime.calls.open_call import begin

    def describe(run: Run) -> Any:
        raise KeyError("model")

    memory = MemoryProcessor()
    run = make_run(memory)
    with inside(run):
        f()
        assert begin(describe) is None
        run.finish()
    recording = memory.recording(run.run_id)
    assert recording.completeness().reasons == ("1 calls dropped",)
    assert recording.root.manifest["failures"] == {"describing a call": 1}


def test_environment_and_user_are_redacted() -> None:
    """Arguments and names that contain a secret are in no record."""
    secret = "sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"
    memory = MemoryProcessor()
    run = make_run(memory, environment={"argv": ["agent.py", f"--key={secret}"]}, user_id=f"key {secret}")
    with inside(run):
        f()
        run.finish()
    assert all(secret.encode() not in payload for payload in memory.payloads)
    assert "rdx-" in memory.recording(run.run_id).root.env["argv"][1]


def test_contexts_run_goes_before_the_processs() -> None:
    """A run that was entered is active in its context; elsewhere the process's run is."""
    of_process, of_context = make_run(MemoryProcessor()), make_run(MemoryProcessor())
    set_process_run(of_process)
    try:
        assert active_run() is of_process
        with entered(of_context):
            assert active_run() is of_context
        assert active_run() is of_process
    finally:
        set_process_run(None)
    assert active_run() is None


def test_clock_of_a_run_starts_at_one() -> None:
    """The Lamport clock counts from 1, and each value occurs once."""
    run = make_run(MemoryProcessor())
    assert [run.tick() for _ in range(3)] == [1, 2, 3]


def _end_in_a_thread(run: Run, crossing: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> threading.Thread:
    """Return a thread about to record a call's end, which continues when the run has done `step` of its own end."""
    is_ending, goes_on, complete, wrapped = threading.Event(), threading.Event(), run.complete, getattr(run, step)

    def wait(opened_in: int = -1) -> tuple[int, int]:
        is_ending.set()
        assert goes_on.wait(LONG_S)
        return complete(opened_in)

    def let_go_on() -> None:
        wrapped()
        goes_on.set()

    monkeypatch.setattr(run, "complete", wait)
    monkeypatch.setattr(run, step, let_go_on)
    thread = threading.Thread(target=crossing.close, args=(Outcome.OK, '"done"'))
    thread.start()
    assert is_ending.wait(LONG_S)
    return thread


F_SPEC: Final = Spec("tool", "f", "read", "tool/1", None, '{"arguments":{}}')


@pytest.mark.parametrize("is_spooled", [True, False], ids=["compact", "spans"])
@pytest.mark.parametrize(
    ("step", "outcome"), [("close_open_calls", Outcome.OK), ("gather", Outcome.OPEN)], ids=["in time", "too late"]
)
def test_n3_what_ends_as_the_run_does_is_counted_or_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, outcome: Outcome, is_spooled: bool
) -> None:
    """The manifest waits for a call that another thread is ending; a call that ends too late stays open."""
    monkeypatch.setattr(run_module, "ENDING_S_MAX", LONG_S if step == "close_open_calls" else 0.001)
    memory, run_id = MemoryProcessor(), make_run_id(7)
    writer = SpoolWriter(tmp_path, run_id)
    run = make_run(SpoolSpanProcessor(writer) if is_spooled else memory, run_id=run_id)
    with inside(run):
        crossing = open_crossing(run, F_SPEC)
    thread = _end_in_a_thread(run, crossing, monkeypatch, step)
    run.finish()
    thread.join(LONG_S)
    with inside(run):
        late = open_crossing(run, F_SPEC)
        late.announce()
        late.close(Outcome.OK, '"late"')
    writer.close()
    recording = SpoolCatalog(tmp_path).load(run_id) if is_spooled else memory.recording(run_id)
    assert [(call.seq, call.outcome) for call in recording.calls] == [(crossing.seq, outcome.value)]
    manifest = recording.root.manifest
    assert (manifest["calls"], manifest["leaves"]) == (1, int(outcome is Outcome.OK))
    assert find_tampering(recording) == ""


def test_n3_a_call_that_begins_while_the_others_are_ended_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is counted in the manifest, so it is in the recording."""
    memory = MemoryProcessor()
    run = make_run(memory)
    begun: list[Any] = []
    close_open_calls = run.close_open_calls

    def begin_one_more() -> None:
        close_open_calls()
        if not begun:
            begun.append(open_crossing(run, F_SPEC))

    monkeypatch.setattr(run, "close_open_calls", begin_one_more)
    with inside(run):
        f()
        run.finish()
    recording = memory.recording(run.run_id)
    assert [call.outcome for call in recording.calls] == [Outcome.OK.value, Outcome.OPEN.value]
    assert (recording.root.manifest["calls"], recording.root.manifest["leaves"]) == (2, 1)
    assert find_tampering(recording) == ""
