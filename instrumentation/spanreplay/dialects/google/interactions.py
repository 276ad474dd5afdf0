"""Google's interactions: steps in, steps out, stored by the server between turns; for models and agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, RequestMeaning, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str, error_text, join_texts, to_json

__all__ = ["GoogleInteractions"]

STEPS_MAX: Final = 10_000
_RUNNING: Final = frozenset({"", "in_progress", "queued"})
_SPOKEN: Final = ("", "text", "model_output")


class GoogleInteractions(Dialect):
    """POST …/interactions; a stream is server-sent events that begin, add to and end steps."""

    name: ClassVar[str] = "google.interactions"
    keyspec: ClassVar[str] = "google_interactions/1"
    system: ClassVar[str] = "google"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "agent", "input", "system_instruction", "tools"})
    nested_parameters: ClassVar[tuple[str, ...]] = ("generation_config",)

    def accepts(self, body: Any) -> bool:
        """A request has input for a model or an agent."""
        fields = as_dict(body)
        is_named = isinstance(fields.get("model"), str) or isinstance(fields.get("agent"), str)
        return is_named and isinstance(fields.get("input"), str | list | dict)

    def read_request(self, body: Any) -> RequestMeaning:
        """Read the meaning of a request; an agent is reported as the model."""
        found = super().read_request(body)
        return found if found.model else found._replace(model=as_str(as_dict(body).get("agent")))

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The system instruction."""
        text = as_str(body.get("system_instruction"))
        return [text] if text else []

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The input: a text, one content, contents, or steps."""
        given = body.get("input")
        if isinstance(given, list):
            return given
        return [] if given is None else [given]

    def read_message(self, item: Any) -> list[Message]:
        """Read one step or content."""
        if isinstance(item, str):
            return [Message("user", item)]
        fields = as_dict(item)
        kind = as_str(fields.get("type"))
        if kind == "function_result":
            result = fields.get("result")
            text = result if isinstance(result, str) else join_texts(result, "text") or to_json(result)
            name = as_str(fields.get("name"))
            return [Message("tool", text, tool_call_id=as_str(fields.get("call_id")), name=name)]
        if kind.endswith("_call"):
            return [Message("assistant", tool_calls=(_read_call(fields),))]
        role = as_str(fields.get("role")) or ("model" if kind == "model_output" else "user")
        text = as_str(fields.get("text")) or join_texts(fields.get("content"), "text")
        return [Message("assistant" if role == "model" else role, text)] if text else []

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return the call ids in function results."""
        results = (item for item in as_dicts(body.get("input")) if item.get("type") == "function_result")
        return [found for found in (as_str(item.get("call_id")) for item in results) if found]

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools."""
        return as_dicts(body.get("tools"))

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read an interaction, or the events of one; earlier releases call its steps `outputs`."""
        if not is_stream:
            whole = documents[0] if documents else {}
            return _fold(whole, as_dicts(whole.get("steps")) or as_dicts(whole.get("outputs")))
        interaction: dict[str, Any] = {}
        steps: dict[int, _Step] = {}
        for event in documents:
            interaction.update(as_dict(event.get("interaction")))
            if isinstance(event.get("status"), str):
                interaction["status"] = event["status"]
            index = as_int(event.get("index"))
            if 0 <= index < STEPS_MAX:
                steps.setdefault(index, _Step()).add(event)
        return _fold(interaction, [steps[index].whole() for index in sorted(steps)])


class _Step:
    """One step of a stream, assembled from its start and its deltas."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] = {}
        self._texts: list[str] = []
        self._arguments: list[str] = []

    def add(self, event: dict[str, Any]) -> None:
        begun = as_dict(event.get("step")) or as_dict(event.get("content"))
        self._begun.update(begun)
        delta = as_dict(event.get("delta"))
        if delta.get("type") == "text":
            self._texts.append(as_str(delta.get("text")))
        self._arguments.append(as_str(delta.get("arguments")))

    def whole(self) -> dict[str, Any]:
        arguments = "".join(self._arguments)
        texts = [as_str(self._begun.get("text")) or join_texts(self._begun.get("content"), "text"), *self._texts]
        return {
            **self._begun,
            "text": "".join(texts),
            **({"arguments": arguments} if arguments else {}),
        }


def _fold(interaction: dict[str, Any], steps: list[dict[str, Any]]) -> ResponseMeaning:
    usage = as_dict(interaction.get("usage"))
    spoken = [step for step in steps if as_str(step.get("type")) in _SPOKEN]
    text = "".join(as_str(step.get("text")) or join_texts(step.get("content"), "text") for step in spoken)
    calls = tuple(_read_call(step) for step in steps if step.get("type") == "function_call")
    status = as_str(interaction.get("status"))
    written, thought = as_int(usage.get("total_output_tokens")), as_int(usage.get("total_thought_tokens"))
    return ResponseMeaning(
        model=as_str(interaction.get("model")),
        response_id=as_str(interaction.get("id")),
        tokens_in=as_int(usage.get("total_input_tokens")),
        tokens_out=-1 if max(written, thought) < 0 else max(written, 0) + max(thought, 0),
        tokens_cache_read=as_int(usage.get("total_cached_tokens")),
        tokens_reasoning=thought,
        finish_reason="" if status in _RUNNING else status,
        text=text,
        tool_calls=calls,
        error=error_text(0, interaction, ()),
        is_complete=status not in _RUNNING,
        messages=(Message("assistant", text, calls),) if text or calls else (),
    )


def _read_call(step: dict[str, Any]) -> ToolCall:
    given = step.get("arguments", {})
    name = as_str(step.get("name")) or as_str(step.get("type")).removesuffix("_call")
    return ToolCall(as_str(step.get("id")), name, given if isinstance(given, str) else to_json(given))
