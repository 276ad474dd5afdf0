"""Seal values instead of replacing them, so that only the holder of the redaction key can read them."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from typing import Final

__all__ = ["seal", "unseal"]

_NONCE_BYTES: Final = 16
_TAG_BYTES: Final = 16
_BLOCK_BYTES: Final = 32
_entropy: Final = os.urandom


def _subkey(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"\0spanreplay seal " + purpose, "sha256")


def _mask(key: bytes, nonce: bytes, content: bytes) -> bytes:
    """HMAC-SHA-256 in counter mode: a pseudo-random function with a fresh nonce each time is a stream cipher."""
    stream = b"".join(
        hmac.digest(key, nonce + block.to_bytes(8, "big"), "sha256")
        for block in range((len(content) + _BLOCK_BYTES - 1) // _BLOCK_BYTES)
    )
    size = len(content)
    return (int.from_bytes(content, "big") ^ int.from_bytes(stream[:size], "big")).to_bytes(size, "big")


def seal(key: bytes, content: bytes) -> str:
    """Encrypt, then authenticate the content; return base64 text."""
    nonce = _entropy(_NONCE_BYTES)
    body = nonce + _mask(_subkey(key, b"mask"), nonce, content)
    tag = hmac.digest(_subkey(key, b"tag"), body, "sha256")[:_TAG_BYTES]
    return base64.b64encode(body + tag).decode("ascii")


def unseal(key: bytes, text: str) -> bytes | None:
    """The sealed content; None with another key, or if the text is damaged."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    body, tag = raw[:-_TAG_BYTES], raw[-_TAG_BYTES:]
    if len(body) < _NONCE_BYTES:
        return None
    if not hmac.compare_digest(tag, hmac.digest(_subkey(key, b"tag"), body, "sha256")[:_TAG_BYTES]):
        return None
    return _mask(_subkey(key, b"mask"), body[:_NONCE_BYTES], body[_NONCE_BYTES:])
