"""A redactor that changes nothing: mocked calls are not stored, and tests inspect what was sent."""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping, Sequence
from typing import TypeAlias, TypeVar

from spanreplay.redact import RunRedactor
from spanreplay.redact.scanner import Scanner
from spanreplay.redact.tokens import KEY_BYTES, Tokenizer, key_id_of

T = TypeVar("T")
Counts: TypeAlias = MutableMapping[str, int]


class PlainRedactor(RunRedactor):
    """Returns its input unchanged."""

    def text(self, text: str, counts: Counts | None = None) -> str:
        """The text."""
        return text

    def json_text(self, text: str, counts: Counts | None = None) -> str:
        """The text."""
        return text

    def value(self, value: T, counts: Counts | None = None) -> T:
        """The value."""
        return value

    def headers(self, pairs: Iterable[Sequence[str | bytes]], counts: Counts | None = None) -> list[list[str]]:
        """The headers."""
        return [[p.decode("latin-1") if isinstance(p, bytes) else p for p in pair] for pair in pairs]

    def chunks(self, chunks: Sequence[str], counts: Counts | None = None) -> list[str]:
        """The chunks."""
        return list(chunks)


def build_redactor() -> PlainRedactor:
    """Build a redactor for one block."""
    key = os.urandom(KEY_BYTES)
    return PlainRedactor(Tokenizer(key, key_id_of(key)), Scanner(()), set())
