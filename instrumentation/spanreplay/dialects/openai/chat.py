"""OpenAI chat completions and compatible providers: vLLM, Ollama, SGLang, Groq, Mistral, …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str, join_texts

__all__ = ["OpenAIChat"]

CHOICES_MAX: Final = 128
_SYSTEM_ROLES: Final = ("system", "developer")
_NO_CALL: Final = ToolCall("", "", "")


class OpenAIChat(Dialect):
    """POST …/chat/completions."""

    name: ClassVar[str] = "openai.chat.completions"
    keyspec: ClassVar[str] = "openai_chat/1"
    system: ClassVar[str] = "openai"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "messages", "tools", "functions", "documents"})

    def accepts(self, body: Any) -> bool:
        """A chat request has messages."""
        return isinstance(as_dict(body).get("messages"), list)

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """Texts of the messages with role system or developer."""
        messages = as_dicts(body.get("messages"))
        return [join_texts(m.get("content"), "text") for m in messages if m.get("role") in _SYSTEM_ROLES]

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The messages."""
        messages = body.get("messages")
        return messages if isinstance(messages, list) else []

    def read_message(self, item: Any) -> list[Message]:
        """One message."""
        fields = as_dict(item)
        parts = as_dicts(fields.get("content"))
        urls = [as_str(as_dict(part.get("image_url")).get("url")) for part in parts]
        return [
            Message(
                role=as_str(fields.get("role")),
                text=join_texts(fields.get("content"), "text") or as_str(fields.get("refusal")),
                tool_calls=_read_tool_calls(fields),
                tool_call_id=as_str(fields.get("tool_call_id")),
                name=as_str(fields.get("name")),
                image_urls=tuple(url for url in urls if url),
            )
        ]

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return the call ids in messages with role tool."""
        found = (as_str(message.get("tool_call_id")) for message in as_dicts(body.get("messages")))
        return [each for each in found if each]

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools, in the new or the old format."""
        return as_dicts(body.get("tools")) or as_dicts(body.get("functions"))

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read a completion, or the chunks of one."""
        choices: dict[int, _Choice] = {}
        model = fingerprint = response_id = ""
        usage: dict[str, Any] = {}
        for document in documents:
            model = as_str(document.get("model")) or model
            fingerprint = as_str(document.get("system_fingerprint")) or fingerprint
            response_id = as_str(document.get("id")) or response_id
            groq = document.get("x_groq")  # where Groq states the usage of a stream
            usage = as_dict(document.get("usage")) or (as_dict(as_dict(groq).get("usage")) if groq else None) or usage
            for position, choice in enumerate(as_dicts(document.get("choices"))[:CHOICES_MAX]):
                index = max(as_int(choice.get("index", position)), 0)
                if index < CHOICES_MAX:
                    held = choices.get(index)
                    if held is None:
                        held = choices[index] = _Choice()
                    held.add(choice)
        messages = tuple([choices[index].message() for index in sorted(choices)])
        first = choices.get(0) or _Choice()
        # Writer spells it `prompt_token_details`
        prompt_details = as_dict(usage.get("prompt_tokens_details")) or as_dict(usage.get("prompt_token_details"))
        completion_details = as_dict(usage.get("completion_tokens_details"))
        return ResponseMeaning(
            model=model,
            fingerprint=fingerprint,
            response_id=response_id,
            tokens_in=as_int(usage.get("prompt_tokens")),
            tokens_out=as_int(usage.get("completion_tokens")),
            tokens_cache_read=as_int(prompt_details.get("cached_tokens")),
            tokens_reasoning=as_int(completion_details.get("reasoning_tokens")),
            finish_reason=first.finish_reason,
            text=messages[0].text if messages else "",
            tool_calls=messages[0].tool_calls if messages else (),
            is_complete=bool(choices) and all(choice.finish_reason for choice in choices.values()),
            messages=messages,
        )


class _Choice:
    """One choice, assembled from deltas or a complete message."""

    def __init__(self) -> None:
        self.role = "assistant"
        self.texts: list[str] = []
        self.finish_reason = ""
        self.calls: dict[int, dict[str, str]] = {}

    def add(self, choice: dict[str, Any]) -> None:
        fields = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
        self.finish_reason = as_str(choice.get("finish_reason")) or self.finish_reason
        self.role = as_str(fields.get("role")) or self.role
        content = fields.get("content")
        text = (content if type(content) is str else join_texts(content, "text")) or as_str(fields.get("refusal"))
        self.texts.append(text or as_str(choice.get("text")))  # `text`: legacy completions
        if "tool_calls" in fields or "function_call" in fields:
            self._add_calls(fields)

    def _add_calls(self, fields: dict[str, Any]) -> None:
        for position, call in enumerate(_raw_tool_calls(fields)):
            index = as_int(call.get("index", position))
            held = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
            function = as_dict(call.get("function"))
            held["id"] = held["id"] or as_str(call.get("id"))
            held["name"] = held["name"] or as_str(function.get("name"))
            held["arguments"] += as_str(function.get("arguments"))

    def message(self) -> Message:
        held = [self.calls[index] for index in sorted(self.calls)] if self.calls else ()
        calls = tuple([ToolCall(**call) for call in held if any(call.values())])
        return Message(role=self.role, text="".join(self.texts), tool_calls=calls)


def _raw_tool_calls(fields: dict[str, Any]) -> list[dict[str, Any]]:
    calls = as_dicts(fields.get("tool_calls"))
    old = as_dict(fields.get("function_call"))
    return calls or ([{"index": 0, "function": old}] if old else [])


def _read_tool_calls(fields: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = []
    for call in _raw_tool_calls(fields):
        function = as_dict(call.get("function")) or as_dict(call.get("custom"))
        arguments = as_str(function.get("arguments")) or as_str(function.get("input"))
        found = ToolCall(as_str(call.get("id")), as_str(function.get("name")), arguments)
        if found != _NO_CALL:  # Snowflake adds an empty call to messages without calls
            calls.append(found)
    return tuple(calls)
