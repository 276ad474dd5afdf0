"""Keys of unlisted providers, recognised by a telling word that is followed by random characters.

`vendor_live_8fK2…`, `vendor_secret_…`, `vendor_pat_…`. An id has no such word (`call_…`, `msg_…`, `run_…`), and a
name in a program has no random characters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final

from spanreplay.redact.decoding import ends_escape

__all__ = ["KEY_WORDS", "is_key_after_word"]

KEY_WORDS: Final = (
    *("_live_", "_prod_", "_production_", "_sandbox_", "_secret_", "_sec_", "_sk_", "_pat_", "_oat_", "_apikey_"),
    *("_key_", "_token_", "_live-", "_secret-", "_key-", "_token-", "_car_"),
)
_VENDOR_CHARS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
"""Characters of the vendor's name, which precedes the word."""
RANDOM_CHARS_MIN: Final = 16
RANDOM_BITS_MIN: Final = 3.2
"""Shannon entropy per character; 16 random hexadecimal digits have about this much."""
_VENDOR: Final = re.compile(rb"[A-Za-z][A-Za-z0-9_]{0,30}\Z")
TURN_CHARS: Final = 4
"""In random characters, a run of one kind (small letters, capitals, digits) is at most this long on average."""
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KINDS: Final = bytes(48 if 48 <= c <= 57 else 65 if 65 <= c <= 90 else 97 for c in range(256))
_UUID: Final = re.compile(rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_PIECE: Final = re.compile(rb"[A-Za-z0-9]{16,}")


def is_key_after_word(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether a vendor's name precedes the word and random characters follow it."""
    head = text[max(0, at - 32) : at]
    vendor = head[len(head.rstrip(_VENDOR_CHARS)) :]
    if _VENDOR.match(vendor) is None and not ends_escape(text, at):
        return False
    body = match.group()[1:].lstrip(_LETTERS)[1:]
    if _UUID.fullmatch(body) is not None:
        return False  # an id
    return any(map(_is_random, _PIECE.findall(body))) or _is_mixed(body.translate(None, b"_-"))


def _is_mixed(chars: bytes) -> bool:
    """Whether small letters, capitals and digits alternate more often than in any name."""
    kinds = chars.translate(_KINDS)
    turns = sum(kinds[at] != kinds[at - 1] for at in range(1, len(kinds)))
    return len(chars) >= RANDOM_CHARS_MIN and turns * TURN_CHARS >= len(chars)


def _is_random(piece: bytes) -> bool:
    digits = sum(48 <= c <= 57 for c in piece)
    if digits < 2 or len(piece) - digits < 4:
        return False
    counts = Counter(piece).values()
    bits = -sum(n / len(piece) * math.log2(n / len(piece)) for n in counts)
    return bits >= RANDOM_BITS_MIN
