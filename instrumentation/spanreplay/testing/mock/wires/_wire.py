"""Shared by the wires: server-sent events, token counts, stream pieces and ids; pure."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from spanreplay.testing.mock.answers import Answer, Failure, TokenUsage

Json = dict[str, Any]
CHARACTERS_PER_TOKEN: Final = 4


class Wire(ABC):
    """One protocol, the reverse of a dialect: turns an answer into the provider's JSON."""

    sdk: ClassVar[str]
    """Import name of the provider's SDK."""

    @abstractmethod
    def whole(self, answer: Answer, body: Json, call_id: str) -> Json:
        """The response's JSON object; `call_id` makes ids unique."""

    @abstractmethod
    def stream(self, answer: Answer, body: Json, call_id: str) -> list[str]:
        """The response as server-sent events."""

    @abstractmethod
    def error(self, failure: Failure) -> Json:
        """The body of an error."""

    def asked(self, body: Json) -> Json:
        """The request in the form that tests see."""
        return dict(body)


def event(payload: Mapping[str, Any] | str, name: str = "") -> str:
    """One server-sent event."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


def count_tokens(value: Any) -> int:
    """A plausible, deterministic number of tokens, without a tokenizer."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def usage_of(answer: Answer, asked: Any) -> TokenUsage:
    """The answer's token usage, else an estimate."""
    if answer.usage is not None:
        return answer.usage
    said = count_tokens(answer.text) + sum(count_tokens(c.arguments) for c in answer.tool_calls)
    return TokenUsage(count_tokens(asked), said)


def text_pieces(answer: Answer) -> Sequence[str]:
    """The parts in which the text is streamed: the given ones, else word by word."""
    if answer.pieces:
        return answer.pieces
    words = answer.text.split(" ")
    return [word if last else f"{word} " for word, last in zip(words, [False] * (len(words) - 1) + [True], strict=True)]


def argument_pieces(answer: Answer, number: int) -> Sequence[str]:
    """The parts in which a tool call's arguments are streamed; given parts belong to the first call."""
    if answer.argument_pieces and number == 0:
        return answer.argument_pieces
    return [answer.tool_calls[number].arguments]
