"""Meaning of a realtime session's events, whole, cut and broken."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.dialects import Exchange, meta, read_realtime

URL = "wss://api.openai.com/v1/realtime?model=gpt-x"


def _sent(**event: Any) -> tuple[bool, Any]:
    return True, json.dumps(event)


def _got(**event: Any) -> tuple[bool, Any]:
    return False, {"utf8": json.dumps(event)}


def _read(*events: tuple[bool, Any], url: str = URL) -> Exchange:
    found = read_realtime(url, events)
    assert found is not None
    return found


def test_realtime_url_is_known_by_its_path() -> None:
    """Any host that serves /realtime is a model; Azure names a deployment; other websockets are not recognised."""
    assert _read().request.model == "gpt-x"
    azure = _read(url="wss://x.openai.azure.com/openai/realtime?api-version=1&deployment=prod")
    assert (azure.request.model, azure.request.provider) == ("prod", "azure")
    assert read_realtime("wss://h/socket?model=gpt-x", ()) is None
    assert read_realtime("wss://[::1", ()) is None


def test_s58_session_parameters_are_read_as_asked() -> None:
    """Settings of the session or of a response are read, and the last one wins."""
    update = {"instructions": "be brief", "temperature": 0.7, "max_response_output_tokens": 50}
    exchange = _read(_sent(type="session.update", session=update))
    found = meta(exchange.request)
    assert (found["temperature"], found["max_tokens"]) == (0.7, 50)
    later = _read(
        _sent(type="session.update", session=update), _sent(type="response.create", response={"temperature": 0})
    )
    assert meta(later.request)["temperature"] == 0


def test_s22_responses_are_added_up() -> None:
    """Usage is summed, texts and spoken words are joined, calls are as sent."""
    said = {"type": "message", "content": [{"type": "output_audio", "transcript": "one "}]}
    call = {"type": "function_call", "call_id": "c", "name": "pay", "arguments": '{"a":1}'}
    usage = {"input_tokens": 5, "output_tokens": 7, "input_token_details": {"cached_tokens": 2}}
    exchange = _read(
        _got(type="session.created", session={"model": "gpt-x-2026-10-01"}),
        _got(type="response.done", response={"status": "completed", "output": [said, call], "usage": usage}),
        _got(type="response.done", response={"status": "completed", "output": [said], "usage": usage}),
    )
    response = exchange.response
    assert (response.model, response.text) == ("gpt-x-2026-10-01", "one one ")
    assert (response.tokens_in, response.tokens_out, response.tokens_cache_read) == (10, 14, 4)
    assert [(c.id, c.name, c.arguments) for c in response.tool_calls] == [("c", "pay", '{"a":1}')]
    assert (response.finish_reason, response.is_complete) == ("completed", True)


def test_s26_cut_session_has_what_came() -> None:
    """An unfinished response has its text so far and is incomplete."""
    exchange = _read(
        _got(type="response.created", response={}),
        _got(type="response.output_audio.delta", delta="AAAA"),
        _got(type="response.output_audio_transcript.delta", delta="half "),
        _got(type="response.output_audio_transcript.delta", delta="a word"),
    )
    assert (exchange.response.text, exchange.response.is_complete) == ("half a word", False)


def test_s26_error_event_is_read() -> None:
    """An error of the server is the session's error."""
    exchange = _read(_got(type="error", error={"type": "invalid_request_error", "message": "no"}))
    assert exchange.response.error == "invalid_request_error: no"


KINDS = st.sampled_from(
    [
        *("session.update", "session.created", "response.create", "response.created", "response.done", "error"),
        *("conversation.item.create", "response.output_text.delta", "x"),
    ]
)
broken = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["session", "response", "output", "usage", "content", "type", "item", "error", "tools"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.booleans(), KINDS, broken), max_size=5))
def test_any_events_are_read_without_an_error(events: list[tuple[bool, str, Any]]) -> None:
    """Any content of the events gives a meaning without an error."""
    fields = ("session", "response", "item", "error", "delta", "transcript")
    exchange = _read(
        *((is_sent, json.dumps({"type": kind, **dict.fromkeys(fields, value)})) for is_sent, kind, value in events),
        (True, "no JSON"),
        (False, {"b64": "AA=="}),
    )
    shown = exchange.dialect.openinference(exchange.body, exchange.request, exchange.response)
    assert shown["openinference.span.kind"] == "LLM"
    assert isinstance(meta(exchange.request, exchange.response), dict)
