"""Compare the requests and answers that two services of a trace exchange now with the recorded ones; pure.

A caller's request is known only in redacted form, with tokens for hidden values. A header or body that contains a
token stays as recorded unless the rest of it differs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from spanreplay.model.json_text import dump
from spanreplay.runtime.edits.patch import Patch, set_answer
from spanreplay.runtime.edits.selector import Selector
from spanreplay.runtime.wire.binary import stored_bytes
from spanreplay.runtime.wire.packing import unpack
from spanreplay.units.given import Answer, Given

__all__ = ["NewAnswer", "Sent", "compare_answers", "compare_requests", "read_exchange"]

_HIDDEN: Final = "rdx-"
"""Prefix of the tokens that stand for hidden values."""
_BODIES: Final = ("body", "body_text", "body_b64", "body_bytes")
_TOO_LARGE: Final = "body_bytes"
_OF_TRANSFER: Final = frozenset({"connection", "content-encoding", "date", "keep-alive", "server", "transfer-encoding"})
"""Response headers that the server or the transport sets; the recorded values are kept."""


@dataclass(frozen=True)
class Sent:
    """A request that a caller makes now instead of the recorded one."""

    given: Given
    changed: Sequence[str]
    """The differing parts, in words."""


@dataclass(frozen=True)
class NewAnswer:
    """An answer that replaces the recorded one."""

    value: Mapping[str, Any]
    """The argument for `set_answer`."""
    changed: Sequence[str]

    def to_patch(self, selector: Selector, run_id: str) -> Patch:
        """The plan's patch that gives this answer to the caller."""
        return set_answer(selector, self.value, f"run {run_id} has changed its answer: {', '.join(self.changed)}")


def compare_requests(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Sent | str | None:
    """The request that a caller makes now; None if it is as recorded, or the reason why it can't be replayed."""
    before, after = urlsplit(str(recorded.get("url", ""))), urlsplit(str(now.get("url", "")))
    is_moved = (before.path or "/", before.query) != (after.path or "/", after.query)
    headers, without = _compare_request_headers(recorded.get("headers") or {}, now.get("headers") or {})
    has_body = _pick_body(recorded) != _pick_body(now)
    if has_body and _TOO_LARGE in now:
        return "its body is too large to be kept"
    words = [
        *(["method"] if recorded.get("method") != now.get("method") else []),
        *(["path"] if before.path != after.path else []),
        *(["query"] if before.query != after.query else []),
        *(f"header {name}" for name in (*(name for name, _ in headers), *without)),
        *(["body"] if has_body else []),
    ]
    if not words:
        return None
    target = f"{after.path or '/'}{f'?{after.query}' if after.query else ''}" if is_moved else ""
    body = _read_body(now) if has_body else None
    return Sent(Given(str(now.get("method", "GET")), target, headers, body, without), words)


def _pick_body(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: request[name] for name in _BODIES if name in request}


def _read_body(request: Mapping[str, Any]) -> bytes:
    if "body" in request:
        return dump(request["body"]).encode()
    if "body_b64" in request:
        return base64.b64decode(request["body_b64"])
    return str(request.get("body_text", "")).encode("utf-8", "surrogatepass")


def _compare_request_headers(
    recorded: Mapping[str, str], now: Mapping[str, str]
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The headers that are new or changed, and the names of those that are gone."""
    others = [(name, value) for name, value in now.items() if recorded.get(name) != value and _HIDDEN not in value]
    return others, tuple(name for name in recorded if name not in now)


def compare_answers(recorded: Answer, now: Answer, differing: Sequence[str]) -> NewAnswer | None:
    """The parts of a service's answer that differ from the recorded one; None if it is the recorded one.

    `differing`: the paths at which its verdict found differences; needed where redaction hides part of the body.
    """
    headers, without = _compare_answer_headers(recorded.headers, now.headers)
    encoding = ", ".join(value for name, value in now.headers if name.lower() == "content-encoding")
    body = unpack(now.body, encoding)
    is_hidden = _HIDDEN.encode() in recorded.body and not any(".body" in path for path in differing)
    has_body = body is not None and body != recorded.body and not is_hidden
    named = dict.fromkeys([*(name.lower() for name, _ in headers), *(name.lower() for name in without)])
    named.pop("content-length", None)
    words = [
        *([f"status {now.status} instead of {recorded.status}"] if now.status != recorded.status else []),
        *(f"header {name}" for name in named),
        *(["body"] if has_body else []),
    ]
    if not words:
        return None
    stored = _store(body) if has_body and body is not None else None
    return NewAnswer({"status": now.status, "headers": headers, "without": without, "body": stored}, words)


def _store(body: bytes) -> Any:
    """Encode a body as a recorded chunk."""
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return stored_bytes(body)


def _compare_answer_headers(
    recorded: Iterable[tuple[str, str]], now: Iterable[tuple[str, str]]
) -> tuple[list[list[str]], list[str]]:
    """Headers whose values changed, with all values of a name, and names that are gone; redacted ones are skipped."""
    before, after = _by_name(recorded), _by_name(now)
    others: list[list[str]] = []
    for name, values in after.items():
        known = before.get(name, [])
        if values != known and not any(_HIDDEN in value for value in known):
            others += [[name, value] for value in values]
    return others, [name for name in before if name not in after]


def _by_name(headers: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        if name.lower() not in _OF_TRANSFER:
            found.setdefault(name.lower(), []).append(value)
    return found


def read_exchange(text: str) -> Mapping[str, Any]:
    """Parse the recorded request or response of an HTTP client."""
    found = json.loads(text)
    return found if isinstance(found, dict) else {}
