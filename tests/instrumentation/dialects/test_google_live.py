"""Meaning of a live session's messages, whole, cut and broken."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.dialects import Exchange, meta, read_realtime

HOST = "wss://generativelanguage.googleapis.com"
URL = HOST + "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent?key=k"
SETUP = {
    "model": "models/gemini-live-x",
    "generationConfig": {"temperature": 0.7, "responseModalities": ["AUDIO"]},
    "systemInstruction": {"parts": [{"text": "be brief"}]},
    "tools": [{"functionDeclarations": [{"name": "pay"}]}],
}


def _sent(**message: Any) -> tuple[bool, Any]:
    return True, json.dumps(message)


def _got(**message: Any) -> tuple[bool, Any]:
    return False, {"utf8": json.dumps(message)}


def _read(*messages: tuple[bool, Any], url: str = URL) -> Exchange:
    found = read_realtime(url, messages)
    assert found is not None
    return found


def _content(**fields: Any) -> tuple[bool, Any]:
    return _got(serverContent=fields)


def test_s22_live_session_is_read_as_one_call() -> None:
    """Model, parameters, typed and spoken prompts, text and transcribed answers, calls, results and the total usage."""
    exchange = _read(
        _sent(setup=SETUP),
        _got(setupComplete={}),
        _sent(clientContent={"turns": [{"role": "user", "parts": [{"text": "hi"}]}], "turnComplete": True}),
        _content(modelTurn={"parts": [{"inlineData": {"mimeType": "audio/pcm", "data": "AAAA"}}]}),
        _content(outputTranscription={"text": "one "}),
        _got(serverContent={"turnComplete": True}, usageMetadata={"promptTokenCount": 5, "responseTokenCount": 7}),
        _sent(realtimeInput={"audio": {"data": "AAAA"}}),
        _content(inputTranscription={"text": "pay it"}),
        _got(toolCall={"functionCalls": [{"id": "c1", "name": "pay", "args": {"amount": 1}}]}),
        _sent(toolResponse={"functionResponses": [{"id": "c1", "name": "pay", "response": {"ok": True}}]}),
        _content(modelTurn={"parts": [{"text": "two"}]}),
        _got(serverContent={"turnComplete": True}, usageMetadata={"promptTokenCount": 5, "responseTokenCount": 7}),
    )
    request, response = exchange.request, exchange.response
    assert (request.kind, request.name, request.model) == ("llm", "google.live", "gemini-live-x")
    assert (request.provider, request.is_stream, request.tool_call_ids) == ("google", True, ("c1",))
    said = [m for item in exchange.dialect.conversation(exchange.body) for m in exchange.dialect.read_message(item)]
    assert [(m.role, m.text) for m in said] == [("user", "hi"), ("user", "pay it"), ("tool", '{"ok":true}')]
    assert exchange.dialect.read_system(exchange.body) == ["be brief"]
    assert (response.text, response.finish_reason, response.is_complete) == ("one two", "STOP", True)
    assert [(c.id, c.name, c.arguments) for c in response.tool_calls] == [("c1", "pay", '{"amount":1}')]
    assert (response.model, response.tokens_in, response.tokens_out) == ("gemini-live-x", 10, 14)
    assert meta(request, response)["temperature"] == 0.7


def test_s26_cut_live_session_has_what_came() -> None:
    """An unfinished turn has its text so far and is incomplete; an interrupted one is complete."""
    messages = [_sent(setup=SETUP), _content(modelTurn={"parts": [{"text": "one "}]})]
    cut = _read(*messages).response
    assert (cut.text, cut.is_complete) == ("one ", False)
    ended = _read(*messages, _content(interrupted=True)).response
    assert (ended.text, ended.finish_reason, ended.is_complete) == ("one ", "INTERRUPTED", True)


def test_live_url_is_known_by_its_path() -> None:
    """Vertex AI and constrained tokens have other paths; Google's other websockets are not live sessions."""
    vertex = "wss://l-aiplatform.googleapis.com/ws/google.cloud.aiplatform.v1.LlmBidiService/BidiGenerateContent"
    for url in (vertex, URL.replace("BidiGenerateContent?", "BidiGenerateContentConstrained?")):
        assert _read(url=url).request.name == "google.live"
    assert (
        read_realtime(HOST + "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateMusic", ()) is None
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.text() | st.none() | st.integers())))
def test_live_session_reads_any_message_without_an_error(messages: list[tuple[bool, Any]]) -> None:
    """Anything that is not a message is ignored."""
    assert _read(*messages).response.error == ""
