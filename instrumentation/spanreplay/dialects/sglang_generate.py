"""SGLang's native completion: a text or token ids in, a text that grows with each event out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_int, as_str, to_json

__all__ = ["SGLangGenerate"]


class SGLangGenerate(Dialect):
    """POST …/generate."""

    name: ClassVar[str] = "sglang.generate"
    keyspec: ClassVar[str] = "sglang_generate/1"
    system: ClassVar[str] = "sglang"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "text", "input_ids", "input_embeds", "image_data"})
    nested_parameters: ClassVar[tuple[str, ...]] = ("sampling_params",)

    def accepts(self, body: Any) -> bool:
        """A request has sampling parameters and a prompt."""
        fields = as_dict(body)
        has_prompt = isinstance(fields.get("text"), str | list) or isinstance(fields.get("input_ids"), list)
        return has_prompt and isinstance(fields.get("sampling_params"), dict | list)

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The prompts."""
        given = body.get("text", body.get("input_ids"))
        if isinstance(given, list) and not (given and isinstance(given[0], int)):
            return given
        return [] if given is None else [given]

    def read_message(self, item: Any) -> list[Message]:
        """A prompt is a user message."""
        return [Message("user", as_str(item) or to_json(item))]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read an answer, or the events of one, each of which has the full text so far."""
        said = [document for document in documents if "meta_info" in document]
        last = said[-1] if said else {}
        about = as_dict(last.get("meta_info"))
        reason = about.get("finish_reason")
        text, finish_reason = as_str(last.get("text")), as_str(as_dict(reason).get("type")) or as_str(reason)
        return ResponseMeaning(
            response_id=as_str(about.get("id")),
            tokens_in=as_int(about.get("prompt_tokens")),
            tokens_out=as_int(about.get("completion_tokens")),
            tokens_cache_read=as_int(about.get("cached_tokens")),
            finish_reason=finish_reason,
            text=text,
            is_complete=bool(finish_reason),
            messages=(Message("assistant", text),) if said else (),
        )
