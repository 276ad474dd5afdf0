"""OpenAI's /responses/input_tokens: the number of tokens a request would have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_int
from spanreplay.dialects.openai.responses import OpenAIResponses
from spanreplay.model.call import Kind

__all__ = ["OpenAIInputTokens"]


class OpenAIInputTokens(OpenAIResponses):
    """POST …/responses/input_tokens: the request is counted, not answered."""

    kind: ClassVar[Kind] = Kind.COMPUTE
    name: ClassVar[str] = "openai.responses.input_tokens"
    keyspec: ClassVar[str] = "openai_input_tokens/1"

    def accepts(self, body: Any) -> bool:
        """A request has input, or continues an earlier response or conversation."""
        return bool({"input", "previous_response_id", "conversation"} & as_dict(body).keys())

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read the number of tokens."""
        tokens_in = as_int(documents[0].get("input_tokens")) if documents else -1
        return ResponseMeaning(tokens_in=tokens_in, is_complete=tokens_in >= 0)
