"""The guarantees of the local provider that tests rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from support.provider import Provider


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider that runs for the length of the test."""
    with Provider() as running:
        yield running


@pytest.fixture
def client(provider: Provider) -> Iterator[Any]:
    """A real OpenAI client that never retries."""
    with OpenAI(base_url=provider.openai_url, api_key="sk-test", max_retries=0) as made:
        yield made


def _ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_provider_never_says_the_same_twice(provider: Provider) -> None:
    """Forty identical concurrent prompts get forty different answers, and each request is kept."""

    async def ask_forty() -> list[str]:
        async with AsyncOpenAI(base_url=provider.openai_url, api_key="sk-test") as aclient:
            calls = [aclient.chat.completions.create(model="gpt-x", messages=_ask("same")) for _ in range(40)]
            return [str(answer.choices[0].message.content) for answer in await asyncio.gather(*calls)]

    assert len(set(asyncio.run(ask_forty()))) == 40
    assert [path for path, _ in provider.requests] == ["/v1/chat/completions"] * 40


def test_provider_streams_thirteen_chunks(client: Any) -> None:
    """A streamed text is thirteen chunks that join to one text."""
    chunks = list(client.chat.completions.create(model="gpt-x", messages=_ask("go"), stream=True))
    assert len(chunks) == 13
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.endswith("You asked: go")


def test_provider_resolves_aliases(provider: Provider, client: Any) -> None:
    """An alias is answered by a dated model with a fingerprint; a dated model keeps its name."""
    answer = client.chat.completions.create(model="gpt-x", messages=_ask("hi"))
    assert (answer.model, answer.system_fingerprint) == ("gpt-x-2026-10-01", provider.fingerprint)
    dated = client.chat.completions.create(model="gpt-x-2026-10-01", messages=_ask("hi"))
    assert dated.model == "gpt-x-2026-10-01"


def test_provider_fails_as_often_as_asked(client: Any) -> None:
    """The prompt "fail 429 twice" fails two identical requests, answers the third, and then starts again."""
    outcomes = []
    for _ in range(6):
        try:
            client.chat.completions.create(model="gpt-x", messages=_ask("fail 429 twice"))
            outcomes.append("ok")
        except openai.RateLimitError:
            outcomes.append("429")
    assert outcomes == ["429", "429", "ok"] * 2


def test_provider_stops_for_good(provider: Provider, client: Any) -> None:
    """After stop, even a keep-alive connection is dead: nothing can be answered live."""
    client.chat.completions.create(model="gpt-x", messages=_ask("hi"))
    provider.stop()
    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(model="gpt-x", messages=_ask("hi"))
