"""Redaction: secrets become tokens before anything is keyed, recorded or exported.

    redactor = Redactor(*load_or_create_key(path))
    run = redactor.run()
    run.text("password=hunter2x")       # 'password=rdx-…'

Importing this costs no OpenTelemetry SDK; the span processor is loaded when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.redact.engine import Redactor, RunRedactor
from spanreplay.redact.rules import RULES, Anchor, Rule
from spanreplay.redact.streams import redact_chunks
from spanreplay.redact.tokens import TOKEN, load_or_create_key

if TYPE_CHECKING:
    from spanreplay.redact.processor import RedactingSpanProcessor

__all__ = [
    "RULES",
    "TOKEN",
    "Anchor",
    "RedactingSpanProcessor",
    "Redactor",
    "Rule",
    "RunRedactor",
    "load_or_create_key",
    "redact_chunks",
]


def __getattr__(name: str) -> object:
    if name == "RedactingSpanProcessor":
        from spanreplay.redact.processor import RedactingSpanProcessor

        return RedactingSpanProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
