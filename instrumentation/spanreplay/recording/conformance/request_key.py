"""Keys of `request/1`, the keyspec for SDKs in other languages: the whole request decides, and no allow-list."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from spanreplay.model.canonical import canonicalize
from spanreplay.model.errors import SpanreplayError

__all__ = ["REQUEST_KEYSPEC", "canonical_request", "request_key"]

REQUEST_KEYSPEC: Final = "request/1"


def canonical_request(kind: str, name: str, request: str) -> bytes | None:
    """RFC 8785 JSON of `{"kind": …, "name": …, "request": …}`; None if the request is not JSON."""
    try:
        return canonicalize({"kind": kind, "name": name, "request": json.loads(request)})
    except (SpanreplayError, ValueError, RecursionError):
        return None


def request_key(canonical: bytes) -> str:
    """The key that `request/1` gives to a canonical request."""
    return hashlib.sha256(canonical).hexdigest()
