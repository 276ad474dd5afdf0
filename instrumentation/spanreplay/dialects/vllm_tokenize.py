"""vLLM's /tokenize and /detokenize: they use a model's vocabulary without sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_int
from spanreplay.dialects.openai.completions import OpenAICompletions
from spanreplay.model.call import Kind

__all__ = ["VllmTokenize"]


class VllmTokenize(OpenAICompletions):
    """POST …/tokenize and …/detokenize."""

    kind: ClassVar[Kind] = Kind.COMPUTE
    name: ClassVar[str] = "vllm.tokenize"
    keyspec: ClassVar[str] = "vllm_tokenize/1"
    system: ClassVar[str] = "vllm"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "prompt", "messages", "tokens", "tools"})

    def accepts(self, body: Any) -> bool:
        """A request has a text, messages or tokens."""
        fields = as_dict(body)
        is_text = isinstance(fields.get("prompt"), str)
        return is_text or any(isinstance(fields.get(name), list) for name in ("messages", "tokens"))

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The text."""
        return [body["prompt"]] if isinstance(body.get("prompt"), str) else []

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read the number of tokens; the tokens stay in the recorded response."""
        document = documents[0] if documents else {}
        is_complete = isinstance(document.get("tokens"), list) or isinstance(document.get("prompt"), str)
        return ResponseMeaning(tokens_in=as_int(document.get("count")), tokens_out=-1, is_complete=is_complete)
