"""Meanings that the dialects read from real bodies, whole, streamed, cut and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.dialects import Dialect, ResponseMeaning, ToolCall, find_dialect, meta
from spanreplay.dialects._meaning import output_hash
from spanreplay.model.keys import compute_key
from support import wire_anthropic, wire_openai

Json = dict[str, Any]

TOOL_PROMPT = 'use tool pay with {"amount": 190000} and use tool note with {"text": "é"}'


def _chat(prompt: str = "hi", **more: Any) -> Json:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": prompt}]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("pay", "note")]
    return {"model": "gpt-x", "messages": messages, "tools": tools, "temperature": 0.7, "seed": 3, **more}


def _responses(prompt: str = "hi", **more: Any) -> Json:
    tools: list[Json] = [{"type": "function", "name": name, "parameters": {}} for name in ("pay", "note")]
    return {"model": "gpt-x", "instructions": "be brief", "input": prompt, "tools": tools, "temperature": 0.7, **more}


def _messages(prompt: str = "hi", **more: Any) -> Json:
    system = [{"type": "text", "text": "be brief"}]
    tools: list[Json] = [{"name": name, "input_schema": {}} for name in ("pay", "note")]
    said = [{"role": "user", "content": prompt}]
    return {"model": "claude-x", "max_tokens": 99, "system": system, "messages": said, "tools": tools, **more}


def _dialect(path: str) -> Dialect:
    found = find_dialect("POST", f"http://127.0.0.1:8000/v1/{path}")
    assert found is not None
    return found


CHAT, RESPONSES, EMBEDDINGS, ANTHROPIC = map(_dialect, ("chat/completions", "responses", "embeddings", "messages"))

GOOGLE = find_dialect("POST", "http://127.0.0.1:8000/v1beta/models/m:streamGenerateContent")
assert GOOGLE is not None
EVERY_DIALECT = (CHAT, RESPONSES, EMBEDDINGS, ANTHROPIC, GOOGLE)

# dialect, body, whole answer, streamed answer
PROTOCOLS: dict[str, tuple[Dialect, Callable[..., Json], Callable[[Json], Json], Callable[[Json], list[bytes]]]] = {
    "openai_chat": (
        CHAT,
        _chat,
        lambda body: wire_openai.answer_chat(body, "fp_1"),
        lambda body: wire_openai.stream_chat(body, "fp_1"),
    ),
    "openai_responses": (RESPONSES, _responses, wire_openai.answer_responses, wire_openai.stream_responses),
    "anthropic": (ANTHROPIC, _messages, wire_anthropic.answer_messages, wire_anthropic.stream_messages),
}
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def _joined(events: list[bytes]) -> str:
    return b"".join(events).decode()


def _said(events: list[bytes]) -> str:
    """The text of a stream, joined without the code under test."""
    text = ""
    for event in events:
        data = event.decode().partition("data: ")[2].strip()
        if data == "[DONE]":
            continue
        payload = json.loads(data)
        choices = payload.get("choices") or [{}]
        delta = payload.get("delta") or choices[0].get("delta") or {}
        if isinstance(delta, str):
            text += delta
        else:
            text += delta.get("content") or delta.get("text") or ""
    return text


# ── finding ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("url", "name", "provider"),
    [
        ("https://api.openai.com/v1/chat/completions", "openai.chat.completions", "openai"),
        ("http://localhost:11434/v1/chat/completions", "openai.chat.completions", "openai"),
        ("http://vllm:8000/v1/chat/completions/", "openai.chat.completions", "openai"),
        ("https://api.groq.com/openai/v1/chat/completions", "openai.chat.completions", "groq"),
        ("https://openrouter.ai/api/v1/chat/completions", "openai.chat.completions", "openrouter"),
        (
            "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1",
            "openai.chat.completions",
            "azure",
        ),
        ("https://api.openai.com/v1/responses", "openai.responses", "openai"),
        ("http://h/v1/embeddings", "openai.embeddings", "openai"),
        ("https://api.anthropic.com/v1/messages?beta=true", "anthropic.messages", "anthropic"),
        ("https://api.minimax.io/anthropic/v1/messages", "anthropic.messages", "anthropic"),
    ],
)
def test_dialect_is_found_by_path(url: str, name: str, provider: str) -> None:
    """Any host that serves the path speaks the protocol; the host only names the provider."""
    dialect = find_dialect("post", url)
    assert dialect is not None
    assert (dialect.name, dialect.provider) == (name, provider)


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("GET", "https://api.openai.com/v1/responses"),
        ("POST", "https://api.openai.com/v1/responses/resp_1/cancel"),
        ("POST", "https://api.anthropic.com/v1/messages/batches"),
        ("POST", "https://api.openai.com/v1/files"),
        ("POST", "https://example.test/messages"),
        ("POST", "http://[::1"),
        ("POST", ""),
    ],
)
def test_dialect_is_none_for_everything_else(method: str, url: str) -> None:
    """An unknown protocol has no dialect, so its kind is http."""
    assert find_dialect(method, url) is None


@pytest.mark.parametrize(
    "body", [None, [], "text", {"answer": 1}, {"input": 3, "model": "m"}, {"input": "x"}], ids=repr
)
def test_dialect_is_none_for_another_body(body: Any) -> None:
    """A form posted to /responses is not an LLM call, although the path looks like one."""
    assert find_dialect("POST", "https://survey.test/api/responses", body) is None


def test_dialect_takes_its_own_body() -> None:
    """Each protocol recognises its bodies."""
    bodies = {
        "chat/completions": _chat(),
        "responses": _responses(),
        "messages": _messages(),
        "embeddings": {"input": ["a"], "model": "e"},
    }
    for path, body in bodies.items():
        assert find_dialect("POST", f"http://h/v1/{path}", body) is not None


def test_s23_dialect_takes_the_model_from_an_azure_url() -> None:
    """If the body names no model, the deployment in the URL is the requested one."""
    url = "https://x.openai.azure.com/openai/deployments/gpt-x-prod/chat/completions"
    dialect = find_dialect("POST", url)
    assert dialect is not None
    assert dialect.read_request({"messages": []}).model == "gpt-x-prod"


# ── requests ────────────────────────────────────────────────────────────────────────────────────────
@every_protocol
def test_s22_request_meaning(protocol: str) -> None:
    """Model, parameters, system prompt, stream and key fields are read, and fields that the key ignores are named."""
    dialect, make_body, _, _ = PROTOCOLS[protocol]
    body = make_body(temperature=0.7, stream=True, metadata={"trace": "t"})
    request = dialect.read_request(body)
    assert (request.kind, request.effect, request.model) == ("llm", "read", body["model"])
    assert request.is_stream
    assert request.parameters["temperature"] == 0.7
    assert not {"messages", "input", "tools", "system", "instructions"} & set(request.parameters)
    assert request.ignored == ("metadata",)
    assert len(request.system_prompt_hash) == 64
    assert len(compute_key(request.keyspec, request.key_fields).hex) == 64


@every_protocol
def test_s28_system_prompt_shows_in_hash_and_key(protocol: str) -> None:
    """A changed system prompt changes its hash and the key; the same prompt has one hash in every protocol."""
    dialect, make_body, _, _ = PROTOCOLS[protocol]
    before = dialect.read_request(make_body())
    text = json.dumps(make_body()).replace("be brief", "be briefer")
    after = dialect.read_request(json.loads(text))
    assert before.system_prompt_hash != after.system_prompt_hash
    assert before.system_prompt_hash == CHAT.read_request(_chat()).system_prompt_hash
    keys = [compute_key(each.keyspec, each.key_fields).hex for each in (before, after)]
    assert keys[0] != keys[1]


def test_request_names_the_calls_that_it_answers() -> None:
    """The ids of tool results are read in each protocol."""
    chat = _chat()
    chat["messages"].append({"role": "tool", "tool_call_id": "call_1", "content": "42"})
    output = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
    block = {"type": "tool_result", "tool_use_id": "call_1", "content": "42"}
    assert CHAT.read_request(chat).tool_call_ids == ("call_1",)
    assert RESPONSES.read_request(_responses(input=[output])).tool_call_ids == ("call_1",)
    bodies = _messages(messages=[{"role": "user", "content": [block]}])
    assert ANTHROPIC.read_request(bodies).tool_call_ids == ("call_1",)


def test_embedding_request_meaning() -> None:
    """An embedding is its own kind, with its own key."""
    request = EMBEDDINGS.read_request({"model": "e", "input": ["a", "b"], "dimensions": 8, "user": "u"})
    assert (request.kind, request.name, request.keyspec) == ("embedding", "openai.embeddings", "openai_embeddings/1")
    assert request.parameters == {"dimensions": 8}
    assert request.ignored == ("user",)


# ── responses ───────────────────────────────────────────────────────────────────────────────────────
@every_protocol
def test_s22_whole_and_streamed_response_mean_the_same(protocol: str) -> None:
    """A text is read alike from one JSON body and from server-sent events."""
    dialect, make_body, answer, stream = PROTOCOLS[protocol]
    whole = answer(make_body())
    meaning = dialect.read_response(200, [json.dumps(whole)])
    assert meaning.text in json.dumps(whole, ensure_ascii=False)
    events = stream(make_body(stream=True))
    streamed = dialect.read_response(200, [_joined(events)], True)
    assert streamed.text == _said(events)
    for each in (meaning, streamed):
        assert each.is_complete
        assert each.error == ""
        assert each.model.endswith("-2026-10-01")
        assert each.finish_reason in ("stop", "completed", "end_turn")
        assert [(m.role, m.text) for m in each.messages] == [("assistant", each.text)]


@every_protocol
def test_s22_tool_calls_are_read_as_sent(protocol: str) -> None:
    """Names, ids and argument texts of parallel tool calls are read from both forms."""
    dialect, make_body, answer, stream = PROTOCOLS[protocol]
    whole = dialect.read_response(200, [json.dumps(answer(make_body(TOOL_PROMPT)))])
    streamed = dialect.read_response(200, [_joined(stream(make_body(TOOL_PROMPT, stream=True)))], True)
    for meaning in (whole, streamed):
        named = [(call.name, json.loads(call.arguments)) for call in meaning.tool_calls]
        assert named == [("pay", {"amount": 190_000}), ("note", {"text": "é"})]
        assert all(call.id.startswith(("call_", "toolu_")) for call in meaning.tool_calls)
        assert meaning.messages[0].tool_calls == meaning.tool_calls
        assert meaning.is_complete


def test_s24_fingerprint_and_usage_are_read() -> None:
    """The fingerprint and token counts are read from a body, and from a stream that states them."""
    body = _chat(stream_options={"include_usage": True})
    for chunks in (
        [json.dumps(wire_openai.answer_chat(body, "fp_9"))],
        [_joined(wire_openai.stream_chat(body, "fp_9"))],
    ):
        meaning = CHAT.read_response(200, chunks)
        assert meaning.fingerprint == "fp_9"
        assert meaning.tokens_in > 0
        assert meaning.tokens_out > 0
        assert meaning.tokens_cache_read == 0
    assert CHAT.read_response(200, [_joined(wire_openai.stream_chat(_chat(), "fp_9"))]).tokens_in == -1


def test_anthropic_usage_counts_cached_tokens_as_input() -> None:
    """Anthropic states fresh, cached and written tokens apart; their sum is the input."""
    answer = wire_anthropic.answer_messages(_messages())
    answer["usage"].update(input_tokens=10, cache_read_input_tokens=100, cache_creation_input_tokens=5)
    meaning = ANTHROPIC.read_response(200, [json.dumps(answer)])
    assert (meaning.tokens_in, meaning.tokens_cache_read, meaning.tokens_cache_write) == (115, 100, 5)


def test_embedding_response_meaning() -> None:
    """Model and usage are read; the vectors are not copied."""
    answer = wire_openai.answer_embeddings({"model": "e", "input": ["a", "b"]})
    meaning = EMBEDDINGS.read_response(200, [json.dumps(answer)])
    assert (meaning.model, meaning.tokens_out, meaning.is_complete) == ("e-2026-10-01", 0, True)
    assert meaning.tokens_in == answer["usage"]["prompt_tokens"]


def test_chat_choices_are_kept_apart() -> None:
    """With n=2, whole or interleaved in a stream, each choice is a message of its own."""
    streamed = CHAT.read_response(200, [_joined(wire_openai.stream_chat(_chat(n=2), "fp"))])
    whole = CHAT.read_response(200, [json.dumps(wire_openai.answer_chat(_chat(n=2), "fp"))])
    for meaning in (streamed, whole):
        assert len({message.text for message in meaning.messages}) == 2
        assert meaning.text == meaning.messages[0].text


def test_s26_stream_of_13_chunks_is_read_cut_anywhere() -> None:
    """The 13 events have the same meaning for any cuts by the transport and any line ends."""
    events = wire_openai.stream_chat(_chat("naïve ✓ 😀", stream=True), "fp")
    assert len(events) == 14  # and [DONE]
    text = _joined(events)
    expected = CHAT.read_response(200, [event.decode() for event in events], True)
    assert expected.is_complete
    for size in (1, 2, 3, 7, 64, 1000):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert CHAT.read_response(200, chunks, True) == expected
    for changed in (text.replace("\n", "\r\n"), text.replace("\n", "\r"), "\ufeff" + text, ": ping\n\n" + text):
        assert CHAT.read_response(200, [changed], True) == expected
    assert CHAT.read_response(200, [text.replace("data: ", "data:")], True) == expected
    assert CHAT.read_response(200, [text.rstrip("\n")], True) == expected


@every_protocol
def test_s26_cut_stream_gives_what_came(protocol: str) -> None:
    """A stream that was closed early has its text so far, and is marked as incomplete."""
    dialect, make_body, _, stream = PROTOCOLS[protocol]
    events = stream(make_body(stream=True))
    whole = dialect.read_response(200, [_joined(events)], True)
    for count in range(len(events) - 3):
        cut = dialect.read_response(200, [_joined(events[:count])], True)
        assert whole.text.startswith(cut.text)
        assert not cut.is_complete
        assert cut.error == ""
    half = dialect.read_response(200, [_joined(events)[: len(_joined(events)) // 2]], True)
    assert 0 < len(half.text) < len(whole.text)
    assert not half.is_complete


@pytest.mark.parametrize(
    ("dialect", "status", "body", "error"),
    [
        (CHAT, 429, '{"error":{"type":"rate_limit","message":"slow down","code":"r"}}', "rate_limit: slow down"),
        (CHAT, 400, '{"object":"error","message":"too long","code":400}', "too long"),
        (CHAT, 404, '{"error":"model not found"}', "model not found"),
        (CHAT, 422, '{"detail":"no"}', "HTTP 422: no"),
        (CHAT, 502, "<html>bad gateway</html>", "HTTP 502: <html>bad gateway</html>"),
        (CHAT, 500, "", "HTTP 500"),
        (
            ANTHROPIC,
            529,
            '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            "overloaded_error: Overloaded",
        ),
        (RESPONSES, 401, '{"error":{"code":"invalid_api_key","message":"no"}}', "invalid_api_key: no"),
        (EMBEDDINGS, 500, '{"error":{}}', "error"),
    ],
)
def test_s26_error_body_is_read(dialect: Dialect, status: int, body: str, error: str) -> None:
    """Errors in each provider's form are read, whether or not a stream was requested."""
    for is_stream in (True, False):
        meaning = dialect.read_response(status, [body], is_stream)
        assert meaning.error == error
        assert meaning.text == ""


@pytest.mark.parametrize(
    ("dialect", "event", "error"),
    [
        (CHAT, {"error": {"type": "server_error", "message": "gone"}}, "server_error: gone"),
        (
            ANTHROPIC,
            {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
            "overloaded_error: busy",
        ),
        (RESPONSES, {"type": "error", "code": "server_error", "message": "gone"}, "server_error: gone"),
    ],
    ids=["chat", "anthropic", "responses"],
)
def test_s26_error_within_a_stream_is_read(dialect: Dialect, event: Json, error: str) -> None:
    """An error event after status 200 makes the response an error, and incomplete."""
    meaning = dialect.read_response(200, [f"event: error\ndata: {json.dumps(event)}\n\n"], True)
    assert (meaning.error, meaning.is_complete) == (error, False)


def test_responses_failed_and_incomplete_are_told_apart() -> None:
    """A failed response is an error; an incomplete one says why it stopped."""
    answer = wire_openai.answer_responses(_responses())
    failed = {**answer, "status": "failed", "error": {"code": "server_error", "message": "gone"}}
    cut = {**answer, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert RESPONSES.read_response(200, [json.dumps(failed)]).error == "server_error: gone"
    meaning = RESPONSES.read_response(200, [json.dumps(cut)])
    assert (meaning.finish_reason, meaning.error) == ("max_output_tokens", "")


BODY_WORDS = [
    *("choices", "delta", "message", "content", "tool_calls", "function", "index", "usage", "error", "type"),
    *("response", "output", "item", "id", "text", "messages", "role", "system", "input", "model", "tools"),
    *("content_block", "output_index", "finish_reason", "detail", "contents", "parts", "candidates"),
    *("functionCall", "functionResponse", "generationConfig", "systemInstruction", "usageMetadata"),
]
broken_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(BODY_WORDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(deadline=None, max_examples=150)
@given(broken_json, st.sampled_from([200, 400]))
def test_dialects_read_any_json_without_an_error(value: Any, status: int) -> None:
    """Any JSON in a body gives a meaning without an error."""
    text = json.dumps(value)
    for dialect in EVERY_DIALECT:
        request = dialect.read_request(value)
        for chunks in ([text], [f"data: {text}\n\ndata: {text}\n\n"]):
            response = dialect.read_response(status, chunks, True)
            assert len(dialect.openinference(value, request, response)) <= 100
            assert isinstance(meta(request, response), dict)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_dialects_read_any_text_without_an_error(chunks: list[str]) -> None:
    """A body that is neither JSON nor a stream is an incomplete response."""
    for dialect in EVERY_DIALECT:
        assert not dialect.read_response(200, chunks, True).is_complete


# ── meta ────────────────────────────────────────────────────────────────────────────────────────────
def test_s23_meta_has_alias_and_resolved_model() -> None:
    """Requested and answering model, parameters and usage are in meta; unknown ones are left out."""
    body = _chat(max_completion_tokens=50, stream=False)
    response = CHAT.read_response(200, [json.dumps(wire_openai.answer_chat(body, "fp_1"))])
    request = CHAT.read_request(body)
    assert meta(request, response) == {
        "model": "gpt-x",
        "response_model": "gpt-x-2026-10-01",
        "fingerprint": "fp_1",
        "tokens_in": response.tokens_in,
        "tokens_out": response.tokens_out,
        "finish_reason": "stop",
        "output_hash": output_hash(response),
        "temperature": 0.7,
        "seed": 3,
        "max_tokens": 50,
        "provider": "openai",
        "system_prompt_hash": request.system_prompt_hash,
        "stream": False,
    }
    assert meta(EMBEDDINGS.read_request({"model": "e", "input": "a"})) == {
        "model": "e",
        "provider": "openai",
        "stream": False,
    }


def test_s58_meta_keeps_temperature_zero() -> None:
    """Zero is a temperature, not an unset one."""
    assert meta(CHAT.read_request(_chat(temperature=0)))["temperature"] == 0
    assert meta(CHAT.read_request(_chat(temperature=1.3)))["temperature"] == 1.3


def test_response_meaning_defaults_are_unknown() -> None:
    """Unknown fields of a response stay unset."""
    empty = ResponseMeaning()
    assert (empty.model, empty.tokens_in, empty.tool_calls) == ("", -1, ())
    assert ToolCall("i", "n", "{}").arguments == "{}"
