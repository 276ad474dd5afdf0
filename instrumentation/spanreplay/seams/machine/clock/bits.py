"""Bytes as text, for recorded reads."""

from __future__ import annotations

import base64


def pack_bytes(value: bytes) -> str:
    """Encode as Base64."""
    return base64.b64encode(value).decode("ascii")


def unpack_bytes(written: str) -> bytes:
    """Decode what `pack_bytes` returned."""
    return base64.b64decode(written)
