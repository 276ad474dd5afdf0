"""Mocked models: real SDKs build their objects from a test's answers, without key, server or recording."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from langchain_core.tools import tool
from pydantic import BaseModel

from spanreplay.model.errors import ConfigError, ReplayMiss
from spanreplay.testing.mock import MockExhausted, MockLLM, TokenUsage
from spanreplay.testing.mock.answers import FAILURES
from support.provider import Provider

WEATHER = {"id": "call_w", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
QUESTION: Any = [{"role": "user", "content": "Where is my order?"}]


def _chat(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="gpt-4o", messages=QUESTION, **more)


def test_s10_clients_made_before_the_block_are_answered() -> None:
    """An answer comes back as the SDK's own object, and sent requests can be inspected."""
    with openai.OpenAI(api_key="none") as client:
        with MockLLM() as llm:
            llm.add_response("On its way.", token_usage=TokenUsage(7, 3))
            reply: Any = _chat(client, temperature=0.7)
        assert reply.__class__ is openai.types.chat.ChatCompletion
        assert (reply.choices[0].message.content, reply.model) == ("On its way.", "gpt-4o")
        assert reply.usage is not None
        assert (reply.usage.prompt_tokens, llm.total_tokens) == (7, 10)
        assert llm.last_call == {"model": "gpt-4o", "messages": QUESTION, "temperature": 0.7}
        assert (llm.call_count, llm.pending) == (1, 0)


@pytest.mark.parametrize("pieces", [(), ("On ", "its", " way.")])
def test_s10_streams_of_every_provider(pieces: tuple[str, ...]) -> None:
    """A streamed answer comes in the configured parts, or word by word, as each SDK's own events."""
    wanted = list(pieces) or ["On ", "its ", "way."]
    with MockLLM() as llm:
        for _ in range(4):
            llm.add_response("On its way.", stream_chunks=pieces)
        with openai.OpenAI() as client:
            chunks = [c.choices[0].delta.content for c in _chat(client, stream=True)]
            assert [c for c in chunks if c] == wanted
            with client.responses.stream(model="gpt-4o", input="x") as events:
                assert [e.delta for e in events if e.type == "response.output_text.delta"] == wanted
                assert events.get_final_response().output_text == "On its way."
        claude = anthropic.Anthropic()
        with claude, claude.messages.stream(model="claude", max_tokens=9, messages=QUESTION) as stream:
            assert list(stream.text_stream) == wanted
            assert stream.get_final_message().stop_reason == "end_turn"
        with genai.Client() as google:
            assert [p.text for p in google.models.generate_content_stream(model="g", contents="x")] == wanted


def test_s10_tool_calls_of_every_provider() -> None:
    """One configuration gives OpenAI tool calls, Anthropic tool use and Google function calls; streamed in parts."""
    with MockLLM() as llm:
        for _ in range(6):
            llm.add_response("Wait.", tool_calls=[WEATHER], tool_call_chunks=['{"city":', ' "Paris"}'])
        with openai.OpenAI() as client, anthropic.Anthropic() as claude:
            (call,) = _chat(client).choices[0].message.tool_calls
            assert (call.id, call.function.name, call.function.arguments) == ("call_w", "weather", '{"city": "Paris"}')
            with client.chat.completions.stream(model="gpt-4o", messages=QUESTION) as stream:
                (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
            assert call.function.arguments == '{"city": "Paris"}'
            items = client.responses.create(model="gpt-4o", input="x").output
            assert [i.type for i in items] == ["function_call", "message"]
            block: Any = claude.messages.create(model="c", max_tokens=9, messages=QUESTION).content[1]
            assert (block.type, block.input) == ("tool_use", {"city": "Paris"})
            with claude.messages.stream(model="c", max_tokens=9, messages=QUESTION) as events:
                blocks: list[Any] = list(events.get_final_message().content)
            assert (blocks[0].text, blocks[1].input) == ("Wait.", {"city": "Paris"})
        llm.reset()
        llm.add_response(tool_calls=[{"name": "weather", "arguments": {"city": "Paris"}}])
        with genai.Client() as google:
            found = google.models.generate_content(model="g", contents="x").function_calls
        assert found is not None
        assert (found[0].name, found[0].args) == ("weather", {"city": "Paris"})


def test_s10_structured_outputs_and_embeddings() -> None:
    """`.parse` returns the model's class, and equal texts have equal vectors, packed or not."""

    class Contact(BaseModel):
        name: str

    with MockLLM() as llm, openai.OpenAI() as client:
        llm.add_responses('{"name":"Ada"}', '{"name":"Ada"}')
        assert client.responses.parse(model="g", input="x", text_format=Contact).output_parsed == Contact(name="Ada")
        parsed = client.chat.completions.parse(model="g", messages=QUESTION, response_format=Contact)
        assert parsed.choices[0].message.parsed == Contact(name="Ada")
        first = client.embeddings.create(model="e", input=["a", "b", "a"], dimensions=5).data
        assert first[0].embedding == first[2].embedding != first[1].embedding
        plain = client.embeddings.create(model="e", input="a", dimensions=5, encoding_format="float")
        assert plain.data[0].embedding == first[0].embedding
        llm.add_response(embedding=[0.5, 0.25])
        assert client.embeddings.create(model="e", input="a").data[0].embedding == [0.5, 0.25]


@pytest.mark.parametrize(
    ("kind", "of_openai", "of_anthropic"),
    [
        ("rate_limit", openai.RateLimitError, anthropic.RateLimitError),
        ("auth", openai.AuthenticationError, anthropic.AuthenticationError),
        ("server", openai.InternalServerError, anthropic.InternalServerError),
        ("overloaded", openai.InternalServerError, anthropic.APIStatusError),
        ("invalid_request", openai.BadRequestError, anthropic.BadRequestError),
    ],
)
def test_s10_errors_are_the_sdks_own(kind: str, of_openai: type[Exception], of_anthropic: type[Exception]) -> None:
    """Each error reaches the application at once, as the class that the SDK raises."""
    with MockLLM() as llm, openai.OpenAI() as client, anthropic.Anthropic() as claude:
        llm.simulate_error(kind, message="not now")
        with pytest.raises(of_openai, match="not now"):
            _chat(client)
        with pytest.raises(of_anthropic, match="not now"):
            claude.messages.create(model="c", max_tokens=9, messages=QUESTION)
        with genai.Client() as google, pytest.raises(genai.errors.APIError) as failed:
            google.models.generate_content(model="g", contents="x")
        assert failed.value.code == FAILURES[kind]
        assert [c["outcome"] for c in llm.request_ledger] == [kind] * 3
        assert llm.call_count == 0


def test_s10_timeouts_and_counted_errors() -> None:
    """A timeout is the SDK's; an error may begin after some answers and end after some repetitions."""
    with MockLLM() as llm, openai.OpenAI(max_retries=0) as client:
        llm.set_default_response("fine").simulate_error("timeout", after_calls=1, times=2)
        outcomes = []
        for _ in range(4):
            try:
                outcomes.append(_chat(client).choices[0].message.content)
            except openai.APITimeoutError:
                outcomes.append("late")
        assert outcomes == ["fine", "late", "late", "fine"]
        llm.reset()
        assert (llm.call_count, llm.calls) == (0, [])


def test_s10_strict_mode_names_the_call() -> None:
    """In strict mode a call without an answer fails through the SDK's retries; else a placeholder says what to do."""
    with MockLLM() as llm, openai.OpenAI() as client:
        assert "add_response" in (_chat(client).choices[0].message.content or "")
        llm.set_strict_mode()
        with pytest.raises(MockExhausted, match=r"no answer is left for llm:openai\.chat\.completions"):
            _chat(client)


def test_s10_forty_parallel_calls_get_an_answer_each() -> None:
    """Concurrent identical calls each get their own answer."""

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI() as client:
            replies = await asyncio.gather(
                *(client.chat.completions.create(model="g", messages=QUESTION) for _ in range(40))
            )
        return [r.choices[0].message.content or "" for r in replies]

    with MockLLM() as llm:
        llm.add_responses(*map(str, range(40)))
        assert sorted(asyncio.run(ask_all()), key=int) == list(map(str, range(40)))


def test_s10_nothing_else_gets_out() -> None:
    """Other requests and providers are denied by name unless they are allowed; tools run."""
    with Provider() as server:
        other = pytest.raises(ReplayMiss, match="the anthropic mock has no answer for llm:openai")
        with MockLLM("anthropic"), openai.OpenAI(max_retries=3) as client, other:
            _chat(client)
        with (
            MockLLM(),
            httpx.Client() as plain,
            pytest.raises(ReplayMiss, match=r"allow\('http:GET 127\.0\.0\.1"),
        ):
            plain.get(server.openai_url)
        with MockLLM().allow("http:GET 127.0.0.1:*"), httpx.Client() as plain:
            assert plain.get(f"{server.openai_url}/models").status_code < 500
            with pytest.raises(ReplayMiss, match="PUT"):
                plain.put(server.openai_url)
        assert len(server.requests) <= 1

    @tool
    def double(n: int) -> int:
        """Twice n."""
        return 2 * n

    with MockLLM() as llm:
        llm.add_response("", tool_calls=[{"name": "double", "arguments": {"n": 21}}])
        asked = llm.model.bind_tools([double]).invoke("x")
        assert double.invoke(asked.tool_calls[0]["args"]) == 42


def test_s10_block_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards every patched attribute is the original object, and the keys are gone from the environment."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = (httpx.Client.__dict__["send"], httpx.AsyncClient.__dict__["send"])
    with MockLLM():
        assert httpx.Client.__dict__["send"] is not before[0]
        with pytest.raises(ConfigError, match="another block"), MockLLM():
            pass
    assert (httpx.Client.__dict__["send"], httpx.AsyncClient.__dict__["send"]) == before
    with pytest.raises(openai.OpenAIError):
        openai.OpenAI()
    gc.collect()


def test_s10_bad_configuration_is_refused() -> None:
    """An invalid configuration is refused where it is written."""
    with pytest.raises(ConfigError, match="no mock of provider 'clippy'"):
        MockLLM("clippy")
    with pytest.raises(ConfigError, match="no such error 'sad'"):
        MockLLM().simulate_error("sad")
    with pytest.raises(ConfigError, match="don't join"):
        MockLLM().add_response("ab", stream_chunks=["a"])
    with pytest.raises(ConfigError, match=r"tool_calls\[0\] names no function"):
        MockLLM().add_response(tool_calls=[{"id": "x"}])
