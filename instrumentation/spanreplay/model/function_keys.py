"""The key of a leaf call, which its record implies: it need not be computed while the agent waits.

A leaf call's request is `{"arguments": …}`, and its key is made of nothing but its keyspec, its name and that request.
Only ASCII requests: a key may refuse names beyond it, which has to be known while the call can still be a hole.
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
    """Whether a record with this request implies its key."""
    return keyspec in LEAF_KEYSPECS and request.startswith(_START) and request.isascii()


def leaf_key_fields(keyspec: str, name: str, arguments: Any) -> dict[str, Any]:
    """What the key of a leaf call is made of; `arguments` encoded and redacted."""
    if keyspec == MCP_KEYSPEC and type(arguments) is dict:
        return arguments
    return {"name": name, "arguments": arguments}


def derive_key(keyspec: str, name: str, request: str, memo: KeyMemo | None = None) -> Key:
    """The key that a leaf call's request implies. Raises: Unserializable, ValueError if it has none."""
    return compute_key(keyspec, leaf_key_fields(keyspec, name, json.loads(request)["arguments"]), memo)


class DerivedKey(str):
    """A key that was made of the request beside it, so that nobody need check it."""

    __slots__ = ()


def derive_key_hex(keyspec: str, name: str, request: str) -> DerivedKey:
    """The same as text; '' where the request implies none."""
    try:
        return DerivedKey(derive_key(keyspec, name, request).hex)
    except (SpanreplayError, ValueError, LookupError, TypeError, RecursionError):
        return DerivedKey()
