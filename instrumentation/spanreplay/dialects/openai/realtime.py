"""OpenAI's realtime sessions: events in both directions over one websocket, read as one long response."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, urlsplit

from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str
from spanreplay.dialects.openai.responses import OpenAIResponses

__all__ = ["OpenAIRealtime", "Session"]

EVENT_CHARS_MAX: Final = 1_000_000
ITEMS_MAX: Final = 10_000
_UNREAD: Final = ("input_audio_buffer.append", "output_audio.delta", "response.audio.delta")
"""Events that contain only audio."""
_DELTAS: Final = (
    "response.output_text.delta",
    "response.text.delta",
    "response.output_audio_transcript.delta",
    "response.audio_transcript.delta",
)
_COUNTS: Final = (
    ("input_tokens",),
    ("output_tokens",),
    ("input_token_details", "cached_tokens"),
)


class OpenAIRealtime(OpenAIResponses):
    """GET …/realtime, a websocket; its items are read as in the responses protocol."""

    name: ClassVar[str] = "openai.realtime"


class Session:
    """Reads the events of a session in order."""

    dialect: ClassVar[type[OpenAIRealtime]] = OpenAIRealtime

    def __init__(self, url: str) -> None:
        query = dict(parse_qsl(urlsplit(url).query))
        self.body: dict[str, Any] = {
            "model": query.get("model") or query.get("deployment", ""),
            "input": [],
            "stream": True,
        }
        """The session as the body of a request."""
        self._model = self._error = self._reason = ""
        self._outputs: list[dict[str, Any]] = []
        self._counts: dict[tuple[str, ...], int] = {}
        self._partial: list[str] = []
        self._is_open = False

    def read(self, events: Iterable[tuple[bool, Any]]) -> Session:
        """Read pairs (was sent, stored message); messages that are not events are skipped."""
        for is_sent, text in events:
            event = _parse(text)
            (self._sent if is_sent else self._got)(as_str(event.get("type")), event)
        return self

    def _sent(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "session.update":
            self._update(as_dict(event.get("session")))
        elif kind == "response.create":
            self._update(as_dict(event.get("response")))
        elif kind == "conversation.item.create":
            self._add(as_dict(event.get("item")))

    def _update(self, session: dict[str, Any]) -> None:
        for name in ("instructions", "tools", "temperature", "max_output_tokens", "tool_choice", "model"):
            if session.get(name) is not None:
                self.body[name] = session[name]
        if "max_response_output_tokens" in session:
            self.body["max_output_tokens"] = session["max_response_output_tokens"]

    def _add(self, item: dict[str, Any]) -> None:
        if len(self.body["input"]) < ITEMS_MAX:
            self.body["input"].append(_plain(item))

    def _got(self, kind: str, event: dict[str, Any]) -> None:
        if kind in ("session.created", "session.updated"):
            self._model = as_str(as_dict(event.get("session")).get("model")) or self._model
        elif kind == "response.created":
            self._is_open, self._partial = True, []
        elif kind in _DELTAS:
            self._partial.append(as_str(event.get("delta")))
        elif kind == "conversation.item.input_audio_transcription.completed":
            self._add({"type": "message", "role": "user", "content": as_str(event.get("transcript"))})
        elif kind == "response.done":
            self._done(as_dict(event.get("response")))
        elif kind == "error":
            error = as_dict(event.get("error"))
            parts = (as_str(error.get("type")), as_str(error.get("message")))
            self._error = ": ".join(part for part in parts if part) or "error"

    def _done(self, response: dict[str, Any]) -> None:
        self._is_open, self._partial = False, []
        self._reason = as_str(response.get("status")) or self._reason
        for item in as_dicts(response.get("output")):
            if len(self._outputs) < ITEMS_MAX:
                self._outputs.append(_plain(item))
        for path in _COUNTS:
            found: Any = response.get("usage")
            for name in path:
                found = as_dict(found).get(name)
            if as_int(found) >= 0:
                self._counts[path] = self._counts.get(path, 0) + as_int(found)

    def answer(self, dialect: OpenAIRealtime) -> ResponseMeaning:
        """Return the model's output of all responses, including an unfinished one."""
        outputs = list(self._outputs)
        if self._partial:
            outputs.append({"type": "message", "role": "assistant", "content": "".join(self._partial)})
        tokens_in, tokens_out, cached = (self._counts.get(path, -1) for path in _COUNTS)
        usage = {"input_tokens": tokens_in, "output_tokens": tokens_out}
        details = {"input_tokens_details": {"cached_tokens": cached}}
        status = "" if self._is_open else self._reason
        whole = {"model": self._model, "output": outputs, "usage": {**usage, **details}, "status": status}
        return dialect.fold_response(whole, error=self._error)


def _parse(message: Any) -> dict[str, Any]:
    text = message.get("utf8") if isinstance(message, dict) else message  # the SDK reads text as bytes
    if not isinstance(text, str) or len(text) > EVENT_CHARS_MAX or any(kind in text[:120] for kind in _UNREAD):
        return {}
    try:
        return as_dict(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item in which transcripts of audio serve as text."""
    content = item.get("content")
    if not isinstance(content, list):
        return item
    parts = [
        {"type": "output_text", "text": as_str(part.get("text")) or as_str(part.get("transcript"))}
        for part in as_dicts(content)
    ]
    return {**item, "content": parts}
