"""Bodies of cassettes as bytes: text, bytes, base64, parsed JSON; and without `Content-Encoding`."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.config import BODY_BYTES_MAX

__all__ = ["BadBody", "decompress", "read_body"]

_TEXT, _BASE64, _PARSED = "string", "base64_string", "parsed_body"


class BadBody(ValueError):
    """A body that can't be read; the message says why."""


def read_body(owner: Mapping[str, Any], *names: str) -> bytes:
    """The body of a request or response, under the first of these names that it has. Raises: BadBody."""
    if _PARSED in owner and not any(owner.get(name) for name in names):
        return json.dumps(owner[_PARSED]).encode()
    value = next((owner[name] for name in names if owner.get(name) is not None), None)
    encoding = "utf-8"
    if isinstance(value, Mapping):
        encoding = str(value.get("encoding") or "utf-8")
        if isinstance(value.get(_BASE64), str):
            return _unbase64(value[_BASE64])
        value = value.get(_TEXT)
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _encode(value, encoding)
    if isinstance(value, (list, tuple)) and all(isinstance(each, (str, bytes)) for each in value):
        return b"".join(each if isinstance(each, bytes) else _encode(each, encoding) for each in value)
    if isinstance(value, (dict, list)):  # a hook of the cassette has parsed it
        return json.dumps(value).encode()
    raise BadBody(f"its body is {type(value).__name__}, not text")


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError) as exc:
        raise BadBody("its body is not base64") from exc


def _encode(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return text.encode("utf-8", "surrogatepass")


def decompress(body: bytes, encodings: str) -> bytes:
    """The body without its content encodings. Unchanged if it is not compressed: the tool has done it already.

    Raises: BadBody above BODY_BYTES_MAX, or if a decoder is not installed.
    """
    for encoding in reversed([each.strip().lower() for each in encodings.split(",") if each.strip()]):
        if not body or encoding == "identity":
            continue
        decoded = _decompress(body, encoding)
        if decoded is None:
            return body
        body = decoded
    return body


def _decompress(body: bytes, encoding: str) -> bytes | None:
    if encoding in ("gzip", "x-gzip"):
        return _inflate(body, zlib.MAX_WBITS | 16) if body[:2] == b"\x1f\x8b" else None
    if encoding == "deflate":
        return _inflate(body, zlib.MAX_WBITS) or _inflate(body, -zlib.MAX_WBITS)
    if _is_plain(body):
        return None
    if encoding == "br":
        return _with_library(body, ("brotli", "brotlicffi"), encoding)
    if encoding == "zstd":
        return _with_library(body, ("compression.zstd", "backports.zstd", "zstandard"), encoding)
    return None


def _is_plain(body: bytes) -> bool:
    """Whether a body that should be compressed is text: hooks of cassettes leave the header behind."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _inflate(body: bytes, bits: int) -> bytes | None:
    """The unpacked bytes of all members; None if it is not this format."""
    found = bytearray()
    while body:
        unpacker = zlib.decompressobj(bits)
        try:
            found += unpacker.decompress(body, BODY_BYTES_MAX - len(found) + 1)
        except zlib.error:
            return bytes(found) if found else None
        if len(found) > BODY_BYTES_MAX:
            raise BadBody(f"its unpacked body exceeds {BODY_BYTES_MAX} bytes")
        body = unpacker.unused_data if unpacker.eof else b""
    return bytes(found)


def _with_library(body: bytes, names: tuple[str, ...], encoding: str) -> bytes | None:
    from importlib import import_module

    for name in names:
        try:
            library = import_module(name)
        except ImportError:
            continue
        return _bounded(library, body)
    raise BadBody(f"its body is compressed with {encoding}; to read it: pip install {names[-1]}")


def _bounded(library: Any, body: bytes) -> bytes | None:
    try:
        if hasattr(library, "Decompressor"):  # brotli has no bound of its own for one step: feed it in pieces
            unpacker, found = library.Decompressor(), bytearray()
            for start in range(0, len(body), _PIECE_BYTES):
                found += unpacker.process(body[start : start + _PIECE_BYTES])
                if len(found) > BODY_BYTES_MAX:
                    raise BadBody(f"its unpacked body exceeds {BODY_BYTES_MAX} bytes")
            return bytes(found)
        unpacker = library.ZstdDecompressor()
        if hasattr(unpacker, "stream_reader"):
            found = bytearray(unpacker.stream_reader(body).read(BODY_BYTES_MAX + 1))
        else:
            found = bytearray(unpacker.decompress(body, BODY_BYTES_MAX + 1))
    except BadBody:
        raise
    except Exception:  # noqa: BLE001 -- the library's own errors: the body is not what the header says
        return None
    if len(found) > BODY_BYTES_MAX:
        raise BadBody(f"its unpacked body exceeds {BODY_BYTES_MAX} bytes")
    return bytes(found)


_PIECE_BYTES: Final = 256
"""Brotli unpacks to at most about 2^24 bytes per command: small pieces keep the excess small."""
