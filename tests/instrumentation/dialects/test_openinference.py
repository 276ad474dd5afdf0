"""OpenInference attributes of a boundary span: the fields that Phoenix shows, within limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spanreplay.dialects import Dialect, ResponseMeaning, ToolCall, find_dialect
from support import wire_anthropic, wire_openai


def _dialect(path: str) -> Dialect:
    found = find_dialect("POST", f"http://127.0.0.1/v1/{path}")
    assert found is not None
    return found


def _attributes(path: str, body: dict[str, Any], answer: dict[str, Any] | None = None) -> dict[str, Any]:
    dialect = _dialect(path)
    response = None if answer is None else dialect.read_response(200, [json.dumps(answer)])
    return dict(dialect.openinference(body, dialect.read_request(body), response))


def _messages_of(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    """Input messages by index, which must have no gaps."""
    prefix = "llm.input_messages."
    found: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        if name.startswith(prefix):
            index, _, field = name.removeprefix(prefix).partition(".")
            found.setdefault(int(index), {})[field] = value
    assert sorted(found) == list(range(len(found)))
    return [found[index] for index in sorted(found)]


CALL = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": '{"amount":1}'}}
CHAT_BODY: dict[str, Any] = {
    "model": "gpt-x",
    "messages": [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "http://i"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ],
    "tools": [{"type": "function", "function": {"name": "pay", "parameters": {}}}],
    "temperature": 0.5,
}


def test_openinference_of_a_chat_is_whole() -> None:
    """A chat call has exactly these attributes."""
    answer = {
        "id": "c",
        "model": "gpt-x-2026",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }
    message = "llm.input_messages"
    assert _attributes("chat/completions", CHAT_BODY, answer) == {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt-x-2026",
        "llm.provider": "openai",
        "llm.system": "openai",
        "llm.invocation_parameters": '{"temperature":0.5}',
        "llm.finish_reason": "stop",
        "llm.token_count.prompt": 5,
        "llm.token_count.completion": 2,
        "llm.token_count.total": 7,
        "llm.token_count.prompt_details.cache_read": 1,
        "input.value": json.dumps(CHAT_BODY, separators=(",", ":")),
        "input.mime_type": "application/json",
        "output.value": "ok",
        "output.mime_type": "text/plain",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "ok",
        "llm.tools.0.tool.json_schema": json.dumps(CHAT_BODY["tools"][0], separators=(",", ":")),
        f"{message}.0.message.role": "system",
        f"{message}.0.message.content": "be brief",
        f"{message}.1.message.role": "user",
        f"{message}.1.message.contents.0.message_content.type": "text",
        f"{message}.1.message.contents.0.message_content.text": "look",
        f"{message}.1.message.contents.1.message_content.type": "image",
        f"{message}.1.message.contents.1.message_content.image.image.url": "http://i",
        f"{message}.2.message.role": "assistant",
        f"{message}.2.message.tool_calls.0.tool_call.id": "call_1",
        f"{message}.2.message.tool_calls.0.tool_call.function.name": "pay",
        f"{message}.2.message.tool_calls.0.tool_call.function.arguments": '{"amount":1}',
        f"{message}.3.message.role": "tool",
        f"{message}.3.message.content": "done",
        f"{message}.3.message.tool_call_id": "call_1",
    }


def test_openinference_of_every_protocol_is_the_same_conversation() -> None:
    """The same conversation reads alike in Phoenix whichever protocol carried it."""
    responses_body = {
        "model": "m",
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "pay"}]},
            {"type": "function_call", "call_id": "call_1", "name": "pay", "arguments": '{"amount":1}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "done"},
        ],
    }
    anthropic_body = {
        "model": "m",
        "max_tokens": 5,
        "system": "be brief",
        "messages": [
            {"role": "user", "content": "pay"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "call_1", "name": "pay", "input": {"amount": 1}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "done"}]},
        ],
    }
    chat_body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "pay"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        ],
    }
    shown = [
        _messages_of(_attributes(path, body))
        for path, body in (("chat/completions", chat_body), ("responses", responses_body), ("messages", anthropic_body))
    ]
    assert shown[0] == shown[1] == shown[2]
    assert len(shown[0]) == 4


@pytest.mark.parametrize("count", [10, 41, 42, 62, 1000])
def test_openinference_is_bounded_and_keeps_the_newest(count: int) -> None:
    """For any length there are at most 100 attributes: the system prompt, then the newest messages in order."""
    history = [{"role": "user", "content": f"m{n}"} for n in range(count)]
    body = {"model": "m", "messages": [{"role": "system", "content": "S"}, *history]}
    answer = wire_openai.answer_chat(body, "fp")
    attributes = _attributes("chat/completions", body, answer)
    assert len(attributes) <= 100
    shown = [message["message.content"] for message in _messages_of(attributes)]
    assert shown[0] == "S"
    assert shown[1:] == [f"m{n}" for n in range(count)][-len(shown[1:]) :]
    assert len(shown) == min(count + 1, len(shown))
    assert attributes["output.value"]
    if count <= 10:
        assert len(shown) == count + 1


def test_openinference_bounds_tools_and_calls() -> None:
    """Many tools and a flood of tool calls leave room for the rest."""
    calls = [{**CALL, "id": f"call_{n}"} for n in range(200)]
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": [{"name": "t"}] * 500}
    answer = {"choices": [{"finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": calls}}]}
    attributes = _attributes("chat/completions", body, answer)
    assert len(attributes) <= 100
    assert attributes["llm.input_messages.0.message.content"] == "go"
    assert len(json.loads(attributes["output.value"])["tool_calls"]) == 200


def test_openinference_bounds_every_text() -> None:
    """A text above 64 KiB is cut between characters, and a cut JSON text is no longer declared as JSON."""
    body = {"model": "m", "messages": [{"role": "user", "content": "é" * 70_000}]}
    attributes = _attributes("chat/completions", body, {"choices": [{"message": {"content": "ü" * 70_000}}]})
    assert attributes["input.mime_type"] == "text/plain"
    texts = [value for value in attributes.values() if isinstance(value, str)]
    assert max(len(text.encode()) for text in texts) == 64 * 1024
    assert attributes["llm.input_messages.0.message.content"] == "é" * 32 * 1024


def test_openinference_text_can_be_exported() -> None:
    """Half an emoji in a prompt does not keep the span from being sent."""
    body = {"model": "m", "messages": [{"role": "user", "content": "cut \ud83d"}]}
    sent = [str(value).encode() for value in _attributes("chat/completions", body).values()]
    assert any(b"cut " in text for text in sent)


def test_openinference_of_tool_calls_and_errors() -> None:
    """A response without text shows its tool calls, a failed one its error."""
    dialect = _dialect("chat/completions")
    body = {"model": "m", "messages": []}
    request = dialect.read_request(body)
    called = dialect.openinference(body, request, ResponseMeaning(tool_calls=(ToolCall("c", "pay", "{}"),)))
    assert json.loads(str(called["output.value"])) == {"tool_calls": [{"id": "c", "name": "pay", "arguments": "{}"}]}
    failed = dialect.openinference(body, request, ResponseMeaning(error="rate_limit: slow"))
    assert json.loads(str(failed["output.value"])) == {"error": "rate_limit: slow"}


def test_openinference_of_an_embedding() -> None:
    """Texts and model are attributes; vectors are not copied."""
    body = {"model": "e", "input": ["one", "two"], "dimensions": 8}
    attributes = _attributes("embeddings", body, wire_openai.answer_embeddings(body))
    assert attributes["openinference.span.kind"] == "EMBEDDING"
    assert attributes["embedding.model_name"] == "e"
    assert attributes["embedding.embeddings.0.embedding.text"] == "one"
    assert attributes["embedding.embeddings.1.embedding.text"] == "two"
    assert attributes["llm.token_count.prompt"] > 0
    assert not any("vector" in name for name in attributes)


def test_openinference_of_an_anthropic_answer() -> None:
    """Anthropic's stop reason, usage and text are under the same names."""
    body = {"model": "c", "max_tokens": 9, "system": "S", "messages": [{"role": "user", "content": "hi"}]}
    answer = wire_anthropic.answer_messages(body)
    attributes = _attributes("messages", body, answer)
    assert attributes["llm.system"] == attributes["llm.provider"] == "anthropic"
    assert attributes["llm.finish_reason"] == "end_turn"
    assert attributes["llm.output_messages.0.message.content"] == answer["content"][0]["text"]
    assert attributes["llm.input_messages.0.message.content"] == "S"
