"""Meanings that the Google dialect reads from real bodies: Gemini API and Vertex AI, whole, streamed, cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spanreplay.dialects import Dialect, find_dialect, meta
from spanreplay.dialects._meaning import output_hash
from spanreplay.model.keys import compute_key
from support import wire_google

Json = dict[str, Any]
BASE = "https://generativelanguage.googleapis.com/v1beta/models/gemini-x"
TOOL_PROMPT = 'use tool pay with {"amount": 190000} and use tool note with {"text": "é"}'


def _find(url: str) -> Dialect:
    found = find_dialect("POST", url)
    assert found is not None
    return found


WHOLE, STREAM = _find(f"{BASE}:generateContent"), _find(f"{BASE}:streamGenerateContent?alt=sse")


def _body(prompt: str = "hi", **more: Any) -> Json:
    declared = [{"name": name, "parameters": {"type": "OBJECT"}} for name in ("pay", "note")]
    return {
        "contents": [{"role": "user", "parts": [{"text": prompt}]}],
        "systemInstruction": {"parts": [{"text": "be brief"}], "role": "user"},
        "generationConfig": {"temperature": 0.7, "topP": 0.9, "seed": 3, "maxOutputTokens": 50},
        "tools": [{"functionDeclarations": declared}],
        **more,
    }


def _key(dialect: Dialect, body: Json) -> str:
    request = dialect.read_request(body)
    return compute_key(request.keyspec, request.key_fields).hex


@pytest.mark.parametrize(
    ("url", "model", "is_stream"),
    [
        (f"{BASE}:generateContent?key=k", "gemini-x", False),
        (f"{BASE}:streamGenerateContent?alt=sse", "gemini-x", True),
        ("http://127.0.0.1:9/v1/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro", False),
        (
            "https://eu-aiplatform.googleapis.com/v1beta1/projects/p/locations/l/publishers/google/models/gemini-x"
            ":streamGenerateContent",
            "gemini-x",
            True,
        ),
        ("https://l-aiplatform.googleapis.com/v1/projects/p/locations/l/endpoints/42:generateContent", "42", False),
    ],
)
def test_google_dialect_takes_model_and_stream_from_the_url(url: str, model: str, is_stream: bool) -> None:
    """Gemini API and Vertex AI name the model in the path, and the method says whether it streams."""
    dialect = _find(url)
    request = dialect.read_request(_body())
    assert (request.name, request.provider) == ("google.generate_content", "google")
    assert (request.model, request.is_stream) == (model, is_stream)


@pytest.mark.parametrize("method", ["countTokens", "embedContent", "batchGenerateContent", "rawPredict"])
def test_google_dialect_leaves_other_methods_alone(method: str) -> None:
    """Another method of a model is not a generation, even with the body of one."""
    assert find_dialect("POST", f"{BASE}:{method}", _body()) is None


def test_s22_google_request_meaning() -> None:
    """Parameters are read from generationConfig, and fields that the key ignores are named."""
    request = WHOLE.read_request(_body(labels={"team": "blue"}))
    assert request.parameters == {"temperature": 0.7, "topP": 0.9, "seed": 3, "maxOutputTokens": 50}
    assert request.ignored == ("labels",)
    chat = _find("http://h/v1/chat/completions")
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert request.system_prompt_hash == chat.read_request({"messages": messages}).system_prompt_hash


def test_s23_google_meta_is_whole() -> None:
    """Requested and answering model, parameters and usage are in meta."""
    body = _body()
    answer = wire_google.answer_generate("gemini-x", body)
    request, response = WHOLE.read_request(body), WHOLE.read_response(200, [json.dumps(answer)])
    assert meta(request, response) == {
        "model": "gemini-x",
        "response_model": "gemini-x-2026-10-01",
        "provider": "google",
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "max_tokens": 50,
        "tokens_in": answer["usageMetadata"]["promptTokenCount"],
        "tokens_out": answer["usageMetadata"]["candidatesTokenCount"],
        "finish_reason": "STOP",
        "output_hash": output_hash(response),
        "system_prompt_hash": request.system_prompt_hash,
        "stream": False,
    }


def test_s34_google_key_has_model_stream_and_every_content() -> None:
    """Model, streaming, prompt, system prompt, parameters and tools are in the key; labels are not."""
    body = _body()
    others = [
        _key(_find(f"{BASE}-2:generateContent"), body),
        _key(STREAM, body),
        _key(WHOLE, _body("ho")),
        _key(WHOLE, _body(systemInstruction={"parts": [{"text": "be bold"}]})),
        _key(WHOLE, _body(generationConfig={"temperature": 0.8})),
        _key(WHOLE, _body(tools=[])),
    ]
    assert len({*others, _key(WHOLE, body)}) == 7
    assert _key(WHOLE, _body(labels={"a": "b"})) == _key(WHOLE, body)


def _answered(call_id: str, customer: str) -> Json:
    call = {"functionCall": {"id": call_id, "name": "pay", "args": {"id": "c-1"}}}
    result = {"functionResponse": {"id": call_id, "name": "pay", "response": {"id": customer}}}
    return _body(contents=[{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}])


def test_s34_google_key_numbers_call_ids_and_keeps_customer_ids() -> None:
    """An id that the provider generated does not matter; an id inside a tool's answer does."""
    customer, other = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    assert _key(WHOLE, _answered("a8Xk2Lm9", customer)) == _key(WHOLE, _answered("Zz81kQp0", customer))
    assert _key(WHOLE, _answered("a8Xk2Lm9", customer)) != _key(WHOLE, _answered("a8Xk2Lm9", other))


def test_google_request_names_the_calls_that_it_answers() -> None:
    """Ids of function responses are read."""
    assert WHOLE.read_request(_answered("a8Xk2Lm9", "x")).tool_call_ids == ("a8Xk2Lm9",)


def test_s22_google_whole_and_streamed_response_mean_the_same() -> None:
    """A text is read alike from one JSON body, from events and from a JSON array of chunks."""
    whole = wire_google.answer_generate("gemini-x", _body())
    meaning = WHOLE.read_response(200, [json.dumps(whole)])
    assert meaning.text == whole["candidates"][0]["content"]["parts"][0]["text"]
    events = wire_google.stream_generate("gemini-x", _body())
    chunks = [json.loads(event.decode().removeprefix("data: ")) for event in events]
    said = "".join(chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks)
    streamed = STREAM.read_response(200, [event.decode() for event in events], True)
    array = STREAM.read_response(200, [json.dumps(chunks, indent=1)], True)
    assert streamed.text == said
    assert streamed == array
    for each in (meaning, streamed):
        assert (each.finish_reason, each.error, each.is_complete) == ("STOP", "", True)
        assert [(m.role, m.text) for m in each.messages] == [("assistant", each.text)]
        assert min(each.tokens_in, each.tokens_out) > 0


def test_s22_google_tool_calls_are_read_as_sent() -> None:
    """Names, ids and arguments of parallel function calls are read from both forms."""
    answer = wire_google.answer_generate("gemini-x", _body(TOOL_PROMPT))
    events = wire_google.stream_generate("gemini-x", _body(TOOL_PROMPT))
    whole = WHOLE.read_response(200, [json.dumps(answer)])
    streamed = STREAM.read_response(200, [b"".join(events).decode()], True)
    for each in (whole, streamed):
        named = [(call.name, json.loads(call.arguments)) for call in each.tool_calls]
        assert named == [("pay", {"amount": 190_000}), ("note", {"text": "é"})]
        assert all(len(call.id) == 8 for call in each.tool_calls)
        assert each.messages[0].tool_calls == each.tool_calls


def test_s26_google_cut_stream_gives_what_came() -> None:
    """A stream that was left early has its text so far, and is marked as incomplete."""
    events = [event.decode() for event in wire_google.stream_generate("gemini-x", _body())]
    whole = STREAM.read_response(200, events, True)
    cut = STREAM.read_response(200, events[:5], True)
    assert 0 < len(cut.text) < len(whole.text)
    assert whole.text.startswith(cut.text)
    assert not cut.is_complete
    assert cut.tokens_out == -1


def test_google_thoughts_count_as_output_and_are_not_said() -> None:
    """Thinking is billed as output and is not part of the answer's text."""
    parts = [{"text": "hm", "thought": True}, {"text": "yes"}]
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 30, "cachedContentTokenCount": 4}
    answer = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}], "usageMetadata": usage}
    meaning = WHOLE.read_response(200, [json.dumps(answer)])
    assert (meaning.text, meaning.tokens_in, meaning.tokens_out) == ("yes", 5, 32)
    assert (meaning.tokens_reasoning, meaning.tokens_cache_read) == (30, 4)


def test_google_blocked_prompt_says_why() -> None:
    """A prompt that was refused has no candidate; its reason is the finish reason."""
    meaning = WHOLE.read_response(200, ['{"promptFeedback":{"blockReason":"SAFETY"}}'])
    assert (meaning.finish_reason, meaning.text, meaning.is_complete) == ("SAFETY", "", True)


@pytest.mark.parametrize("as_array", [False, True], ids=["object", "array"])
def test_s26_google_error_body_is_read(as_array: bool) -> None:
    """An error has Google's status, also in the array form of a stream's error."""
    body = wire_google.error_body(429, "slow down")
    meaning = WHOLE.read_response(429, [json.dumps([body] if as_array else body)])
    assert meaning.error == "RESOURCE_EXHAUSTED: slow down"


def test_google_openinference_attributes() -> None:
    """Phoenix gets the conversation, the tools and the answer in its own terms."""
    body = _body("pay")
    body["contents"] += _answered("a8Xk2Lm9", "x")["contents"]
    body["contents"][0]["parts"].append({"inlineData": {"mimeType": "image/png", "data": "aGk="}})
    answer = wire_google.answer_generate("gemini-x", _body())
    request, response = WHOLE.read_request(body), WHOLE.read_response(200, [json.dumps(answer)])
    found = WHOLE.openinference(body, request, response)
    roles = [found[f"llm.input_messages.{n}.message.role"] for n in range(4)]
    assert roles == ["system", "user", "assistant", "tool"]
    assert found["llm.input_messages.2.message.tool_calls.0.tool_call.function.name"] == "pay"
    assert found["llm.input_messages.3.message.tool_call_id"] == "a8Xk2Lm9"
    image = "llm.input_messages.1.message.contents.1.message_content.image.image.url"
    assert found[image] == "data:image/png;base64,aGk="
    assert found["llm.provider"] == "google"
    assert found["output.value"] == response.text
    assert json.loads(str(found["llm.tools.1.tool.json_schema"]))["name"] == "note"
