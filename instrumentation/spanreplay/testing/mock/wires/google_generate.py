"""Google's generateContent and streamGenerateContent."""

from __future__ import annotations

from typing import Any, Final

from spanreplay.testing.mock.answers import Answer, Failure
from spanreplay.testing.mock.wires._wire import Json, Wire, event, text_pieces, usage_of

_STATUSES: Final = {
    "rate_limit": "RESOURCE_EXHAUSTED",
    "auth": "UNAUTHENTICATED",
    "server": "INTERNAL",
    "overloaded": "UNAVAILABLE",
    "invalid_request": "INVALID_ARGUMENT",
}


class Generate(Wire):
    """POST …/models/MODEL:generateContent."""

    sdk = "google.genai"

    def whole(self, answer: Answer, body: Json, call_id: str) -> Json:
        """A `GenerateContentResponse`."""
        parts: list[Json] = [{"text": answer.text}] if answer.text or not answer.tool_calls else []
        parts += [{"functionCall": {"id": c.call_id, "name": c.name, "args": c.value}} for c in answer.tool_calls]
        usage = usage_of(answer, body.get("contents", []))
        return {
            "candidates": [_candidate(parts, is_last=True)],
            "usageMetadata": {
                "promptTokenCount": usage.prompt_tokens,
                "candidatesTokenCount": usage.completion_tokens,
                "totalTokenCount": usage.total_tokens,
            },
            "modelVersion": answer.model or body.get("model", ""),
            "responseId": call_id,
        }

    def stream(self, answer: Answer, body: Json, call_id: str) -> list[str]:
        """One event per part; the last one has the finish reason and the usage."""
        final = self.whole(answer, body, call_id)
        parts: list[Json] = []
        for part in final["candidates"][0]["content"]["parts"]:
            parts += [{"text": piece} for piece in text_pieces(answer)] if "text" in part else [part]
        head = {name: value for name, value in final.items() if name != "usageMetadata"}
        events = [event({**head, "candidates": [_candidate([part], is_last=False)]}) for part in parts[:-1]]
        return [*events, event({**final, "candidates": [_candidate(parts[-1:], is_last=True)]})]

    def error(self, failure: Failure) -> Json:
        """The body of an error."""
        status = _STATUSES.get(failure.kind, "UNKNOWN")
        return {"error": {"code": failure.status, "message": failure.message, "status": status}}

    def asked(self, body: Json) -> Json:
        """The request; contents with a single user text become that text."""
        return {**body, "contents": _flatten(body.get("contents"))}


def _candidate(parts: list[Json], *, is_last: bool) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    return {**candidate, "finishReason": "STOP"} if is_last else candidate


def _flatten(contents: Any) -> Any:
    match contents:
        case [{"parts": [{"text": str(text), **rest}]} as content] if not rest and content.get("role") in (
            None,
            "user",
        ):
            return text
    return contents
