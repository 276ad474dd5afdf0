"""Reads a request's settings, or refuses it; pure functions of the JSON.

Each route lists the fields it supports; any other field must be absent, null or neutral. So unknown fields are refused,
and no field is silently ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from spanreplay_kernels.errors import KernelError

__all__ = ["Asked", "Refused", "read_request", "refusal"]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CLOSED: Final = ("/load_model", "/reset", "/v1/audio/transcriptions", "/v1/systemone")
"""Routes that would load, unload or run models that were not audited."""
_SAMPLED: Final = ("model", "stream", "temperature", "top_p", "seed")
_DONE: Final = MappingProxyType(
    {
        CHAT: (*_SAMPLED, "messages", "max_tokens", "max_completion_tokens", "tools", "chat_template_kwargs"),
        COMPLETIONS: (*_SAMPLED, "prompt", "max_tokens"),
        RESPONSES: (*_SAMPLED, "input", "instructions", "max_output_tokens", "tools"),
    }
)
"""Route → the fields that it supports."""
_LABELS: Final = ("user", "metadata", "safety_identifier", "prompt_cache_key")
"""Fields that describe a request without affecting the answer."""
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "n": (1,),
        "best_of": (1,),
        "frequency_penalty": (0, 0.0),
        "presence_penalty": (0, 0.0),
        "logit_bias": ({},),
        "logprobs": (False,),
        "echo": (False,),
        "stop": ([],),
        "store": (False,),
        "background": (False,),
        "parallel_tool_calls": (True,),
        "tool_choice": ("auto",),
        "response_format": ({"type": "text"},),
        "text": ({"format": {"type": "text"}}, {}),
        "modalities": (["text"],),
        "service_tier": ("auto", "default"),
        "truncation": ("disabled",),
        "include": ([],),
        "reasoning": ({},),
        "stream_options": ({}, {"include_usage": True}, {"include_usage": False}),
    }
)
"""Field → its neutral values, which don't change an answer; usage is always sent."""
_LENGTHS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_MANY: Final = ("n", "best_of")
_SHOWN_CHARS: Final = 60


class Refused(KernelError, ValueError):
    """A request that this server refuses; names the field and the reason."""

    def __init__(self, param: str, problem: str) -> None:
        super().__init__(f"{param}: {problem}" if param else problem)
        self.param = param


class Asked(NamedTuple):
    """A request's sampling settings, and the most tokens it wants; None for the server's own limit."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    tokens: int | None = None


def refusal(error: Exception) -> dict[str, Any]:
    """Return the body of a 400 response in OpenAI's format."""
    param = getattr(error, "param", None) or getattr(error, "op", None)
    return {"error": {"message": str(error), "type": "invalid_request_error", "param": param, "code": None}}


def read_request(path: str, method: str, raw: bytes, *, template: str) -> Asked:
    """Return a request's settings. `template` is the chat template, which must use every option it is passed.

    The ranges of sampling settings are checked later, by `Draw.check`. Raises: Refused.
    """
    if path in CLOSED:
        raise Refused(path, "it is closed on this server; use the one model that was audited")
    if method != "POST" or path not in _DONE:
        return Asked()
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Refused("", "the body is not a JSON object")
    _check_fields(path, body)
    _check_prompt(path, body)
    _check_template(body, template)
    if not isinstance(body.get("stream"), bool | None):
        raise Refused("stream", f"{_shown(body['stream'])} is neither true nor false")
    top_p = _number(body.get("top_p"), 1.0)
    temperature = _number(body.get("temperature"), 0.0 if top_p == 1 else 1.0)
    return Asked(temperature, top_p, 0 if body.get("seed") is None else body["seed"], _length(body))


def _check_fields(path: str, body: dict[str, Any]) -> None:
    for name, value in body.items():
        if value is None or name in _DONE[path] or name in _LABELS:
            continue
        # Compare as JSON: 0 is not false
        if all(json.dumps(value) != json.dumps(neutral) for neutral in _NEUTRAL.get(name, ())):
            hint = ", and send a request for each answer with a seed of its own" if name in _MANY else ""
            raise Refused(name, f"{_shown(value)} is not supported; leave it out{hint}")


def _check_prompt(path: str, body: dict[str, Any]) -> None:
    """Refuse an empty prompt, and parts that aren't text: the model's input would drop them."""
    if path == COMPLETIONS:
        if not isinstance(body.get("prompt"), str) or not body["prompt"]:
            raise Refused("prompt", "a text that is not empty is wanted")
        return
    name = "messages" if path == CHAT else "input"
    messages = body.get(name)
    if path == RESPONSES and isinstance(messages, str) and messages:
        return
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise Refused(name, "a list of at least one message is wanted")
    for at, message in enumerate(messages):
        if path == CHAT and not isinstance(message.get("role"), str):
            raise Refused(f"{name}[{at}].role", "a text is wanted")
        _check_content(f"{name}[{at}].content", message.get("content"))


def _check_content(place: str, content: Any) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Refused(place, "a text or a list of parts is wanted")
    for at, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise Refused(f"{place}[{at}]", "only parts of text are read")


def _check_template(body: dict[str, Any], template: str) -> None:
    """Refuse options that the template doesn't use: it would ignore them silently."""
    options = body.get("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise Refused("chat_template_kwargs", "a JSON object is wanted")
    for name in (*(("tools",) if body.get("tools") else ()), *options):
        if name not in template:
            raise Refused(name, "the model's chat template does not read it; leave it out")


def _length(body: dict[str, Any]) -> int | None:
    named = {name: body[name] for name in _LENGTHS if body.get(name) is not None}
    for name, value in named.items():
        if type(value) is not int or value < 1:
            raise Refused(name, f"{_shown(value)} is not a whole number from 1")
    return next(iter(named.values()), None)


def _number(value: Any, default: float) -> Any:
    """Return an integer as a float, since JSON doesn't distinguish them; other values stay, to be refused later."""
    if type(value) is int:
        return float(str(value))  # inf if huge, where float(value) would raise
    return default if value is None else value


def _shown(value: Any) -> str:
    """Return a short form of a value; for a longer text, which may be confidential, only its length."""
    if isinstance(value, str) and len(value) > _SHOWN_CHARS // 2:
        return f"a text of {len(value)} characters"
    return repr(value)[:_SHOWN_CHARS]
