"""A call that hides values: sealed when it is recorded, and shown whole in a replay that has the key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spanreplay.model import config
from spanreplay.redact.sealed_values import SEALED, TooLarge, seal_values
from spanreplay.runtime.calls.printed import MEMBER

if TYPE_CHECKING:
    from spanreplay.runtime.calls.in_flight import InFlight

__all__ = ["UNSEALED", "seal_hidden"]

UNSEALED: Final = "unsealed"
"""Counter of the manifest: calls with more hidden values than are sealed."""


def seal_hidden(crossing: InFlight, response: str) -> None:
    """Seal the hidden values of a live call's response and printed text into the call's record."""
    spec = crossing.spec
    raw, raw_printed, spec.raw, spec.raw_printed = spec.raw, spec.raw_printed, None, None
    is_hidden = sum(spec.redactions.values()) > crossing.hidden_sent or "rdx-" in response
    if not is_hidden or not response or len(response) > config.BODY_BYTES_MAX:
        return
    if config.read_setting("SPANREPLAY_SEAL") != "true":
        return
    try:
        sealed = seal_values(crossing.run.redactor, response, raw, spec.meta.get(MEMBER), raw_printed)
    except TooLarge:
        crossing.run.count(UNSEALED)
        return
    if sealed:
        spec.meta[SEALED] = sealed
