"""What a recording knew to be secret, known again in its replay by the tokens alone.

A run learns a value from a response, and redacts it in every later text. In a replay that response holds the token in
its place, so the value can't be learned from it. But the same key makes the same token: the words of a later text that
have a token of a served response are what was learned then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from spanreplay.redact.tokens import TOKEN, Tokenizer

__all__ = ["Recall"]

TOKENS_MAX: Final = 10_000
CANDIDATES_MAX: Final = 200_000
"""Words of one text that are tried; a longer text is searched up to there."""
WORD_BYTES_MIN: Final = 8
WORD_BYTES_MAX: Final = 512
_SPLITS: Final = (
    re.compile(rb"[^\x00\s\"'`<>(){}\[\],;]+"),
    re.compile(rb"[A-Za-z0-9_\x80-\xff]+"),
    re.compile(rb"[A-Za-z0-9_.~+/=\x80-\xff-]+"),
    re.compile(rb"[^\x00\r\n]+"),
)
"""What may be one value: between blanks and brackets, letters and digits, the letters of keys, a whole line."""
_AROUND: Final = b".,:;!?=&*_-"


class Recall:
    """The tokens of the responses that were served so far. Thread-safe as far as single operations are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: dict[bytes, bool] = {}
        self._sent: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def add(self, text: str) -> None:
        """Take in the tokens of what a replay serves; a token that is a whole JSON text stands under a secret name."""
        encoded = text.encode("utf-8", "surrogatepass")
        for match in TOKEN.finditer(encoded):
            is_whole = encoded[match.start() - 1 : match.start()] == encoded[match.end() : match.end() + 1] == b'"'
            if len(self._tokens) < TOKENS_MAX or match[0] in self._tokens:
                self._tokens[match[0]] = is_whole or self._tokens.get(match[0], False)

    def tokens(self) -> dict[bytes, bool]:
        """What it has taken in so far, for `go_back`."""
        return dict(self._tokens)

    def go_back(self, tokens: Mapping[bytes, bool]) -> None:
        """Know no more than this; what has been sent stays known."""
        self._tokens = dict(tokens)

    def note_sent(self, text: object) -> None:
        """Look for tokens in a text that is about to be redacted: they have come from what was served."""
        if isinstance(text, str) and "rdx-" in text:
            for match in TOKEN.finditer(text.encode("utf-8", "surrogatepass")):
                if match[0] in self._tokens:
                    self._sent.add(match[0])

    def find_foreign(self, text: str) -> str:
        """The first token in a redacted text that a served response gave the agent; '' if there is none.

        A value that the agent knows besides, and that was also sent as a token before, counts as one.
        """
        for match in TOKEN.finditer(text.encode("utf-8", "surrogatepass")) if self._sent else ():
            if match[0] in self._sent:
                return match[0].decode("ascii")
        return ""

    def find(self, text: bytes) -> Iterator[tuple[bytes, bool]]:
        """The words of a text that stood where the tokens are, and whether each was sure to be secret."""
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
