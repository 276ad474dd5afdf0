"""Messages of `application/vnd.amazon.eventstream`, as Bedrock streams them: bytes to JSON and back, byte for byte.

A message is binary framing around a JSON payload. Recorded as JSON, its text can be read, searched and redacted; the
framing is computed again. Format: https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

__all__ = [
    "AwsEvent",
    "from_stored",
    "is_event_stream",
    "join_event",
    "read_events",
    "rewrite",
    "split_events",
    "to_stored",
    "to_text",
]

MEDIA_TYPE: Final = "application/vnd.amazon.eventstream"
_PRELUDE: Final = struct.Struct(">III")
_CRC_BYTES: Final = 4
_STRING: Final = 7
"""The type of a header whose value is text: 2 bytes of length, then UTF-8. Bedrock sends no other."""


@dataclass(frozen=True)
class AwsEvent:
    """One message: its headers, in order, and its payload."""

    headers: dict[str, str]
    payload: str

    @property
    def name(self) -> str:
        """`contentBlockDelta`, `chunk`, …; for an exception, its name."""
        return self.headers.get(":event-type") or self.headers.get(":exception-type") or "event"


class _Malformed(ValueError):
    pass


def is_event_stream(headers: Iterable[tuple[str, str]]) -> bool:
    """Whether a response's headers announce an event stream."""
    return any(name.lower() == "content-type" and value.lower().startswith(MEDIA_TYPE) for name, value in headers)


def split_events(body: bytes) -> tuple[list[AwsEvent], bytes] | None:
    """The complete messages of a body and the unfinished bytes after them; None if the body can't be split exactly."""
    events: list[AwsEvent] = []
    position = 0
    try:
        while position + _PRELUDE.size <= len(body):
            total, _, _ = _PRELUDE.unpack_from(body, position)
            if total < _PRELUDE.size + _CRC_BYTES:
                return None
            if position + total > len(body):
                break
            event = _decode(body[position : position + total])
            if join_event(event) != body[position : position + total]:
                return None
            events.append(event)
            position += total
    except (_Malformed, UnicodeDecodeError, struct.error, IndexError):
        return None
    return events, body[position:]


def _decode(message: bytes) -> AwsEvent:
    _, headers_bytes, _ = _PRELUDE.unpack_from(message)
    position, end = _PRELUDE.size, _PRELUDE.size + headers_bytes
    headers: dict[str, str] = {}
    while position < end:
        size = message[position]
        name = message[position + 1 : position + 1 + size].decode("utf-8")
        position += 1 + size
        if message[position] != _STRING or name in headers:
            raise _Malformed(name)
        (length,) = struct.unpack_from(">H", message, position + 1)
        headers[name] = message[position + 3 : position + 3 + length].decode("utf-8")
        position += 3 + length
    return AwsEvent(headers, message[end:-_CRC_BYTES].decode("utf-8"))


def join_event(event: AwsEvent) -> bytes:
    """The message's bytes."""
    headers = bytearray()
    for name, value in event.headers.items():
        encoded_name, encoded = name.encode("utf-8"), value.encode("utf-8")
        headers += bytes([len(encoded_name)]) + encoded_name + struct.pack(">BH", _STRING, len(encoded)) + encoded
    payload = event.payload.encode("utf-8", "surrogatepass")
    prelude = struct.pack(">II", _PRELUDE.size + len(headers) + len(payload) + _CRC_BYTES, len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


class _Reading(NamedTuple):
    """A message as a server-sent event: `before`, its JSON `inner`, `after`."""

    before: str
    inner: str
    after: str
    wrapper: dict[str, Any] | None
    """The payload whose `bytes` member holds the inner JSON."""


def _read(event: AwsEvent) -> _Reading:
    if event.headers.get(":message-type") == "event" and event.name == "chunk":  # InvokeModelWithResponseStream
        wrapper = _parse_object(event.payload)
        inner = _unwrap(wrapper)
        if wrapper is not None and inner is not None:
            return _Reading("data: ", inner, "\n\n", wrapper)
    if event.headers.get(":message-type") == "exception":
        return _Reading(f'data: {{"type":{json.dumps(event.name)},"error":', event.payload, "}\n\n", None)
    return _Reading(f"data: {{{json.dumps(event.name)}:", event.payload or "{}", "}\n\n", None)


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unwrap(wrapper: dict[str, Any] | None) -> str | None:
    try:
        return None if wrapper is None else base64.b64decode(wrapper["bytes"], validate=True).decode("utf-8")
    except (KeyError, TypeError, binascii.Error, ValueError):
        return None


def to_text(event: AwsEvent) -> str:
    """The message's JSON as a server-sent event: the text that dialects read and that is redacted."""
    reading = _read(event)
    return f"{reading.before}{reading.inner}{reading.after}"


def read_events(body: bytes) -> list[str]:
    """The texts of a body's complete messages; none if it is not an event stream."""
    found = split_events(body)
    return [to_text(event) for event in found[0]] if found is not None else []


def rewrite(events: Sequence[AwsEvent], texts: Sequence[str]) -> list[AwsEvent]:
    """The messages with new texts, each in the form of its `to_text`."""
    made = []
    for event, text in zip(events, texts, strict=True):
        reading = _read(event)
        inner = text[len(reading.before) : len(text) - len(reading.after)]
        if inner == reading.inner:
            made.append(event)
        elif reading.wrapper is None:
            made.append(replace(event, payload=inner))
        else:
            made.append(replace(event, payload=_wrap(inner, reading.wrapper)))
    return made


def _wrap(inner: str, wrapper: dict[str, Any]) -> str:
    encoded = base64.b64encode(inner.encode("utf-8", "surrogatepass")).decode("ascii")
    return json.dumps({"bytes": encoded, **{k: v for k, v in wrapper.items() if k != "bytes"}}, separators=(",", ":"))


def to_stored(event: AwsEvent) -> list[Any]:
    """The message as JSON: [headers, payload], or [headers, JSON inside the payload, the rest of the payload]."""
    reading = _read(event)
    if reading.wrapper is not None and _wrap(reading.inner, reading.wrapper) == event.payload:
        return [event.headers, reading.inner, {k: v for k, v in reading.wrapper.items() if k != "bytes"}]
    return [event.headers, event.payload]


def from_stored(stored: Sequence[Any]) -> AwsEvent:
    """The message that `to_stored` encoded."""
    headers, payload, *wrapper = stored
    text = _wrap(str(payload), wrapper[0]) if wrapper else str(payload)
    return AwsEvent({str(k): str(v) for k, v in headers.items()}, text)
