"""Keys of function calls, which follow from their records and need not be computed while the agent waits.

A function call's request is `{"arguments": …}`, and its key depends only on its keyspec, its name and that request.
Only for ASCII requests: a key may refuse non-ASCII names, which must be known while the call can still be a hole.
"""

from __future__ import annotations

import json
from typing import Any, Final

from spanreplay.model.errors import SpanreplayError
from spanreplay.model.keys import Key, KeyMemo, compute_key

__all__ = ["LEAF_KEYSPECS", "DerivedKey", "derive_key", "derive_key_hex", "is_derivable", "leaf_key_fields"]

MCP_KEYSPEC: Final = "mcp/1"
LEAF_KEYSPECS: Final = frozenset({"tool/1", "retriever/1", "compute/1", "human/1", MCP_KEYSPEC})
_START: Final = '{"arguments":'


def is_derivable(keyspec: str, request: str) -> bool:
    """Whether the key follows from a record with this request."""
    return keyspec in LEAF_KEYSPECS and request.startswith(_START) and request.isascii()


def leaf_key_fields(keyspec: str, name: str, arguments: Any) -> dict[str, Any]:
    """The fields of a function call's key; `arguments` must be encoded and redacted."""
    if keyspec == MCP_KEYSPEC and type(arguments) is dict:
        return arguments
    return {"name": name, "arguments": arguments}


def derive_key(keyspec: str, name: str, request: str, memo: KeyMemo | None = None) -> Key:
    """Compute a function call's key from its request. Raises: Unserializable, ValueError if it has none."""
    return compute_key(keyspec, leaf_key_fields(keyspec, name, json.loads(request)["arguments"]), memo)


class DerivedKey(str):
    """A key computed from the request beside it, which needs no check."""

    __slots__ = ()


def derive_key_hex(keyspec: str, name: str, request: str) -> DerivedKey:
    """Like `derive_key`, as text; '' if the request implies no key."""
    try:
        return DerivedKey(derive_key(keyspec, name, request).hex)
    except (SpanreplayError, ValueError, LookupError, TypeError, RecursionError):
        return DerivedKey()
