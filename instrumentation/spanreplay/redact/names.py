"""Key names that mark their value as a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

__all__ = ["Strength", "holds_secret", "is_json_schema", "looks_like_credential", "name_ends", "secret_name"]


class Strength(Enum):
    """How much a key name says about its value."""

    STRONG = "strong"
    """Any value is a secret."""
    WEAK = "weak"
    """A secret only if it also looks like a credential: `token` is what language models stream."""
    LIKELY = "likely"
    """A secret if it is one word that no language has: `pass` may also be a test's result."""
    CODE = "code"
    """A secret if it is a number of several digits, or looks like a credential: a PIN."""
    PERSONAL = "personal"
    """Personal if it has at least five digits or is a mixed code. E-mail addresses have their own rule."""


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
    ("passcode", Strength.STRONG),
    ("pswd", Strength.STRONG),
    ("passw", Strength.STRONG),
    ("recovery code", Strength.STRONG),
    ("recovery codes", Strength.STRONG),
    ("backup code", Strength.STRONG),
    ("backup codes", Strength.STRONG),
    ("seed phrase", Strength.STRONG),
    ("mnemonic", Strength.STRONG),
    ("password hash", Strength.STRONG),
    ("hashed password", Strength.STRONG),
    ("client secret", Strength.STRONG),
    ("ssh key", Strength.STRONG),
    ("master key", Strength.STRONG),
    ("key material", Strength.STRONG),
    ("aes key", Strength.STRONG),
    ("hmac key", Strength.STRONG),
    ("storage key", Strength.STRONG),
    ("license key", Strength.STRONG),
    ("connection string", Strength.STRONG),
    ("conn str", Strength.STRONG),
    ("sas token", Strength.STRONG),
    ("kennwort", Strength.STRONG),
    ("passwort", Strength.STRONG),
    ("contraseña", Strength.STRONG),
    ("motdepasse", Strength.STRONG),
    ("senha", Strength.STRONG),
    ("пароль", Strength.STRONG),
    ("密码", Strength.STRONG),
    ("密碼", Strength.STRONG),
    ("パスワード", Strength.STRONG),
    ("비밀번호", Strength.STRONG),
    ("wachtwoord", Strength.STRONG),
    ("hasło", Strength.STRONG),
    ("lösenord", Strength.STRONG),
    ("mot de passe", Strength.STRONG),
    ("palabra clave", Strength.STRONG),
    ("credential", Strength.WEAK),
    ("credentials", Strength.WEAK),
    ("creds", Strength.WEAK),
    ("cred", Strength.WEAK),
    ("token", Strength.WEAK),
    ("session", Strength.WEAK),
    ("session id", Strength.WEAK),
    ("sessionid", Strength.WEAK),
    ("sessid", Strength.WEAK),
    ("session key", Strength.WEAK),
    ("sid", Strength.WEAK),
    ("csrf", Strength.WEAK),
    ("xsrf", Strength.WEAK),
    ("jwt", Strength.WEAK),
    ("bearer", Strength.WEAK),
    ("auth", Strength.WEAK),
    ("auth key", Strength.WEAK),
    ("sas", Strength.WEAK),
    ("signature", Strength.WEAK),
    ("sig", Strength.WEAK),
    ("nonce", Strength.WEAK),
    ("dsn", Strength.WEAK),
    ("database url", Strength.WEAK),
    ("webhook url", Strength.WEAK),
    ("webhook secret", Strength.WEAK),
    ("pat", Strength.WEAK),
    ("npm auth", Strength.WEAK),
    ("mfa code", Strength.WEAK),
    ("pass", Strength.LIKELY),
    ("pw", Strength.LIKELY),
    ("pin", Strength.CODE),
    ("otp", Strength.CODE),
    ("totp", Strength.CODE),
    ("cvv", Strength.CODE),
    ("cvc", Strength.CODE),
    ("cvv2", Strength.CODE),
    ("security code", Strength.CODE),
    ("mfa", Strength.CODE),
    ("verification code", Strength.CODE),
    ("ssn", Strength.PERSONAL),
    ("social security number", Strength.PERSONAL),
    ("card number", Strength.PERSONAL),
    ("cardnumber", Strength.PERSONAL),
    ("credit card", Strength.PERSONAL),
    ("card", Strength.PERSONAL),
    ("pan", Strength.PERSONAL),
    ("iban", Strength.PERSONAL),
    ("account number", Strength.PERSONAL),
    ("routing number", Strength.PERSONAL),
    ("passport", Strength.PERSONAL),
    ("passport number", Strength.PERSONAL),
    ("tax id", Strength.PERSONAL),
    ("date of birth", Strength.PERSONAL),
    ("birth date", Strength.PERSONAL),
    ("dob", Strength.PERSONAL),
    ("phone", Strength.PERSONAL),
    ("phone number", Strength.PERSONAL),
    ("mobile", Strength.PERSONAL),
    ("telephone", Strength.PERSONAL),
    ("email", Strength.PERSONAL),
    ("address", Strength.PERSONAL),
)
GLUED_NAMES: Final = (
    *("password", "passwd", "passphrase", "apikey", "passw0rd", "passwort", "kennwort", "contraseña", "motdepasse"),
    *("пароль", "密码", "密碼", "パスワード", "비밀번호"),
)
"""Words that also count at the end of a longer word: PGPASSWORD, mypassphrase."""
GLUED_WEAK_NAMES: Final = ("sessid", "sessionid")
HARMLESS_BEFORE_TOKEN: Final = frozenset(
    {
        "max", "min", "next", "prev", "previous", "page", "pagination", "continuation", "cursor",
        "sync", "bos", "eos", "pad", "cls", "sep", "mask", "unk", "stop", "start", "end", "first",
        "last", "special", "image", "audio", "video", "text", "prompt", "completion", "input",
        "output", "cached", "reasoning", "total", "per", "num", "count", "new", "target", "draft",
    }
)  # fmt: skip
"""After one of these words, `token` is a counter, a page mark or an entry of a model's vocabulary."""

ATTRIBUTE_NAMES: Final = frozenset({"session.id", "server.address", "client.address", "network.peer.address"})
"""OpenTelemetry names that look like secret or personal ones, but hold no credential."""
VERBS: Final = frozenset(
    {
        "get", "list", "describe", "create", "generate", "update", "delete", "remove", "reset", "change", "validate",
        "verify", "check", "decode", "encode", "revoke", "rotate", "import", "export", "put", "assume", "with",
        "cancel", "restore", "stop", "start", "tag", "untag", "show", "find", "fetch", "load", "save", "read", "write",
        "replace",
    }
)  # fmt: skip
"""A name of several words that begins with one of these names an operation: `GetSessionToken`, `update_password`."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|[0-9]+")
_BY_WORDS: Final = {tuple(name.split()): strength for name, strength in SECRET_NAMES}
_WORDS_MAX: Final = max(len(words) for words in _BY_WORDS)
NAME_CHARS_MAX: Final = 128
"""Longer keys are text, not names."""
_CACHE_ITEMS_MAX: Final = 4096
_cache: dict[str, Strength | None] = {}


_SEPARATORS: Final = str.maketrans("", "", "-_. ")
_WORD_CHARS: Final = 5
"""Least average length of words; random letters switch between small and capital more often."""


def secret_name(name: str) -> Strength | None:
    """How much a key name says about its value; None if nothing.

    The name is split at `_`, `-`, `.` and capitals, and its last words are compared in full, so
    `max_tokens`, `token_type` and `keyboard` are not secret names.
    """
    try:
        return _cache[name]
    except KeyError:
        is_name = 1 < len(name) <= NAME_CHARS_MAX and "=" not in name
        strength = _classify(name) if is_name else None
        if len(_cache) < _CACHE_ITEMS_MAX:
            _cache[name] = strength
        return strength


def name_ends() -> set[str]:
    """The last words of all secret names."""
    words = {name.split()[-1] for name, _ in SECRET_NAMES}
    return words | {*GLUED_NAMES, *GLUED_WEAK_NAMES}


def _classify(name: str) -> Strength | None:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return None
    if len(words) > 1 and words[0] in VERBS:
        return Strength.WEAK if _name_strength(words, name) is not None else None
    return _name_strength(words, name)


def _name_strength(words: list[str], name: str) -> Strength | None:
    """Classify a name by its last words."""
    if name in ATTRIBUTE_NAMES:
        return None
    if words[-1] == "token" and len(words) > 1 and words[-2] in HARMLESS_BEFORE_TOKEN:
        return None
    for count in range(min(_WORDS_MAX, len(words)), 0, -1):
        strength = _BY_WORDS.get(tuple(words[-count:]))
        if strength is not None:
            return strength
    if name.lower().endswith(GLUED_NAMES):
        return Strength.STRONG
    return Strength.WEAK if words[-1].endswith(GLUED_WEAK_NAMES) else None


def _is_words(value: str) -> bool:
    """Whether the value is whole words, as in a name or a title: `Define-owner-access-rights`, `SharePolicyForAll`."""
    words = _WORD.findall(value)
    return len(words) > 1 and value.translate(_SEPARATORS).isalpha() and len(value) >= _WORD_CHARS * len(words)


def looks_like_credential(value: str) -> bool:
    """Whether a value under a weak name looks like a credential.

    It is long, unbroken and not an address; it mixes letters and digits, or is very long and not whole words.
    """
    if len(value) < 8 or any(c.isspace() for c in value) or "://" in value:
        return False
    if len(value) >= 20:
        return "@" not in value and not _is_words(value)
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


_CODE: Final = re.compile(r"[0-9][0-9 -]{1,9}[0-9]")
_MIXED_CODE: Final = re.compile(r"(?=[A-Za-z-]*[0-9])(?=[0-9-]*[A-Za-z])[A-Za-z0-9-]{8,40}")
_HOST_AND_PORT: Final = re.compile(
    r"[A-Za-z0-9_.-]*:[0-9]{1,5}|[0-9a-fA-F.:]+|0x[0-9a-fA-F]+|(?:[A-Za-z0-9_-]{1,63}\.){2,8}[A-Za-z]{2,24}"
)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
"""Under a weak name such as `session_id`, a UUID is an id, not a secret: frameworks assign it to conversations."""
REASONING_SIGNATURE_CHARS: Final = 100
"""A longer signature is one with which a model signs its reasoning; the provider expects it back unchanged."""


def holds_secret(strength: Strength, value: object, name: str = "") -> bool:
    """Whether a value under a name of this strength is a secret."""
    if strength is Strength.STRONG:
        return True
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return False
    if isinstance(value, int):
        return (strength is Strength.CODE and value >= 100) or (strength is Strength.PERSONAL and value >= 10_000)
    if strength is Strength.WEAK:
        is_long = len(value) > REASONING_SIGNATURE_CHARS and name.lower().endswith("signature")
        return looks_like_credential(value) and not is_long and _UUID.fullmatch(value) is None
    if strength is Strength.LIKELY:
        return len(value) >= 6 and not any(c.isspace() for c in value) and not value.isalpha() and not value.isdigit()
    if strength is Strength.CODE:
        return _CODE.fullmatch(value) is not None or looks_like_credential(value)
    if "@" in value or len(value) > 200 or _HOST_AND_PORT.fullmatch(value) is not None:
        return False
    return sum(c.isdigit() for c in value) >= 5 or _MIXED_CODE.fullmatch(value) is not None


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
    not a JSON Schema word makes it a value: `{"type": "string", "value": "hunter2"}`.
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
