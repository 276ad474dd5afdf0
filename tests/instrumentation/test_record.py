"""Boundary spans: their attributes, their place in the trace, and how they stand beside other instrumentors' spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

import spanreplay
from spanreplay import attributes as names
from spanreplay import guard
from spanreplay.call import CallRecord, Outcome
from spanreplay.record import Emitter, build_attributes
from spanreplay.redact import Redactor
from spanreplay.run import Run
from support.in_process import KEY, inside
from support.runs import make_call


class Keeper(SpanProcessor):
    """Keeps the spans themselves."""

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
    """The spans of a name."""
    return [span for span in keeper.spans if span.name == name]


def test_span_of_a_call_is_complete(run: Run, keeper: Keeper) -> None:
    """Every attribute of a tool call's span is as the contract says, fewer than twenty of ours."""
    inner()
    (span,) = by_name(keeper, "inner")
    attributes = dict(span.attributes)
    key, leaf, code = (attributes.pop(n) for n in (names.KEY, names.LEAF, names.CODE))
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
    assert (len(key), len(leaf)) == (64, 64)
    assert code.startswith("tests/instrumentation/test_record.py:")
    assert span.instrumentation_scope.name == names.SCOPE
    assert span.start_time <= span.end_time
    assert span.status.status_code is trace.StatusCode.UNSET


def test_openinference_comes_first_and_ours_last() -> None:
    """A limit on attributes evicts what came first: never ours."""
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
    """The root is above the outer call, which is above the inner one; all are one trace, ids are never reused."""
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
    """A call that raised has status ERROR, so that every viewer shows it."""
    with pytest.raises(ValueError, match="no"):
        outer(fail=True)
    assert by_name(keeper, "outer")[-1].status.status_code is trace.StatusCode.ERROR


def test_spans_of_the_agent_are_parents_and_children(run: Run, keeper: Keeper) -> None:
    """The agent's own spans around and inside of a call keep their place in the tree."""
    provider = TracerProvider()
    provider.add_span_processor(keeper)
    tracer = provider.get_tracer("mine")

    @spanreplay.boundary("tool", name="call", effect="read")
    def call() -> None:
        with tracer.start_as_current_span("below"):
            pass

    with tracer.start_as_current_span("above"):
        call()
    above, ours, below = (by_name(keeper, name)[0] for name in ("above", "call", "below"))
    assert ours.parent.span_id == above.context.span_id
    assert below.parent.span_id == ours.context.span_id
    assert len({s.context.trace_id for s in (above, ours, below)}) == 1


@pytest.mark.parametrize(("shown", "kind"), [("TOOL", "CHAIN"), ("CHAIN", "TOOL"), ("", "TOOL")])
def test_call_that_openinference_shows_is_not_shown_twice(shown: str, kind: str, run: Run, keeper: Keeper) -> None:
    """Inside an OpenInference TOOL span ours is a CHAIN, or tools and tokens would count twice; else it is the TOOL."""
    tracer = TracerProvider().get_tracer("openinference")

    @spanreplay.boundary("tool", name="call", effect="read")
    def call() -> None:
        return None

    with tracer.start_as_current_span("call") as span:
        if shown:
            span.set_attribute("openinference.span.kind", shown)
        call()
    (ours,) = by_name(keeper, "call")
    assert ours.attributes["openinference.span.kind"] == kind
    assert ("tool.name" in ours.attributes) is (kind == "TOOL")


def test_failing_processor_is_counted_and_the_next_one_served(monkeypatch: pytest.MonkeyPatch, keeper: Keeper) -> None:
    """A processor that raises costs its own copy only."""
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
    # the root's record, the call's, and what the processor says it lost itself
    assert emitter.dropped == 2 + 3


def test_record_and_attributes_hold_the_same(run: Run, keeper: Keeper) -> None:
    """What the manifest's root hash was made of is what the spans say."""
    from spanreplay.seal.tree import hash_leaf

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
