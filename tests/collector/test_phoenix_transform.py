"""How a span is shown in Phoenix, and under which project; pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model import attributes as names
from spanreplay.recording.otlp.otlp import FiledSpan, decode_attributes, encode_attributes
from spanreplay_collector.log.segment_log import Position
from spanreplay_collector.phoenix.fanout import deep_link
from spanreplay_collector.phoenix.traces import ReadySpan, TraceBook
from spanreplay_collector.phoenix.transform import Preview, build_request, present_span

RUN = "019f" + "0" * 24 + "0001"
PLACE = Position(1, 9)
LIMIT = 64 * 1024


def make_span(
    attributes: dict[str, Any] | None = None,
    *,
    resource: dict[str, Any] | None = None,
    run_id: str = RUN,
    trace: int = 1,
    span: int = 1,
    parent: int = 99,
    start_ns: int = 1000,
) -> FiledSpan:
    made = Span(
        trace_id=trace.to_bytes(16, "big"),
        span_id=span.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        name="call",
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + 10,
        attributes=encode_attributes(attributes or {}),
    )
    return FiledSpan(made, resource if resource is not None else {"service.name": "svc"}, "spanreplay", run_id)


def make_root(outcome: str = "ok", app: str = "refunds", replay_of: str = "", **extra: Any) -> FiledSpan:
    attributes = {
        names.SCHEMA: "1",
        names.KIND: "run",
        names.RUN_ID: RUN,
        names.APP: app,
        names.OUTCOME: outcome,
        **({names.REPLAY_OF: replay_of} if replay_of else {}),
        **extra,
    }
    return make_span(attributes, span=50, parent=0, start_ns=900)


def make_llm(question: str, answer: str, *, span: int, start_ns: int) -> FiledSpan:
    attributes = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps({"messages": question}),
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": "be brief",
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.content": question,
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": answer,
    }
    return make_span(attributes, span=span, start_ns=start_ns)


def show(filed: FiledSpan, preview: Preview | None = None) -> dict[str, Any]:
    return decode_attributes(present_span(filed, preview or Preview()).attributes)


def take_in(book: TraceBook, *spans: FiledSpan, now_s: float = 0.0) -> list[ReadySpan]:
    return [ready for span in spans for ready in book.add(span, PLACE, now_s)]


def test_u2_project_is_the_app_for_every_span_of_the_run() -> None:
    """The record of the start already states the project, and all spans of the run follow, in whatever trace."""
    book = TraceBook()
    spans = [make_root("open"), make_span(span=2), make_span(span=3, trace=7), make_root()]
    ready = take_in(book, *spans)
    assert [(r.project, r.filed.span.span_id[-1]) for r in ready] == [
        ("refunds", 2),
        ("refunds", 3),
        ("refunds", 50),
    ]


def test_u2_replays_have_a_project_of_their_own() -> None:
    """Replays are filed apart, so that they do not distort the recorded runs' figures."""
    ready = take_in(TraceBook(), make_root(replay_of="019e" + RUN[4:]))
    assert [r.project for r in ready] == ["refunds-replays"]


def test_u2_spans_wait_for_their_root_and_no_longer_than_they_should() -> None:
    """A child that comes first waits: with its root it gets the root's project, without one its service's."""
    book = TraceBook(hold_s=2.0)
    assert take_in(book, make_span(span=2), make_span(span=3, run_id="", trace=8)) == []
    assert book.is_holding
    assert book.oldest_held() == PLACE
    assert list(book.release_waiting(1.9)) == []
    assert [r.project for r in take_in(book, make_root(), now_s=1.0)] == ["refunds", "refunds"]
    assert [r.project for r in book.release_waiting(2.0)] == ["svc"]
    assert not book.is_holding
    assert [r.project for r in take_in(book, make_span(span=4, run_id="", trace=8))] == ["svc"]


def test_u8_foreign_traces_are_filed_by_their_root() -> None:
    """Plain OTLP is filed under the project that OpenInference names, else the root span's service, else default."""
    root = make_span(run_id="", parent=0, resource={"service.name": "web"})
    child = make_span(run_id="", span=2, resource={"service.name": "db"})
    assert [r.project for r in take_in(TraceBook(), child, root)] == ["web", "web"]
    named = make_span(run_id="", parent=0, resource={"service.name": "x", names.PROJECT: "mine"})
    assert [r.project for r in take_in(TraceBook(), named)] == ["mine"]
    assert [r.project for r in take_in(TraceBook(), make_span(run_id="", parent=0, resource={}))] == ["default"]


def test_phoenix_book_is_bounded() -> None:
    """Neither waiting bytes nor remembered traces grow without limit."""
    book = TraceBook(held_bytes_max=10_000, traces_max=3)
    released = take_in(book, *[make_span({"text": "x" * 6000}, run_id="", trace=n) for n in (1, 2)])
    assert len(released) == 2
    assert len(take_in(book, *[make_span(run_id="", trace=n) for n in range(10, 20)])) == 7


def test_u2_root_shows_as_agent_with_question_and_answer() -> None:
    """The root span, which Phoenix lists, carries the first question and the last answer."""
    book = TraceBook()
    later = make_llm("and then?", "Done: refunded.", span=4, start_ns=5000)
    first = make_llm("Refund order 7", "Let me look.", span=3, start_ns=1000)
    root = take_in(book, later, first, make_root())[-1]
    shown = show(root.filed, root.preview)
    assert shown["openinference.span.kind"] == "AGENT"
    assert (shown["input.value"], shown["output.value"]) == ("Refund order 7", "Done: refunded.")
    assert json.loads(shown["metadata"]) == {
        "run_id": RUN,
        "app": "refunds",
        "replay": f"spanreplay replay {RUN}",
    }


def test_u2_root_keeps_what_it_says_itself() -> None:
    """Attributes are added only if absent, and only to root spans of ours."""
    own = {"openinference.span.kind": "CHAIN", "input.value": "mine", "metadata": "{}"}
    shown = show(make_root(**own), Preview("asked", "answered"))
    assert {key: shown[key] for key in own} == own
    assert "input.value" not in show(make_span(), Preview("asked", "answered"))


def test_u2_resource_attributes_are_copied() -> None:
    """Phoenix drops resources, so the wanted attributes are put on the span, unless it has its own."""
    resource = {"service.name": "svc", "service.version": "7", "process.command_args": "secret"}
    shown = show(make_span({"service.version": "own"}, resource=resource))
    assert shown == {"service.version": "own", "service.name": "svc"}


@pytest.mark.parametrize("letter", ["x", "ü", "漢", "🙂"])
def test_u2_long_text_is_cut_and_says_where_the_whole_is(letter: str) -> None:
    """Long text is cut at 64 KiB of UTF-8, between characters, and names the command that shows everything."""
    width = len(letter.encode())
    fits = letter * (LIMIT // width)
    shown = show(make_span({"fits": fits, "long": fits + letter * 9}))
    assert shown["fits"] == fits
    kept, _, note = shown["long"].partition("…")
    assert kept == fits
    assert note == f" [cut here, {len((fits + letter * 9).encode())} bytes in all; whole text: spanreplay show {RUN}]"


def test_u2_cut_json_is_no_longer_called_json() -> None:
    """JSON that was cut is no longer declared as JSON, or Phoenix would try to parse it."""
    shown = show(make_span({"input.value": "[" + "1," * LIMIT, "input.mime_type": "application/json"}))
    assert shown["input.mime_type"] == "text/plain"
    whole = show(make_span({"input.value": "[1]", "input.mime_type": "application/json"}))
    assert whole["input.mime_type"] == "application/json"


def test_c7_values_that_phoenix_cannot_store() -> None:
    """NUL is removed, bytes become base64, and numbers that JSON lacks become text, in nested values too."""
    filed = make_span(
        {
            "a\0b": "x\0y",
            "bytes": b"\0\1",
            "nan": float("nan"),
            "list": ["a\0", float("inf"), b"z", None],
            "map": {"k\0": {"deep": "v\0"}},
            "none": None,
            "fine": 1.5,
        }
    )
    filed.span.name = "na\0me"
    filed.span.status.message = "st\0atus"
    event = filed.span.events.add(name="e\0", attributes=encode_attributes({"t": "x" * (LIMIT + 5)}))
    span = present_span(filed, Preview())
    assert decode_attributes(span.attributes) == {
        "ab": "xy",
        "bytes": "AAE=",
        "nan": "nan",
        "list": ["a", "inf", "eg==", None],
        "map": {"k": {"deep": "v"}},
        "fine": 1.5,
        "service.name": "svc",
    }
    assert (span.name, span.status.message, span.events[0].name) == ("name", "status", "e")
    assert "cut here" in span.events[0].attributes[0].value.string_value
    assert event.attributes[0].value.string_value == "x" * (LIMIT + 5), "the recorded span must not change"


def test_u2_request_names_the_project_and_keeps_scopes() -> None:
    """A request has one resource with the project alone, and the ids as recorded."""
    spans = [("a", present_span(make_span(span=n), Preview())) for n in (1, 2)]
    spans.append(("b", present_span(make_span(span=3), Preview())))
    request = ExportTraceServiceRequest.FromString(build_request("refunds", spans).SerializeToString())
    (batch,) = request.resource_spans
    assert decode_attributes(batch.resource.attributes) == {names.PROJECT: "refunds"}
    assert [(s.scope.name, [x.span_id[-1] for x in s.spans]) for s in batch.scope_spans] == [
        ("a", [1, 2]),
        ("b", [3]),
    ]


def test_u2_deep_link() -> None:
    """The deep link is right also below a path, with or without a slash at the end."""
    assert deep_link("http://h:6006/phoenix/", "ab12") == "http://h:6006/phoenix/redirects/spans/ab12"
