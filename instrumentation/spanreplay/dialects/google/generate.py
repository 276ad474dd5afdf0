"""Google's generateContent and streamGenerateContent: Gemini API and Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str, to_json

__all__ = ["GoogleGenerate"]

CANDIDATES_MAX: Final = 128
_ROLES: Final = {"model": "assistant", "function": "tool", "": "user"}


class GoogleGenerate(Dialect):
    """POST …/models/MODEL:generateContent or :streamGenerateContent (events with alt=sse, else one JSON array).

    The URL states the model and whether to stream; the body states neither.
    """

    name: ClassVar[str] = "google.generate_content"
    keyspec: ClassVar[str] = "google_generate/1"
    system: ClassVar[str] = "google"
    content_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "stream", "contents", "systemInstruction", "system_instruction", "tools"}
    )
    nested_parameters: ClassVar[tuple[str, ...]] = ("generationConfig", "generation_config")

    def accepts(self, body: Any) -> bool:
        """A request has contents."""
        return isinstance(as_dict(body).get("contents"), list | dict | str)

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The system instruction's text."""
        content = _either(body, "systemInstruction", "system_instruction")
        text = content if isinstance(content, str) else _join(as_dicts(as_dict(content).get("parts")))
        return [text] if text else []

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The contents; a single content or text becomes a list."""
        contents = body.get("contents")
        if isinstance(contents, str):
            return [{"parts": [{"text": contents}]}]
        return contents if isinstance(contents, list) else [contents] if isinstance(contents, dict) else []

    def read_message(self, item: Any) -> list[Message]:
        """Read one content; each function response in it becomes a separate message."""
        fields = as_dict(item)
        parts = as_dicts(fields.get("parts"))
        results = [_read_result(each) for each in _inner(parts, "functionResponse", "function_response")]
        text, calls = _join(parts), _read_calls(parts)
        urls = tuple(url for url in map(_media_url, parts) if url)
        if results and not (text or calls or urls):
            return results
        role = as_str(fields.get("role"))
        return [*results, Message(_ROLES.get(role, role), text, calls, image_urls=urls)]

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return the call ids in function responses; the Gemini API sets them, Vertex AI rarely does."""
        contents = as_dicts(self.conversation(body))
        parts = [part for content in contents for part in as_dicts(content.get("parts"))]
        ids = [as_str(each.get("id")) for each in _inner(parts, "functionResponse", "function_response")]
        return [each for each in ids if each]

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The declared functions individually, other tools unchanged."""
        schemas: list[Any] = []
        for tool in as_dicts(body.get("tools")):
            declared = as_dicts(_either(tool, "functionDeclarations", "function_declarations"))
            schemas.extend(declared or [tool])
        return schemas

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read a response, or the chunks of one, each with the next parts of every candidate."""
        candidates: dict[int, _Candidate] = {}
        model = response_id = blocked = ""
        usage: dict[str, Any] = {}
        for document in documents:
            model = as_str(document.get("modelVersion")) or model
            response_id = as_str(document.get("responseId")) or response_id
            usage = {**usage, **as_dict(document.get("usageMetadata"))}
            blocked = as_str(as_dict(document.get("promptFeedback")).get("blockReason")) or blocked
            for position, candidate in enumerate(as_dicts(document.get("candidates"))[:CANDIDATES_MAX]):
                index = max(as_int(candidate.get("index", position)), 0)
                if index < CANDIDATES_MAX:
                    candidates.setdefault(index, _Candidate()).add(candidate)
        messages = tuple(candidates[index].message() for index in sorted(candidates))
        first = messages[0] if messages else Message("assistant")
        reasons = [candidates[index].finish_reason for index in sorted(candidates)]
        written, thought = as_int(usage.get("candidatesTokenCount")), as_int(usage.get("thoughtsTokenCount"))
        read, from_tools = as_int(usage.get("promptTokenCount")), as_int(usage.get("toolUsePromptTokenCount"))
        return ResponseMeaning(
            model=model,
            response_id=response_id,
            tokens_in=read if read < 0 else read + max(from_tools, 0),
            tokens_out=-1 if max(written, thought) < 0 else max(written, 0) + max(thought, 0),
            tokens_cache_read=as_int(usage.get("cachedContentTokenCount")),
            tokens_reasoning=thought,
            finish_reason=reasons[0] if reasons else blocked,
            text=first.text,
            tool_calls=first.tool_calls,
            is_complete=all(reasons) if reasons else bool(blocked),
            messages=messages,
        )


class _Candidate:
    """One candidate, assembled from chunks or complete."""

    def __init__(self) -> None:
        self.finish_reason = ""
        self._role = ""
        self._parts: list[dict[str, Any]] = []

    def add(self, candidate: dict[str, Any]) -> None:
        content = as_dict(candidate.get("content"))
        self.finish_reason = as_str(candidate.get("finishReason")) or self.finish_reason
        self._role = as_str(content.get("role")) or self._role
        self._parts.extend(as_dicts(content.get("parts")))

    def message(self) -> Message:
        role = self._role or "model"
        # No separator: a stream splits one text into parts anywhere.
        return Message(_ROLES.get(role, role), _join(self._parts, separator=""), _read_calls(self._parts))


def _either(fields: Mapping[str, Any], camel: str, snake: str) -> Any:
    """Return a field in either spelling: Google's servers accept both."""
    return fields[camel] if camel in fields else fields.get(snake)


def _inner(parts: list[dict[str, Any]], camel: str, snake: str) -> list[dict[str, Any]]:
    return [found for part in parts if (found := as_dict(_either(part, camel, snake)))]


def _join(parts: list[dict[str, Any]], separator: str = "\n") -> str:
    """Join the texts of parts that are not thoughts."""
    return separator.join(as_str(p.get("text")) for p in parts if p.get("text") and p.get("thought") is not True)


def _read_calls(parts: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    calls = _inner(parts, "functionCall", "function_call")
    return tuple(ToolCall(as_str(c.get("id")), as_str(c.get("name")), to_json(c.get("args", {}))) for c in calls)


def _read_result(fields: dict[str, Any]) -> Message:
    text = to_json(fields.get("response"))
    return Message("tool", text, tool_call_id=as_str(fields.get("id")), name=as_str(fields.get("name")))


def _media_url(part: dict[str, Any]) -> str:
    inline = as_dict(_either(part, "inlineData", "inline_data"))
    if inline:
        kind = as_str(_either(inline, "mimeType", "mime_type"))
        return f"data:{kind};base64,{as_str(inline.get('data'))}"
    file = as_dict(_either(part, "fileData", "file_data"))
    return as_str(_either(file, "fileUri", "file_uri"))
