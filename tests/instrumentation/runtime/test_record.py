"""Boundary spans: their attributes, their place in the trace, and their relation to other instrumentors' spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, TraceFlags

import spanreplay
from spanreplay.model import attributes as names
from spanreplay.model import guard
from spanreplay.model.call import CallRecord, Outcome
from spanreplay.recording.spans import build_attributes
from spanreplay.redact import Redactor
from spanreplay.runtime.emit import Emitter
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run
from spanreplay.seams.telemetry.other_spans import OtherSpans
from support.in_process import KEY, inside
from support.runs import make_call


class Keeper(SpanProcessor):
    """A processor that keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep one span."""
        self.spans.append(span)


@pytest.fixture
def keeper() -> Keeper:
    """Where spans go."""
    return Keeper()


@pytest.fixture
def run(keeper: Keeper) -> Iterator[Run]:
    """An active run."""
    emitter = Emitter([keeper], Resource({"service.name": "agent"}))
    with inside(Run(app="agent", emitter=emitter, redactor=Redactor(KEY, "b").run())) as made:
        yield made


@spanreplay.boundary("tool", name="outer", effect="irreversible")
def outer(fail: bool = False) -> int:
    """A call that makes another."""
    if fail:
        raise ValueError("no")
    return inner() + 1


@spanreplay.boundary("compute", name="inner", effect="pure")
def inner() -> int:
    """A call."""
    return 1


def by_name(keeper: Keeper, name: str) -> list[Any]:
    """The spans with this name."""
    return [span for span in keeper.spans if span.name == name]


def test_span_of_a_call_is_complete(run: Run, keeper: Keeper) -> None:
    """Every attribute of a tool call's span matches the contract, and fewer than twenty are ours."""
    inner()
    (span,) = by_name(keeper, "inner")
    attributes = dict(span.attributes)
    key, function_call, code, meta = (attributes.pop(n) for n in (names.KEY, names.LEAF, names.CODE, names.META))
    assert list(json.loads(meta)) == ["body"]
    assert names.DIGESTS not in attributes
    assert attributes == {
        "openinference.span.kind": "CHAIN",
        names.SCHEMA: "1",
        names.RUN_ID: run.run_id,
        names.SEQ: 1,
        names.KIND: "compute",
        names.NAME: "inner",
        names.EFFECT: "pure",
        names.LANE: "main",
        names.INDEX: 0,
        names.KEYSPEC: "compute/1",
        names.REQUEST: '{"arguments":{}}',
        names.RESPONSE: '{"value":1}',
        names.OUTCOME: "ok",
        names.END_SEQ: 2,
    }
    assert (len(key), len(function_call)) == (64, 64)
    assert code.startswith("tests/instrumentation/runtime/test_record.py:")
    assert span.instrumentation_scope.name == names.SCOPE
    assert span.start_time <= span.end_time
    assert span.status.status_code is trace.StatusCode.UNSET


def test_openinference_comes_first_and_ours_last() -> None:
    """A limit on attributes evicts the first ones, so ours come last."""
    call = make_call("0" * 32, 5, parent=1, call_id="call_1")
    attributes = list(build_attributes(call, "leaf", {"openinference.span.kind": "LLM", "llm.model_name": "m"}))
    ours = [name.startswith("spanreplay.") for name in attributes]
    assert ours == sorted(ours)
    assert sum(ours) < 24


def test_open_record_has_no_answer() -> None:
    """A call that was only started has no response, end or leaf."""
    call = make_call("0" * 32, 5, outcome=Outcome.OPEN.value)
    assert not {names.RESPONSE, names.END_SEQ, names.LEAF} & set(build_attributes(call, "", {}))


def test_calls_nest_in_one_trace(run: Run, keeper: Keeper) -> None:
    """The root is above the outer call, which is above the inner one, in one trace; ids are never reused."""
    outer()
    run.finish()
    (parent,) = [s for s in by_name(keeper, "outer") if s.attributes[names.OUTCOME] == "ok"]
    (child,) = by_name(keeper, "inner")
    root = keeper.spans[-1]
    assert root.parent is None
    assert parent.parent.span_id == root.context.span_id == run.span_context.span_id
    assert child.parent.span_id == parent.context.span_id
    assert child.attributes[names.PARENT] == parent.attributes[names.SEQ]
    assert len({s.context.trace_id for s in keeper.spans}) == 1


def test_announced_call_is_one_span_in_two_states(run: Run, keeper: Keeper) -> None:
    """The started record and the final one have the same span id; the first has no duration."""
    outer()
    first, last = by_name(keeper, "outer")
    assert first.context.span_id == last.context.span_id
    assert (first.attributes[names.OUTCOME], last.attributes[names.OUTCOME]) == ("open", "ok")
    assert first.start_time == first.end_time == last.start_time


def test_failed_call_is_an_error_span(run: Run, keeper: Keeper) -> None:
    """A call that raised has status ERROR, so that every viewer marks it."""
    with pytest.raises(ValueError, match="no"):
        outer(fail=True)
    assert by_name(keeper, "outer")[-1].status.status_code is trace.StatusCode.ERROR


@pytest.fixture
def others(run: Run, keeper: Keeper) -> Iterator[OtherSpans]:
    """Record the spans of other instrumentors into the run."""
    patches = Patches()
    run.others = OtherSpans(run, keeper.on_end)
    run.others.install(patches)
    yield run.others
    patches.undo()


def test_spans_of_the_agent_are_parents_and_children(run: Run, keeper: Keeper, others: OtherSpans) -> None:
    """The agent's own spans around and inside a call are in the recording, in one tree under the run's root."""

    @spanreplay.boundary("tool", name="call", effect="read")
    def call() -> None:
        with tracer.start_as_current_span("below"):
            inner()

    tracer = TracerProvider().get_tracer("mine")
    with tracer.start_as_current_span("above"):
        call()
    chain = [by_name(keeper, name)[0] for name in ("inner", "below", "call", "above")]
    assert [s.parent.span_id for s in chain[:-1]] == [s.context.span_id for s in chain[1:]]
    assert chain[-1].parent == run.span_context
    assert {s.context.trace_id for s in chain} == {run.span_context.trace_id}


def test_p9_spans_of_the_agent_are_the_agents_where_it_sends_them(run: Run, keeper: Keeper, others: OtherSpans) -> None:
    """The agent's processor gets only its own spans, in their own trace; inside a call its own span is current."""

    @spanreplay.boundary("tool", name="call", effect="read")
    def call() -> None:
        trace.get_current_span().set_attribute("from", "call")
        with tracer.start_as_current_span("below"):
            pass

    theirs = Keeper()
    provider = TracerProvider()
    provider.add_span_processor(theirs)
    tracer = provider.get_tracer("mine")
    with tracer.start_as_current_span("above"):
        call()
    below, above = theirs.spans
    assert (below.name, below.parent, below.context.trace_id) == ("below", above.context, above.context.trace_id)
    assert (above.name, above.parent, above.attributes) == ("above", None, {"from": "call"})
    assert above.context.trace_id != run.span_context.trace_id


class Enriching(SpanProcessor):
    """Adds to a span at its end, as OpenInference's processor for pydantic-ai does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_end(self, span: ReadableSpan) -> None:
        """Add an attribute with this processor's name."""
        span._attributes = {**(span.attributes or {}), self._name: True}


class Raising(SpanProcessor):
    """A processor that fails."""

    def on_end(self, span: ReadableSpan) -> None:
        """Fail."""
        raise OSError(span.name)


def hold(processor: SpanProcessor) -> SpanProcessor:
    """A processor that contains another one."""
    holder = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]  # untyped in the SDK
    holder.add_span_processor(processor)
    return holder


@pytest.mark.parametrize("processors", [SynchronousMultiSpanProcessor, ConcurrentMultiSpanProcessor])
def test_span_is_recorded_as_the_agents_processors_leave_it(
    processors: type, run: Run, keeper: Keeper, others: OtherSpans
) -> None:
    """Attributes that a processor adds at a span's end are recorded once, whenever and wherever it was added."""
    provider = TracerProvider(active_span_processor=processors())
    tracer = provider.get_tracer("mine")
    provider.add_span_processor(hold(Enriching("held")))
    provider.add_span_processor(Enriching("first"))
    theirs = Keeper()
    provider.add_span_processor(theirs)
    with tracer.start_as_current_span("work", attributes={"own": 1}):
        provider.add_span_processor(Enriching("last"))
    (work,) = by_name(keeper, "work")
    assert work.attributes == {"own": 1, "held": True, "first": True, "last": True}
    assert [span.name for span in theirs.spans] == ["work"]
    provider.shutdown()


def test_span_is_recorded_though_a_processor_of_the_agent_fails(run: Run, keeper: Keeper, others: OtherSpans) -> None:
    """The processor's exception reaches the agent as it would without us, and the recording has the span."""
    provider = TracerProvider()
    provider.add_span_processor(Raising())
    span = provider.get_tracer("mine").start_span("work")
    with pytest.raises(OSError, match="work"):
        span.end()
    assert [each.name for each in by_name(keeper, "work")] == ["work"]


def test_trace_that_began_elsewhere_keeps_its_id(run: Run, keeper: Keeper, others: OtherSpans) -> None:
    """A span below another process's span, and its descendants, stay in that trace."""
    remote = SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    tracer = TracerProvider().get_tracer("mine")
    with tracer.start_as_current_span("served", trace.set_span_in_context(trace.NonRecordingSpan(remote))) as served:
        inner()
    late = tracer.start_span("late", trace.set_span_in_context(served))
    late.end()
    spans = [by_name(keeper, name)[0] for name in ("served", "inner", "late")]
    assert [s.context.trace_id for s in spans] == [5, 5, 5]
    assert [s.parent.span_id for s in spans] == [
        6,
        served.get_span_context().span_id,
        served.get_span_context().span_id,
    ]


def test_span_that_is_sampled_out_is_nobodys_parent(run: Run, keeper: Keeper, others: OtherSpans) -> None:
    """A span that is not exported is not a call's parent, or the call would have no visible parent."""
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("mine")
    with tracer.start_as_current_span("left out"):
        inner()
    (ours,) = by_name(keeper, "inner")
    assert ours.parent == run.span_context


def test_spans_that_never_end_are_bounded(run: Run, others: OtherSpans, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of open spans none is kept, and the run counts the missing ones."""
    monkeypatch.setattr("spanreplay.seams.telemetry.other_spans.OPEN_SPANS_MAX", 3)
    tracer = TracerProvider().get_tracer("mine")
    opened = [tracer.start_span("open") for _ in range(5)]
    assert len(others._above) == 3
    assert run._counts["other_spans_dropped"] == 2
    assert [others.find(span) is None for span in opened] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(("shown", "kind"), [("TOOL", "CHAIN"), ("CHAIN", "TOOL"), ("", "TOOL")])
def test_call_that_openinference_shows_is_not_shown_twice(
    shown: str, kind: str, run: Run, keeper: Keeper, others: OtherSpans
) -> None:
    """Inside an OpenInference TOOL span ours is a CHAIN, so that nothing counts twice; else ours is the TOOL."""
    tracer = TracerProvider().get_tracer("openinference")

    @spanreplay.boundary("tool", name="call", effect="read")
    def call() -> None:
        return None

    with tracer.start_as_current_span("theirs") as span:
        if shown:
            span.set_attribute("openinference.span.kind", shown)
        call()
    (ours,) = by_name(keeper, "call")
    assert ours.attributes["openinference.span.kind"] == kind
    assert ("tool.name" in ours.attributes) is (kind == "TOOL")


def test_failing_processor_is_counted_and_the_next_one_served(monkeypatch: pytest.MonkeyPatch, keeper: Keeper) -> None:
    """A processor that raises loses its own copy only."""
    monkeypatch.setenv("SPANREPLAY_GUARD", "production")
    monkeypatch.setattr(guard, "failures", {})

    class Broken(SpanProcessor):
        dropped = 3

        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError("broken")

    emitter = Emitter([Broken(), keeper], Resource({}))
    with inside(Run(app="agent", emitter=emitter, redactor=Redactor(KEY, "b").run())):
        inner()
    assert len(by_name(keeper, "inner")) == 1
    # the root's record, the call's, and the loss that the processor reported itself
    assert emitter.dropped == 2 + 3


def test_record_and_attributes_hold_the_same(run: Run, keeper: Keeper) -> None:
    """The manifest's root hash covers exactly the content of the spans."""
    from spanreplay.recording.seal.tree import hash_leaf

    outer()
    for span in keeper.spans:
        attributes = span.attributes
        if names.LEAF not in attributes:
            continue
        record = CallRecord(
            run_id=attributes[names.RUN_ID],
            seq=attributes[names.SEQ],
            end_seq=attributes[names.END_SEQ],
            kind=attributes[names.KIND],
            name=attributes[names.NAME],
            lane=attributes[names.LANE],
            index=attributes[names.INDEX],
            key=attributes[names.KEY],
            keyspec=attributes[names.KEYSPEC],
            effect=attributes[names.EFFECT],
            request=attributes[names.REQUEST],
            response=attributes[names.RESPONSE],
            outcome=attributes[names.OUTCOME],
            code=attributes[names.CODE],
            digests=attributes.get(names.DIGESTS, ""),
            parent=attributes.get(names.PARENT, -1),
            meta=json.loads(attributes.get(names.META, "{}")),
        )
        assert hash_leaf(record) == attributes[names.LEAF]
