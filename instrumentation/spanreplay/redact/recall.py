"""Recognise in a replay, by tokens alone, the values that the recording knew to be secret.

A run learns a value from a response, and redacts it in every later text. In a replay that response holds the token in
its place, so the value can't be learned from it. But the same key makes the same token: a word of a later text whose
token occurs in a served response is a value that the recording had learned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from spanreplay.redact.tokens import TOKEN, Tokenizer

__all__ = ["Recall"]

TOKENS_MAX: Final = 10_000
CANDIDATES_MAX: Final = 200_000
"""Words of one text that are tried; the rest of a longer text is not searched."""
WORD_BYTES_MIN: Final = 8
WORD_BYTES_MAX: Final = 512
_SPLITS: Final = (
    re.compile(rb"[^\x00\s\"'`<>(){}\[\],;]+"),
    re.compile(rb"[A-Za-z0-9_\x80-\xff]+"),
    re.compile(rb"[A-Za-z0-9_.~+/=\x80-\xff-]+"),
    re.compile(rb"[^\x00\r\n]+"),
)
"""Ways to find one value: between blanks and brackets, letters and digits, characters of keys, a whole line."""
_AROUND: Final = b".,:;!?=&*_-"


class Recall:
    """The tokens of the responses served so far. Thread-safe to the extent that single operations are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: dict[bytes, bool] = {}
        self._sent: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def add(self, text: str) -> None:
        """Note the tokens in a response that a replay serves; a token that is a whole JSON string has a secret name."""
        encoded = text.encode("utf-8", "surrogatepass")
        for match in TOKEN.finditer(encoded):
            is_whole = encoded[match.start() - 1 : match.start()] == encoded[match.end() : match.end() + 1] == b'"'
            if len(self._tokens) < TOKENS_MAX or match[0] in self._tokens:
                self._tokens[match[0]] = is_whole or self._tokens.get(match[0], False)

    def tokens(self) -> dict[bytes, bool]:
        """The tokens noted so far, for `go_back`."""
        return dict(self._tokens)

    def go_back(self, tokens: Mapping[bytes, bool]) -> None:
        """Reset the served tokens to these; sent tokens stay known."""
        self._tokens = dict(tokens)

    def note_sent(self, text: object) -> None:
        """Note the served tokens in a text that is about to be redacted: they came from a served response."""
        if isinstance(text, str) and "rdx-" in text:
            for match in TOKEN.finditer(text.encode("utf-8", "surrogatepass")):
                if match[0] in self._tokens:
                    self._sent.add(match[0])

    def find_foreign(self, text: str) -> str:
        """The first token in a redacted text that the agent got from a served response; '' if there is none.

        The token of a value that the agent also knows from elsewhere counts if the agent sent that token before.
        """
        for match in TOKEN.finditer(text.encode("utf-8", "surrogatepass")) if self._sent else ():
            if match[0] in self._sent:
                return match[0].decode("ascii")
        return ""

    def find(self, text: bytes) -> Iterator[tuple[bytes, bool]]:
        """The words of a text whose tokens were served, and whether each is sure to be secret."""
        tried: set[bytes] = set()
        for pattern in _SPLITS:
            for match in pattern.finditer(text):
                for word in {match[0], match[0].strip(_AROUND)}:
                    if not WORD_BYTES_MIN <= len(word) <= WORD_BYTES_MAX or word in tried:
                        continue
                    if len(tried) >= CANDIDATES_MAX:
                        return
                    tried.add(word)
                    is_sure = self._tokens.get(self._tokenizer.make(word).encode("ascii"))
                    if is_sure is not None:
                        yield word, is_sure
