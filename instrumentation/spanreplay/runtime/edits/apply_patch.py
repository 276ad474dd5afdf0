"""Applies patches to calls: where the fields of requests and responses lie, by the shape of their JSON; pure.

A function call's request is `{"arguments": {…}}`, its response `{"value": …}`. An HTTP exchange's request is
`{"method", "url", "headers", "body"}`, its response `{"status", "headers", "chunks": [[ms, text]…]}`. Paths lead into
the arguments and the value, or into the body of the request and of the response. `system` is the system prompt in any
protocol; `response.text` is the text of a model's answer, also in a stream (`events`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final

from spanreplay.model.call import Outcome
from spanreplay.model.json_text import dump, load_or_text
from spanreplay.runtime.edits.events import find_in, is_event_stream, patch_events
from spanreplay.runtime.edits.patch import ADD, SET, Patch, Step, Unfit, edit

_SYSTEM_ROLES: Final = ("system", "developer")
_SYSTEM_FIELDS: Final = ("system", "instructions", "systemInstruction", "system_instruction", "preamble")
_TEXT_PATHS: Final[tuple[tuple[Step, ...], ...]] = (
    ("choices", 0, "message", "content"),
    ("choices", 0, "text"),
    ("content", 0, "text"),
    ("output", 0, "content", 0, "text"),
    ("candidates", 0, "content", "parts", 0, "text"),
    ("output", "message", "content", 0, "text"),
    ("message", "content"),
    ("message", "content", 0, "text"),
    ("response",),
)
"""Where providers put the text of an answer."""
_REASONS: Final = {each.value: each.phrase for each in HTTPStatus}
_ERRORS_FROM: Final = 400


# ── Requests ────────────────────────────────────────────────────────────────────────────────────────
def patch_arguments(arguments: dict[str, Any], patches: Iterable[Patch]) -> dict[str, Any]:
    """A function call's encoded arguments with the patches applied. Raises: ConfigError."""
    value: Any = arguments
    for patch in patches:
        path = patch.path
        if path[:1] == ("arguments",) and "arguments" not in arguments:
            path = path[1:]
        value = _edit(value, patch, path)
        if not isinstance(value, dict):
            raise patch.fail("the arguments of a call are an object")
    return dict(value)


def patch_body(body: Any, patches: Iterable[Patch]) -> Any:
    """The JSON body of a request to a model with the patches applied. Raises: ConfigError."""
    for patch in patches:
        path = patch.path[1:] if patch.path[:1] == ("body",) and "body" not in body else patch.path
        if path and path[0] == "system" and isinstance(body, dict):
            body = _edit_system(body, patch, path)
        else:
            body = _edit(body, patch, path)
    return body


def _edit(value: Any, patch: Patch, path: Sequence[Step]) -> Any:
    try:
        return edit(value, patch, path)
    except Unfit as exc:
        raise patch.fail(str(exc), exc.step + len(patch.path) - len(path)) from None


def _edit_system(body: dict[str, Any], patch: Patch, path: Sequence[Step]) -> Any:
    field = next((name for name in _SYSTEM_FIELDS if name in body), "")
    if field:
        rest = _text_of(body[field], patch, path[1:])
        return _edit(body, patch, (field, *rest))
    messages = body.get("messages")
    if not isinstance(messages, list):
        return _edit(body, patch, (_own_field(body), *path[1:])) if patch.op == SET else _edit(body, patch, path)
    at = next((i for i, m in enumerate(messages) if isinstance(m, dict) and m.get("role") in _SYSTEM_ROLES), -1)
    if at < 0:
        if patch.op not in (SET, ADD) or path[1:]:
            raise patch.fail("this request has no system prompt", 0)
        return {**body, "messages": [{"role": "system", "content": patch.value}, *messages]}
    if patch.op not in (SET, ADD) and not path[1:]:
        return {**body, "messages": [*messages[:at], *messages[at + 1 :]]}
    rest = _text_of(messages[at].get("content"), patch, path[1:])
    return _edit(body, patch, ("messages", at, "content", *rest))


def _own_field(body: dict[str, Any]) -> str:
    return "systemInstruction" if "contents" in body else "instructions" if "input" in body else "system"


def _text_of(prompt: Any, patch: Patch, rest: Sequence[Step]) -> Sequence[Step]:
    """The path to the text within a prompt: the prompt itself, or its last part if it is a list."""
    if rest or not isinstance(patch.value, str) or patch.op == "delete":
        return rest
    steps: list[Step] = []
    if isinstance(prompt, dict) and isinstance(prompt.get("parts"), list):
        steps, prompt = ["parts"], prompt["parts"]
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict) and isinstance(prompt[-1].get("text"), str):
        return [*steps, len(prompt) - 1, "text"]
    return steps


def patch_request(request: str, patches: Sequence[Patch], *, is_model: bool) -> str:
    """A recorded request with the patches applied, for trying them out. Raises: ConfigError."""
    value = load_or_text(request)
    if isinstance(value, dict) and isinstance(value.get("arguments"), dict) and "method" not in value:
        return dump({**value, "arguments": patch_arguments(value["arguments"], patches)})
    if isinstance(value, dict) and "body" in value:
        return dump({**value, "body": patch_body(value["body"], _below_body(patches, is_model=is_model))})
    raise patches[0].fail("the request of this call has no fields that can be set", 0)


def _below_body(patches: Sequence[Patch], *, is_model: bool) -> Iterable[Patch]:
    for patch in patches:
        if not is_model and patch.path[:1] and patch.path[0] in ("method", "url", "headers"):
            raise patch.fail("of a request only the body can be set", 0)
        yield patch


# ── Responses ───────────────────────────────────────────────────────────────────────────────────────
def patch_response(response: str, outcome: str, patches: Iterable[Patch]) -> tuple[str, str]:
    """A recorded response with the patches applied, and its outcome. Raises: ConfigError."""
    value = load_or_text(response)
    for patch in patches:
        if patch.is_answer:
            value, outcome = _put_answer(value, patch)
        elif isinstance(value, dict) and isinstance(value.get("chunks"), list):
            value = _patch_exchange(value, patch)
        elif patch.is_error:
            value, outcome = {"error": patch.value}, Outcome.ERROR.value
        elif isinstance(value, dict) and ("value" in value or "error" in value) and "items" not in value:
            value = {"value": _edit(value.get("value"), patch, patch.path)}
            outcome = Outcome.OK.value
        elif isinstance(value, dict):
            value = _edit(value, patch, patch.path)
        else:
            raise patch.fail("the response of this call has no fields that can be set", 0)
    return dump(value), outcome


def _patch_exchange(value: dict[str, Any], patch: Patch) -> dict[str, Any]:
    if patch.is_error:
        raise patch.fail("an HTTP exchange can't be made to raise; it can answer: llm[2] answers 503")
    pieces = [chunk[1] for chunk in value["chunks"]]
    if not all(isinstance(piece, str) for piece in pieces):
        raise patch.fail("the body of this response is not text", 0)
    text = "".join(pieces)
    first_ms = value["chunks"][0][0] if value["chunks"] else 0
    if is_event_stream(text):
        return {**value, "chunks": patch_events(value["chunks"], patch)}
    body = load_or_text(text)
    path = _response_path(body, patch)
    changed = _edit(body, patch, path)
    written = changed if isinstance(changed, str) and not path else dump(changed)
    return {**value, "headers": _without_length(value.get("headers", [])), "chunks": [[first_ms, written]]}


def _put_answer(value: Any, patch: Patch) -> tuple[dict[str, Any], str]:
    """An exchange with another service's answer in it, and the outcome for an answer with this status."""
    if not isinstance(value, dict) or not isinstance(value.get("chunks"), list) or "hops" in value:
        raise patch.fail("this call has no single answer that another one could replace")
    answer, chunks = patch.value, value["chunks"]
    gone = {name.lower() for name in answer["without"]} | {name.lower() for name, _ in answer["headers"]}
    kept = [pair for pair in value.get("headers", []) if pair[0].lower() not in gone]
    status, body = int(answer["status"]), answer["body"]
    if status != value["status"]:
        value = {**value, "status": status, "reason": _REASONS.get(status, "")}
    if body is not None:
        whole = {name: each for name, each in value.items() if name != "error"}
        value = {**whole, "chunks": [[chunks[0][0] if chunks else 0, body]] if body else [], "end": "complete"}
    outcome = Outcome.ERROR if status >= _ERRORS_FROM else Outcome.OK
    return {**value, "headers": [*kept, *answer["headers"]]}, outcome.value


def _without_length(headers: list[list[str]]) -> list[list[str]]:
    return [pair for pair in headers if pair[0].lower() != "content-length"]


def _response_path(body: Any, patch: Patch) -> Sequence[Step]:
    if patch.path != ("text",) or (isinstance(body, dict) and "text" in body):
        return patch.path
    path = next((p for p in _TEXT_PATHS if isinstance(find_in(body, p), str)), None)
    if path is None:
        raise patch.fail("this answer has no text to set", 0)
    return path
