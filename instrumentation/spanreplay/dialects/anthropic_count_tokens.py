"""Anthropic's /v1/messages/count_tokens: the number of tokens a request would have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_int
from spanreplay.dialects.anthropic_messages import AnthropicMessages
from spanreplay.model.call import Kind

__all__ = ["AnthropicCountTokens"]


class AnthropicCountTokens(AnthropicMessages):
    """POST …/v1/messages/count_tokens: the request is counted, not answered."""

    kind: ClassVar[Kind] = Kind.COMPUTE
    name: ClassVar[str] = "anthropic.messages.count_tokens"
    keyspec: ClassVar[str] = "anthropic_count_tokens/1"

    def accepts(self, body: Any) -> bool:
        """A request has messages."""
        return isinstance(as_dict(body).get("messages"), list)

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read the number of tokens."""
        tokens_in = as_int(documents[0].get("input_tokens")) if documents else -1
        return ResponseMeaning(tokens_in=tokens_in, is_complete=tokens_in >= 0)
