"""Redaction: secrets become tokens before anything is keyed, recorded or exported.

    redactor = Redactor(*load_or_create_key(path))
    run = redactor.run()
    run.text("password=hunter2x")       # 'password=rdx-…'

Importing this loads nothing; each name loads its module at its first use, the span processor the OpenTelemetry SDK too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanreplay.redact.engine import Redactor, RunRedactor
    from spanreplay.redact.processor import RedactingSpanProcessor
    from spanreplay.redact.rules import RULES, Anchor, Rule
    from spanreplay.redact.streams import redact_chunks
    from spanreplay.redact.tokens import TOKEN, load_or_create_key

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


_LAZY = {
    "RULES": "rules",
    "TOKEN": "tokens",
    "Anchor": "rules",
    "RedactingSpanProcessor": "processor",
    "Redactor": "engine",
    "Rule": "rules",
    "RunRedactor": "engine",
    "load_or_create_key": "tokens",
    "redact_chunks": "streams",
}


def __getattr__(name: str) -> object:
    """Import names on first access: a command that only reads the key needs no rules."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"spanreplay.redact.{_LAZY[name]}"), name)
