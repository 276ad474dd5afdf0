"""Tokens in requests of live calls: a provider must not receive tokens that stand for secrets in the recording.

An agent that sends a recorded answer back, as every conversation does, would send the tokens hidden in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing

__all__ = ["SentTokens", "find_field"]

NODES_MAX: Final = 100_000
CALLS_MAX: Final = 1_000


class SentTokens:
    """Refuses live calls that contain a token, or lists them if the plan allows it. The session's lock guards it."""

    def __init__(self, *, is_allowed: bool) -> None:
        self._is_allowed = is_allowed
        self._calls: list[dict[str, Any]] = []

    def check(self, crossing: Crossing) -> str:
        """Return why a live call must not be made; '' if it may."""
        spec = crossing.spec
        call = f"live call {crossing.number} ({crossing.boundary})"
        uses = spec.uses
        if uses is not None and uses.server:
            return f"{call} would go to the server of the recorded {uses.server}, which is not set here; set it"
        token = crossing.run.redactor.find_foreign_token(spec.request)
        credential = "" if uses is None else uses.credential
        if not token and not credential:
            return ""
        field = find_field(spec.request, token) if token else "a header of credentials"
        if self._is_allowed:
            if len(self._calls) < CALLS_MAX:
                self._calls.append({"call": crossing.number, "boundary": crossing.boundary, "field": field})
            return ""
        if not token:
            return f"{call} would send the token of {credential}, which is not set here; set it, or serve the call"
        return (
            f"{call} would send {token} in {field}, "
            "which stands for a value that the recording hides; serve the call, or let it pass with --allow-tokens"
        )

    def describe(self) -> list[dict[str, Any]]:
        """Return the live calls that sent a token: number, boundary, field."""
        return list(self._calls)


def find_field(request: str, token: str) -> str:
    """Return the path of the first text in a JSON request that contains a token; `$` if unknown."""
    try:
        value = json.loads(request)
    except ValueError:
        return "$"
    waiting: list[tuple[str, Any]] = [("", value)]
    for _ in range(NODES_MAX):
        if not waiting:
            break
        path, each = waiting.pop()
        if isinstance(each, str) and token in each:
            return path or "$"
        if isinstance(each, dict):
            waiting += [(f"{path}.{key}".lstrip("."), inner) for key, inner in reversed(each.items())]
        elif isinstance(each, list):
            waiting += [(f"{path}[{n}]", inner) for n, inner in reversed(list(enumerate(each)))]
    return "$"
