"""Bytes as text, for reads."""

from __future__ import annotations

import base64


def pack_bytes(value: bytes) -> str:
    """Base64."""
    return base64.b64encode(value).decode("ascii")


def unpack_bytes(written: str) -> bytes:
    """What `pack_bytes` took."""
    return base64.b64decode(written)
