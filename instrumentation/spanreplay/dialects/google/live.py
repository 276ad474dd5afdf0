"""Google's live sessions: messages in both directions over one websocket, read as one long generateContent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str
from spanreplay.dialects.google.generate import GoogleGenerate

__all__ = ["GoogleLive", "Session"]

MESSAGE_CHARS_MAX: Final = 1_000_000
PARTS_MAX: Final = 10_000
_COUNTS: Final = {
    "promptTokenCount": "promptTokenCount",
    "responseTokenCount": "candidatesTokenCount",
    "cachedContentTokenCount": "cachedContentTokenCount",
    "thoughtsTokenCount": "thoughtsTokenCount",
    "toolUsePromptTokenCount": "toolUsePromptTokenCount",
}
"""Name of a usage count in a live session → its name in generateContent."""


class GoogleLive(GoogleGenerate):
    """GET …BidiGenerateContent, a websocket."""

    name: ClassVar[str] = "google.live"


class Session:
    """Reads the messages of a session in order."""

    dialect: ClassVar[type[GoogleLive]] = GoogleLive

    def __init__(self, url: str) -> None:
        del url  # the first message names the model
        self.body: dict[str, Any] = {"contents": [], "stream": True}
        """The session as the body of a request."""
        self._parts: list[dict[str, Any]] = []
        self._counts: dict[str, int] = {}
        self._model = self._reason = ""
        self._is_open = False

    def read(self, messages: Iterable[tuple[bool, Any]]) -> Session:
        """Read pairs (was sent, stored message); messages that are not JSON are skipped."""
        for is_sent, text in messages:
            (self._sent if is_sent else self._got)(_parse(text))
        return self

    def _sent(self, message: dict[str, Any]) -> None:
        setup = as_dict(message.get("setup"))
        for name in ("model", "generationConfig", "systemInstruction", "tools"):
            if name in setup:
                self.body[name] = setup[name]
        if isinstance(setup.get("model"), str):
            self.body["model"] = self._model = setup["model"].rpartition("/")[2]
        for turn in as_dicts(as_dict(message.get("clientContent")).get("turns")):
            self._add(turn)
        text = as_str(as_dict(message.get("realtimeInput")).get("text"))
        if text:
            self._add({"role": "user", "parts": [{"text": text}]})
        results = as_dicts(as_dict(message.get("toolResponse")).get("functionResponses"))
        if results:
            self._add({"role": "user", "parts": [{"functionResponse": result} for result in results]})

    def _add(self, content: dict[str, Any]) -> None:
        if len(self.body["contents"]) < PARTS_MAX:
            self.body["contents"].append(content)

    def _got(self, message: dict[str, Any]) -> None:
        content = as_dict(message.get("serverContent"))
        heard = as_str(as_dict(content.get("inputTranscription")).get("text"))
        if heard:
            self._add({"role": "user", "parts": [{"text": heard}]})
        self._say([part for part in as_dicts(as_dict(content.get("modelTurn")).get("parts")) if "text" in part])
        spoken = as_str(as_dict(content.get("outputTranscription")).get("text"))
        self._say([{"text": spoken}] if spoken else [])
        self._say([{"functionCall": call} for call in as_dicts(as_dict(message.get("toolCall")).get("functionCalls"))])
        if content.get("interrupted") is True:
            self._reason, self._is_open = "INTERRUPTED", False
        if content.get("turnComplete") is True:
            self._reason, self._is_open = "STOP", False
        usage = as_dict(message.get("usageMetadata"))
        for name, as_generated in _COUNTS.items():
            if as_int(usage.get(name)) >= 0:
                self._counts[as_generated] = self._counts.get(as_generated, 0) + as_int(usage[name])

    def _say(self, parts: list[dict[str, Any]]) -> None:
        if parts:
            self._is_open = True
        if len(self._parts) + len(parts) <= PARTS_MAX:
            self._parts.extend(parts)

    def answer(self, dialect: GoogleLive) -> ResponseMeaning:
        """Return the model's output of all turns, including an unfinished one."""
        reason = "" if self._is_open else self._reason
        candidate = {"content": {"role": "model", "parts": self._parts}, "finishReason": reason}
        whole = {"candidates": [candidate], "usageMetadata": self._counts, "modelVersion": self._model}
        return dialect.fold([whole], False)


def _parse(message: Any) -> dict[str, Any]:
    text = message.get("utf8") if isinstance(message, dict) else message
    if not isinstance(text, str) or len(text) > MESSAGE_CHARS_MAX:
        return {}
    try:
        return as_dict(json.loads(text))
    except (ValueError, RecursionError):
        return {}
