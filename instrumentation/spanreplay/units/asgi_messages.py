"""ASGI messages and scopes as values that can be recorded, and back. Pure functions.

Header names stay next to their values, so that redaction can recognise credentials. A body is text if it is UTF-8. It
is kept whole: if it stayed split into its messages, a secret could pass redaction in two halves.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final

from spanreplay.model import config
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.wire.packing import PACKED, find_packing, pack, unpack

__all__ = ["Body", "Message", "Scope", "build_scope", "describe_headers", "describe_scope", "read_headers"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
_TEXTS: Final = ("type", "http_version", "method", "scheme", "path", "root_path")
_BYTES: Final = ("raw_path", "query_string")
_PLACES: Final = ("client", "server")
TEXT, BASE64, PARTS, BYTES, SHA256 = "text", "base64", "parts", "bytes", "sha256"


def describe_headers(headers: Iterable[Iterable[bytes]]) -> list[dict[str, str]]:
    """Return one mapping per header, in order, with lowercase names."""
    return [{bytes(name).decode("latin-1").lower(): bytes(value).decode("latin-1")} for name, value in headers]


def read_headers(headers: Iterable[Mapping[str, str]]) -> list[tuple[bytes, bytes]]:
    """Invert `describe_headers`."""
    return [(n.encode("latin-1"), v.encode("latin-1", "replace")) for each in headers for n, v in each.items()]


def describe_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a request's scope: the parts that depend on the client or the server's address."""
    found: dict[str, Any] = {name: str(scope[name]) for name in _TEXTS if scope.get(name) is not None}
    found |= {name: bytes(scope[name]).decode("latin-1") for name in _BYTES if scope.get(name) is not None}
    found |= {name: list(scope[name]) for name in _PLACES if scope.get(name)}
    found["headers"] = describe_headers(scope.get("headers") or ())
    found["asgi"] = {str(name): str(value) for name, value in (scope.get("asgi") or {}).items()}
    if scope.get("subprotocols") is not None:
        found["subprotocols"] = list(scope["subprotocols"])
    found["extensions"] = sorted(map(str, scope.get("extensions") or ()))
    return found


def build_scope(described: Mapping[str, Any], state: Mapping[str, Any] | None) -> Scope:
    """Build a scope as the server would; `state` is the state that the application's lifespan produced."""
    scope: dict[str, Any] = {name: described[name] for name in _TEXTS if name in described}
    scope |= {name: described[name].encode("latin-1") for name in _BYTES if name in described}
    scope |= {name: tuple(described[name]) if name in described else None for name in _PLACES}
    scope["headers"] = read_headers(described.get("headers", ()))
    scope["asgi"] = dict(described.get("asgi", {}))
    if "subprotocols" in described:
        scope["subprotocols"] = list(described["subprotocols"])
    extensions = described.get("extensions", ())
    if extensions:
        scope["extensions"] = {name: {} for name in extensions}
    if state is not None:
        scope["state"] = dict(state)
    return scope


class Body:
    """A body that arrives in parts. If it is too large, only its size and hash are kept."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._hash = hashlib.sha256()
        self.size = 0
        self.count = 0

    def add(self, part: bytes) -> None:
        """Add the next part."""
        self._hash.update(part)
        self.size += len(part)
        self.count += 1
        if self.is_kept:
            self._parts.append(part)
        else:
            self._parts.clear()

    @property
    def is_kept(self) -> bool:
        """Whether the content is kept: at most `BODY_BYTES_MAX` bytes."""
        return self.size <= config.BODY_BYTES_MAX

    @property
    def whole(self) -> bytes:
        """The whole content; empty if it is not kept."""
        return b"".join(self._parts)

    @property
    def lengths(self) -> list[int]:
        """The length of each part, in bytes."""
        return [len(part) for part in self._parts]

    def describe(self, encoding: str = "") -> dict[str, Any]:
        """Describe the content, or only its size and hash.

        `encoding`: the Content-Encoding of a body whose exact bytes a replay doesn't need. The body is decompressed,
        because redaction can't find secrets in compressed data; if that fails, only size and hash are kept.
        """
        whole = unpack(b"".join(self._parts), encoding) if self.is_kept else None
        return self._describe_size() if whole is None else _describe_content(whole)

    def describe_packed(self, encoding: str) -> dict[str, Any]:
        """Describe a body whose exact bytes a replay needs, including how to compress it again.

        If its encoding can't be decompressed here, only size and hash are kept.
        """
        content = b"".join(self._parts) if self.is_kept else None
        if content is None or not encoding:
            return self.describe()
        plain = unpack(content, encoding)
        if plain == content:
            return _describe_content(content)
        found = None if plain is None else find_packing(content, plain)
        if plain is not None and found is not None:
            return {**_describe_content(plain), PACKED: found}
        described = _describe_content(content)
        return described if TEXT in described else self._describe_size()

    def _describe_size(self) -> dict[str, Any]:
        return {BYTES: self.size, SHA256: self._hash.hexdigest()}


def _describe_content(content: bytes) -> dict[str, Any]:
    try:
        return {TEXT: content.decode("utf-8")}
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(content).decode("ascii")}


def cut_body(described: Mapping[str, Any]) -> list[bytes]:
    """Split a described body into the parts it arrived in.

    If hidden values can't be restored, the length of the last part differs.

    Raises: ReplayMiss if the description's compression, as `describe_packed` states it, can't be read.
    """
    text = described.get(TEXT)
    whole = text.encode("utf-8") if isinstance(text, str) else base64.b64decode(described.get(BASE64, ""))
    if PACKED in described:
        try:
            whole = pack(whole, described[PACKED])
        except (ValueError, TypeError, LookupError) as exc:
            raise ReplayMiss("the recorded body does not say how it was compressed: the recording is damaged") from exc
    lengths = described.get(PARTS, ())
    parts, at = [], 0
    for length in lengths[:-1]:
        parts.append(whole[at : at + length])
        at += length
    return [*parts, whole[at:]]
