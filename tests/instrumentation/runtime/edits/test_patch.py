"""Patches: how `--set` is parsed, refused with a caret, and applied."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model.errors import ConfigError
from spanreplay.replayer.resolve.directions import Directions
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.runtime.edits.apply_patch import patch_arguments, patch_body, patch_response
from spanreplay.runtime.edits.patch import Patch, edit, parse_patch
from support.replay_calls import Asked, record_calls

CHAT = {"model": "m", "messages": [{"role": "system", "content": "be kind. "}, {"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("text", "side", "path", "op", "value"),
    [
        ('llm[3].system += "ask first"', "request", ("system",), "+=", "ask first"),
        ("llm[3].system+=ask first", "request", ("system",), "+=", "ask first"),
        ("llm[*].temperature = 0", "request", ("temperature",), "=", 0),
        ("tool:get_price[2].response = 12.5", "response", (), "=", 12.5),
        ("tool:f[1].response.items[0].price=3", "response", ("items", 0, "price"), "=", 3),
        ('tool:f[1].request["odd name"].x = null', "request", ("odd name", "x"), "=", None),
        ("tool:f[1].x[-1] = [1, 2]", "request", ("x", -1), "=", [1, 2]),
        ("delete llm[3].tools[0]", "request", ("tools", 0), "delete", None),
        ("llm:openai.chat.completions@main/*[2..3].seed = true", "request", ("seed",), "=", True),
        ('tool:f[1].x = "a = b"', "request", ("x",), "=", "a = b"),
        ("tool:f[1].raises = 2", "request", ("raises",), "=", 2),
    ],
)
def test_s64_patch_is_read(text: str, side: str, path: tuple[Any, ...], op: str, value: Any) -> None:
    """Selector, side, path, operator and value are parsed as written."""
    patch = parse_patch(text)
    assert (patch.side, patch.path, patch.op, patch.value) == (side, path, op, value)


@pytest.mark.parametrize(
    ("text", "problem", "pointed_at"),
    [
        ("llm.system = 1", "which call? llm[3]", ".system"),
        ("llm[3.system = 1", "not closed", "[3.system"),
        ("llm[three].system = 1", "not the number of a call", "[three]"),
        ("llm[3].system", "= or += is missing", ""),
        ("llm[3].system *= 2", "= or += is missing", "*= 2"),
        ("llm[3].system =", "a value is missing", ""),
        ("llm[3]. = 2", "name is missing", " = 2"),
        ("llm[3].x[y] = 2", "a number or a name in quotes", "y] = 2"),
        ('llm[3].x = {"a": }', "not JSON", "}"),
        ('llm[3].x = "open', "not JSON", '"open'),
        ("llm[3].x = 1.2.3", "not JSON", ".3"),
        ("delete llm[3]", "name a field", "llm[3]"),
        ("delete llm[3].x = 1", "nothing follows", "= 1"),
        ("tool:f[1] raises Nothing: x", "name of an exception", "Nothing"),
        ("tool:f[1] raises print", "name of an exception", "print"),
        ("tool:f[1] raises SystemExit", "name of an exception", "SystemExit"),
        ("llm[1] answers maybe", "HTTP status and a body", "maybe"),
    ],
)
def test_s64_bad_patch_is_refused_with_a_caret(text: str, problem: str, pointed_at: str) -> None:
    """A patch that can't be parsed is quoted, with a caret below the place."""
    with pytest.raises(ConfigError) as caught:
        parse_patch(text)
    first, quoted, caret = str(caught.value).split("\n")
    assert problem in first
    assert quoted == text
    assert text[caret.index("^") :].startswith(pointed_at)
    assert caret.strip() == "^"


@given(st.text(max_size=40))
def test_s64_any_text_is_a_patch_or_a_config_error(text: str) -> None:
    """No text raises any other error."""
    with contextlib.suppress(ConfigError):
        parse_patch(f"llm[1]{text}")


def run(text: str, value: Any) -> Any:
    """Apply one patch to one JSON value."""
    return edit(value, parse_patch(text))


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("x[1].a = 2", {"a": 1}, {"a": 2}),
        ("x[1].b = 2", {"a": 1}, {"a": 1, "b": 2}),
        ("x[1].a += 2", {"a": 1}, {"a": 3}),
        ('x[1].a += "c"', {"a": "b"}, {"a": "bc"}),
        ("x[1].a += [3]", {"a": [1]}, {"a": [1, 3]}),
        ("x[1].a += 3", {"a": [1]}, {"a": [1, 3]}),
        ('x[1].a += {"c": 1}', {"a": {"b": 2}}, {"a": {"b": 2, "c": 1}}),
        ("delete x[1].a", {"a": 1, "b": 2}, {"b": 2}),
        ("delete x[1].a[0]", {"a": [1, 2]}, {"a": [2]}),
        ("x[1].a[2] = 3", {"a": [1, 2]}, {"a": [1, 2, 3]}),
        ("x[1].a[-1].b = 3", {"a": [{}, {"b": 1}]}, {"a": [{}, {"b": 3}]}),
        ("x[1].a.b = 3", {"a": '{"b": 1}'}, {"a": '{"b": 3}'}),
        (
            "x[1].a.b = 3",
            {"a": {"$type": "dataclass", "fields": {"b": 1}}},
            {"a": {"$type": "dataclass", "fields": {"b": 3}}},
        ),
    ],
)
def test_s64_patch_changes_the_field(text: str, before: Any, after: Any) -> None:
    """The field changes, everything else stays, and the given value is not modified."""
    kept = json.dumps(before)
    assert run(text, before) == after
    assert json.dumps(before) == kept


@pytest.mark.parametrize(
    ("text", "problem", "pointed_at"),
    [
        ("tool:f[1].y.z = 1", "there is no 'y' here, only x", "y.z"),
        ("tool:f[1].x.z[0] = 1", "text has no fields", "z[0]"),
        ("delete tool:f[1].y", "there is no 'y' here", "y"),
        ("tool:f[1].x += 1", "a number can't be added to text", "x += 1"),
        ("tool:f[1].response.x = 1", "a number has no fields", "x = 1"),
        ("tool:f[9].x = 1", "the recording has no such call, only 2 of tool:f", "tool:f[9]"),
        ("llm[1].x = 1", "the recording has no such call, none of llm:*", "llm[1]"),
    ],
)
def test_s64_patch_is_tried_out_on_the_recording(text: str, problem: str, pointed_at: str) -> None:
    """A patch that does not fit the recorded call is refused before the agent starts, with a caret."""
    recording = record_calls([Asked("a"), Asked("b")])
    with pytest.raises(ConfigError) as caught:
        Directions(Plan().set(text), recording)
    first, quoted, caret = str(caught.value).split("\n")
    assert problem in first
    assert quoted[caret.index("^") :].startswith(pointed_at)


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (CHAT, {**CHAT, "messages": [{"role": "system", "content": "be kind. ask"}, CHAT["messages"][1]]}),
        ({"messages": [{"role": "user"}]}, {"messages": [{"role": "system", "content": "ask"}, {"role": "user"}]}),
        ({"system": "be kind. ", "messages": []}, {"system": "be kind. ask", "messages": []}),
        ({"system": [{"text": "be "}], "messages": []}, {"system": [{"text": "be ask"}], "messages": []}),
        ({"instructions": "be ", "input": "x"}, {"instructions": "be ask", "input": "x"}),
        (
            {"systemInstruction": {"parts": [{"text": "be "}]}, "contents": []},
            {"systemInstruction": {"parts": [{"text": "be ask"}]}, "contents": []},
        ),
    ],
    ids=["chat", "chat without", "anthropic", "anthropic parts", "responses", "google"],
)
def test_s64_system_is_the_system_prompt_of_every_protocol(body: Any, after: Any) -> None:
    """`system` finds the prompt where each protocol has it."""
    assert patch_body(body, [parse_patch('llm[1].system += "ask"')]) == after


def test_s64_arguments_may_be_named_in_full() -> None:
    """`arguments.x` and `x` mean the same argument of a tool."""
    for text in ("tool:f[1].x = 2", "tool:f[1].arguments.x = 2", "tool:f[1].request.x = 2"):
        assert patch_arguments({"x": 1}, [parse_patch(text)]) == {"x": 2}


def exchange(*pieces: str) -> str:
    """A recorded response in these pieces."""
    chunks = [[n, piece] for n, piece in enumerate(pieces)]
    return json.dumps({"status": 200, "headers": [["content-length", "9"]], "chunks": chunks, "end": "complete"})


def body_of(response: str) -> str:
    """The body of a recorded response."""
    return "".join(chunk[1] for chunk in json.loads(response)["chunks"])


def test_s64_body_of_an_answer_is_set_by_path_and_as_text() -> None:
    """A field of a JSON answer is set by its path; `text` is the answer's text."""
    answer = exchange('{"choices": [{"message"', ': {"content": "sell"}}]}')
    for text in ('llm[1].response.choices[0].message.content = "hold"', 'llm[1].response.text = "hold"'):
        changed, outcome = patch_response(answer, "ok", [parse_patch(text)])
        assert json.loads(body_of(changed)) == {"choices": [{"message": {"content": "hold"}}]}
        assert outcome == "ok"
        assert json.loads(changed)["headers"] == []


def test_s64_text_of_a_stream_is_set() -> None:
    """The first event that has text gets the new text, and every event is still there."""
    events = [
        'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n',
        'data: {"choices": [{"delta": {"content": "se"}}]}\n\n',
        'data: {"choices": [{"delta": {"content": "ll"}}]}\n\n',
        "data: [DONE]\n\n",
    ]
    changed, _ = patch_response(exchange(*events), "ok", [parse_patch('llm[1].response.text = "hold"')])
    lines = [line[6:] for line in body_of(changed).split("\n") if line]
    assert lines[-1] == "[DONE]"
    texts = [json.loads(line)["choices"][0]["delta"]["content"] for line in lines[:-1]]
    assert texts == ["", "hold", ""]
    assert len(json.loads(changed)["chunks"]) == len(events)
    with pytest.raises(ConfigError, match=r"only response\.text and response\.events can be set"):
        patch_response(exchange(*events), "ok", [parse_patch("llm[1].response.choices[0] = 1")])


EVENTS = (
    'event: delta\ndata: {"n": 1}\n\n',
    'event: delta\ndata: {"n": 2, "text": "x"}\n\n',
    ": a comment\n\n",
    'event: end\ndata: {"n": 3}\n\n',
    "data: [DONE]\n\n",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llm[1].response.events[1].n = 7", (EVENTS[0], 'event: delta\ndata: {"n":7,"text":"x"}\n\n', EVENTS[3])),
        ("delete llm[1].response.events[1].text", (EVENTS[0], 'event: delta\ndata: {"n":2}\n\n', EVENTS[3])),
        ("delete llm[1].response.events[0]", (EVENTS[1], EVENTS[3])),
        ('llm[1].response.events += {"n": 1}', (EVENTS[0], EVENTS[1], EVENTS[3], EVENTS[0])),
        ('llm[1].response.events = [{"n": 3}, {"n": 1}]', (EVENTS[3], EVENTS[0])),
        ("llm[1].response.events = []", ()),
    ],
)
def test_s64_events_of_a_stream_are_changed_one_by_one(text: str, expected: tuple[str, ...]) -> None:
    """An event is set, removed or added by its number; the others stay as they were sent, [DONE] included."""
    changed, outcome = patch_response(exchange(*EVENTS), "ok", [parse_patch(text)])
    assert body_of(changed) == "".join([*expected, EVENTS[4]])
    assert outcome == "ok"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("llm[1].response.events = 3", "the events of a stream are a list"),
        ("delete llm[1].response.events", "can be set, but not removed"),
        ("llm[1].response.events[9].n = 3", "there is no element 9"),
    ],
)
def test_s64_events_that_do_not_fit_are_refused(text: str, problem: str) -> None:
    """A patch of events that aren't there, or that would leave no list of them, is refused."""
    with pytest.raises(ConfigError, match=problem):
        patch_response(exchange(*EVENTS), "ok", [parse_patch(text)])


def test_s64_call_raises_or_answers_another_status() -> None:
    """A function call is made to raise an exception by its name, an HTTP exchange to answer with a status and body."""
    changed, outcome = patch_response('{"value": 1}', "ok", [parse_patch("tool:f[1] raises TimeoutError: no answer")])
    error = {"$type": "exception", "class": "builtins:TimeoutError", "args": ["no answer"]}
    assert (json.loads(changed), outcome) == ({"error": error}, "error")
    named = parse_patch("tool:f[1] raises httpx.ConnectError").value
    assert (named["class"], named["args"]) == ("httpx:ConnectError", [])
    changed, outcome = patch_response(exchange('{"a": 1}'), "ok", [parse_patch('llm[1] answers 503 {"b": 2}')])
    answer = json.loads(changed)
    assert (answer["status"], answer["headers"], answer["chunks"], outcome) == (503, [], [[0, '{"b": 2}']], "error")
    with pytest.raises(ConfigError, match="llm\\[2\\] answers 503"):
        patch_response(exchange("{}"), "ok", [parse_patch("llm[1] raises TimeoutError")])
    with pytest.raises(ConfigError, match="no single answer"):
        patch_response('{"value": 1}', "ok", [parse_patch("tool:f[1] answers 503")])
    assert Patch.from_json(parse_patch("tool:f[1] raises KeyError: x").to_json()).is_error


def test_s64_recorded_error_becomes_a_value() -> None:
    """Setting the response of a call that raised makes it return."""
    changed, outcome = patch_response('{"error": {}}', "error", [parse_patch("tool:f[1].response = 3")])
    assert (json.loads(changed), outcome) == ({"value": 3}, "ok")
