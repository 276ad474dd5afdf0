"""Which key names mark their value as a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

__all__ = ["Strength", "is_json_schema", "looks_like_credential", "secret_name"]


class Strength(Enum):
    """How much a key name says about its value."""

    STRONG = "strong"
    """Whatever stands there is a secret."""
    WEAK = "weak"
    """A secret only if it also looks like a credential: `token` is what language models stream."""


SECRET_NAMES: Final[tuple[tuple[str, Strength], ...]] = (
    # The last words of a name; `api key` matches apiKey, OPENAI_API_KEY and x-api-key.
    ("password", Strength.STRONG),
    ("passwd", Strength.STRONG),
    ("passphrase", Strength.STRONG),
    ("pwd", Strength.STRONG),
    ("password confirmation", Strength.STRONG),
    ("secret", Strength.STRONG),
    ("secrets", Strength.STRONG),
    ("api key", Strength.STRONG),
    ("apikey", Strength.STRONG),
    ("access key", Strength.STRONG),
    ("accesskey", Strength.STRONG),
    ("secret key", Strength.STRONG),
    ("secretkey", Strength.STRONG),
    ("private key", Strength.STRONG),
    ("privatekey", Strength.STRONG),
    ("signing key", Strength.STRONG),
    ("encryption key", Strength.STRONG),
    ("account key", Strength.STRONG),
    ("access token", Strength.STRONG),
    ("accesstoken", Strength.STRONG),
    ("auth token", Strength.STRONG),
    ("authtoken", Strength.STRONG),
    ("refresh token", Strength.STRONG),
    ("refreshtoken", Strength.STRONG),
    ("id token", Strength.STRONG),
    ("session token", Strength.STRONG),
    ("security token", Strength.STRONG),
    ("bearer token", Strength.STRONG),
    ("api token", Strength.STRONG),
    ("authorization", Strength.STRONG),
    ("cookie", Strength.STRONG),
    ("credential", Strength.WEAK),
    ("credentials", Strength.WEAK),
    ("token", Strength.WEAK),
)
GLUED_NAMES: Final = ("password", "passwd", "passphrase", "apikey")
"""Words that count at the end of a longer one too: PGPASSWORD, mypassphrase."""
HARMLESS_BEFORE_TOKEN: Final = frozenset(
    {
        "max", "min", "next", "prev", "previous", "page", "pagination", "continuation", "cursor",
        "sync", "bos", "eos", "pad", "cls", "sep", "mask", "unk", "stop", "start", "end", "first",
        "last", "special", "image", "audio", "video", "text", "prompt", "completion", "input",
        "output", "cached", "reasoning", "total", "per", "num", "count", "new", "target", "draft",
    }
)  # fmt: skip
"""`<word> token` is then a counter, a page mark or a model's vocabulary."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_BY_WORDS: Final = {tuple(name.split()): strength for name, strength in SECRET_NAMES}
_WORDS_MAX: Final = max(len(words) for words in _BY_WORDS)
NAME_CHARS_MAX: Final = 128
"""Longer keys are text, not names."""
_CACHE_ITEMS_MAX: Final = 4096
_cache: dict[str, Strength | None] = {}


def secret_name(name: str) -> Strength | None:
    """What the key name says about its value; None: nothing.

    The name is split at `_`, `-`, `.` and capitals, and its last words are compared in full, so that
    `max_tokens`, `token_type` and `keyboard` are no secrets.
    """
    try:
        return _cache[name]
    except KeyError:
        is_name = len(name) <= NAME_CHARS_MAX and "=" not in name
        strength = _classify(name) if is_name else None
        if len(_cache) < _CACHE_ITEMS_MAX:
            _cache[name] = strength
        return strength


def _classify(name: str) -> Strength | None:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return None
    if words[-1] == "token" and len(words) > 1 and words[-2] in HARMLESS_BEFORE_TOKEN:
        return None
    for count in range(min(_WORDS_MAX, len(words)), 0, -1):
        strength = _BY_WORDS.get(tuple(words[-count:]))
        if strength is not None:
            return strength
    return Strength.STRONG if words[-1].endswith(GLUED_NAMES) else None


def looks_like_credential(value: str) -> bool:
    """Whether a value under a weak name is one: long, unbroken, letters and digits or very long."""
    if len(value) < 8 or any(c.isspace() for c in value):
        return False
    if len(value) >= 20:
        return True
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


_SCHEMA_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SCHEMA_WORDS: Final = frozenset(
    {
        "$ref", "$defs", "$id", "$schema", "$comment", "allof", "anyof", "oneof", "not", "if", "then", "else",
        "enum", "const", "type", "title", "description", "default", "example", "examples", "format", "nullable",
        "deprecated", "readonly", "writeonly", "minlength", "maxlength", "pattern", "minimum", "maximum",
        "exclusiveminimum", "exclusivemaximum", "multipleof", "items", "prefixitems", "minitems", "maxitems",
        "uniqueitems", "properties", "required", "additionalproperties", "patternproperties", "propertynames",
        "propertyordering", "contentencoding", "contentmediatype",
    }
)  # fmt: skip


def is_json_schema(members: Mapping[Any, object]) -> bool:
    """Whether the object under a secret key name describes a parameter instead of holding a value.

    The tool definitions in nearly every request contain `"password": {"type": "string", …}`. One member that is
    no word of JSON Schema makes it a value: `{"type": "string", "value": "hunter2"}`.
    """
    if not members or not all(
        isinstance(key, str) and key.lower().replace("_", "") in _SCHEMA_WORDS for key in members
    ):
        return False
    kinds = members.get("type", "string")
    if isinstance(kinds, str):
        kinds = [kinds]
    if not isinstance(kinds, (list, tuple)):
        return False
    return bool(kinds) and all(isinstance(kind, str) and kind.lower() in _SCHEMA_TYPES for kind in kinds)
