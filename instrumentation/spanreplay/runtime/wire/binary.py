"""Secrets inside bytes that are not text: protobuf is rewritten, other formats are searched; fails closed.

In a binary format a string is preceded by its length, so a secret can't simply be replaced by its token.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any, Final

from spanreplay.redact import RunRedactor

__all__ = [
    "HoldsSecret",
    "clean_message",
    "clean_sent",
    "has_control_bytes",
    "is_framed",
    "refuse_secrets",
    "stored_bytes",
    "unstored_bytes",
]

DEPTH_MAX: Final = 32
_RUN: Final = re.compile(rb"[\t\n\r\x20-\x7e]{8,}")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PREFIX_BYTES_MAX: Final = 2
"""How many bytes in front of a string may look like text but belong to its length."""
_FRAMED_TYPES: Final = ("grpc", "protobuf")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class HoldsSecret(Exception):
    """Bytes contain a known secret, or something like one, where it can't be replaced."""


def is_framed(content_type: str) -> bool:
    """Whether a body of this type is protobuf."""
    return any(name in content_type for name in _FRAMED_TYPES)


def clean_message(message: bytes, redact: RunRedactor, counts: dict[str, int]) -> bytes:
    """A message without its secrets, still in its format. Raises: HoldsSecret if that is impossible."""
    if not message:
        return message
    rewritten = _rewrite(message, redact, counts, 0)
    if rewritten is not None:
        return rewritten
    text = _as_text(message)
    if text is not None:
        clean = redact.json_text(text, counts) if text[:1] in "{[" else redact.text(text, counts)
        return clean.encode("utf-8")
    refuse_secrets(message, redact)
    return message


def clean_sent(message: bytes, redact: RunRedactor, counts: dict[str, int]) -> bytes:
    """A body sent by the agent, without its secrets: it is compared and never parsed, so its format may break."""
    try:
        return clean_message(message, redact, counts)
    except HoldsSecret:
        return _RUN.sub(lambda found: _clean_run(found[0], redact, counts), message)


def refuse_secrets(body: bytes, redact: RunRedactor) -> None:
    """Search the runs of text in bytes of an unknown format. Raises: HoldsSecret."""
    for found in _RUN.finditer(body):
        if _clean_run(found[0], redact, {}) != found[0]:
            raise HoldsSecret


def has_control_bytes(chunks: Iterable[bytes]) -> bool:
    """Whether apparent text contains bytes that no text contains."""
    return any(map(_CONTROL.search, chunks))


def _clean_run(run: bytes, redact: RunRedactor, counts: dict[str, int]) -> bytes:
    for skipped in range(_PREFIX_BYTES_MAX + 1):
        text = run[skipped:].decode("ascii")
        clean = redact.text(text, counts)
        if clean != text:
            return run[:skipped] + clean.encode("utf-8")
    return run


def _as_text(message: bytes) -> str | None:
    if _CONTROL.search(message) is not None:
        return None
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        return None


# ── Protobuf, without its descriptors ───────────────────────────────────────────────────────────────
def _rewrite(message: bytes, redact: RunRedactor, counts: dict[str, int], depth: int) -> bytes | None:
    """The message with its strings redacted and their lengths corrected; None if it is not protobuf."""
    made: list[bytes] = []
    position = 0
    while position < len(message):
        start = position
        tag = _read_varint(message, position)
        if tag is None or tag[0] >> 3 == 0:
            return None
        number, position = tag
        size = _read_size(number & 7, message, position)
        if size is None:
            return None
        head, end = size
        if end > len(message):
            return None
        if number & 7 == _BYTES:
            payload = message[head:end]
            clean = _clean_field(payload, redact, counts, depth)
            length = message[position:head] if clean is payload else _write_varint(len(clean))
            made.append(message[start:position] + length + clean)
        else:
            made.append(message[start:end])
        position = end
    return b"".join(made)


def _clean_field(payload: bytes, redact: RunRedactor, counts: dict[str, int], depth: int) -> bytes:
    """A message, a text or bytes: the format does not say which. A nested message is tried first."""
    inner = _rewrite(payload, redact, counts, depth + 1) if payload and depth < DEPTH_MAX else None
    if inner is not None and inner != payload:
        return inner
    text = _as_text(payload)
    if text is None:
        if inner is None:
            refuse_secrets(payload, redact)
        return payload
    clean = redact.text(text, counts)
    return payload if clean == text else clean.encode("utf-8")


def _read_size(wire_type: int, message: bytes, position: int) -> tuple[int, int] | None:
    """Where the value of a field begins and ends."""
    if wire_type == _VARINT:
        value = _read_varint(message, position)
        return (position, value[1]) if value is not None else None
    if wire_type == _BYTES:
        length = _read_varint(message, position)
        return (length[1], length[1] + length[0]) if length is not None else None
    width = {_FIXED64: 8, _FIXED32: 4}.get(wire_type)
    return (position, position + width) if width is not None else None


def _read_varint(message: bytes, position: int) -> tuple[int, int] | None:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            return None
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    return None


def _write_varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


# ── As JSON ─────────────────────────────────────────────────────────────────────────────────────────
def stored_bytes(clean: bytes) -> dict[str, str]:
    """Bytes as JSON: as text if they are text, so that it can be read and searched, else as base64."""
    text = _as_text(clean)
    return {"utf8": text} if text is not None else {"b64": base64.b64encode(clean).decode("ascii")}


def unstored_bytes(stored: Any) -> bytes:
    """The bytes that `stored_bytes` encoded."""
    return stored["utf8"].encode("utf-8") if "utf8" in stored else base64.b64decode(stored["b64"])
