"""The redaction rules, one row each.

A rule is tried at its anchors only. Anchors are found with `bytes.find`, so the cost of a rule on text
without its anchor is one memory scan; its pattern then runs at the anchor and nowhere else. For linear time,
every match that can still be rejected has a bounded width: a pattern with a check is bounded and leaves the rest
of a long secret to `tail`; one without a check may end with an unbounded repeat (a test checks each row).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spanreplay.redact import personal
from spanreplay.redact.decoding import ends_escape
from spanreplay.redact.formats import FORMATS, MARKED, Marked
from spanreplay.redact.key_words import KEY_WORDS, is_key_after_word
from spanreplay.redact.names import Strength, holds_secret, looks_like_credential, secret_name

__all__ = ["RULES", "Anchor", "Rule"]

Check = Callable[[bytes, int, "re.Match[bytes]"], bool]
"""(text, anchor position, match) → whether this really is a secret."""


class Anchor(Enum):
    """How a rule's anchors are compared with the text."""

    TOKEN = "token"  # noqa: S105 - a kind of anchor, not a password
    """Case-sensitive prefix of a key, inside an unbroken run of at least `TOKEN_RUN_MIN` token characters; no letter
    or digit may precede it."""
    TEXT = "text"
    """Anywhere, case-insensitive; the anchor is written in lower case."""
    SHAPE = "shape"
    """Compared with the text's digits written as 0 and capital letters as A: `000-00-0000`."""
    NAME = "name"
    """As TEXT, but only in texts in which some secret name precedes a separator."""
    HEX = "hex"
    """Compared with the text's hexadecimal digits written as 0; besides them only colons count: `0000::`."""


TOKEN_RUN_MIN: Final = 18
"""No fixed-format key is shorter."""


@dataclass(frozen=True)
class Rule:
    """One row: where to look, what must match there, and which part is the secret.

    pattern  ASCII expression matched at the anchor; the secret is the last group that matched, or the whole match.
             It must not match NUL, which separates texts that are scanned together.
    tail     expression for further characters of a secret, applied once it is accepted.
    strip    characters removed from the secret's end: the full stop after `Bearer abc.` is not part of it.
    before   characters that belong to the secret if they precede the anchor (at most 64).
    is_context  the value is known to be secret only by its context, so the run remembers it.
    is_whole  the whole match is the secret, regardless of groups.
    close    the marker that ends a secret whose body is too long to match: `(marker, bytes to look ahead)`.
    """

    name: str
    anchor: Anchor
    anchors: tuple[str, ...]
    pattern: str
    check: Check | None = None
    tail: str = ""
    strip: str = ""
    before: str = ""
    is_context: bool = False
    close: tuple[str, int] | None = None
    is_whole: bool = False


_OPENAI_PREFIXES: Final = frozenset(
    {"admin", "ant", "api", "dev", "dummy", "fake", "key", "live", "or", "prod", "proj", "svcacct", "test"}
)
_WORDY: Final = re.compile(rb"[a-z]+(?:[_-]+[a-z]+)+")
_PLACEHOLDER: Final = re.compile(
    rb"(?i)(?:null|none|nil|true|false|undefined|string|str|required|optional|redacted|changeme|example|hidden"
    rb"|\*+|x+|\.+|-+|\$\{?[a-z_]\w*\}?|\$\{.*|<[^>]*>?|\{\{.*|%\(.*|your[-_ ].*|.*[-_]here)"
)
_REFERENCE: Final = re.compile(
    rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[a-z]+(?:_[a-z]+)+|[a-z]+|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
)
_CODE_AFTER: Final = re.compile(rb"[ \t]*(?:[)=,|\]]|->)")
_TYPE: Final = re.compile(
    rb"_?(?:[A-Z][0-9](?:[A-Z]{2,5})?(?:[A-Z][a-z]+[0-9]{0,2})+|(?:[A-Z]{2,5})?(?:[A-Z][a-z]+[0-9]{0,2}){2,})"
)
_MODULE: Final = re.compile(rb"\.?[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)+")
_VARIABLE: Final = re.compile(rb"[a-z]+(?:_?[A-Z][a-z]+)+")
_MORE_OF_NAME: Final = re.compile(rb"[_A-Z][A-Za-z_]*")
_NO_VALUE: Final = re.compile(rb"\.[a-z_]+\(|@[a-z]+:?")
"""What follows a string that the quote closes (`"password: ".format(…)`), and tags of documentation."""
_PASSWORD_WORD: Final = re.compile(rb"(?i:(?:my|your|the)?[-_]?(?:pass(?:word|wd|phrase)?|pwd|pw|secret|token))")
_USER_WORD: Final = re.compile(rb"(?i:(?:my|your|the)?[-_]?(?:user(?:[-_]?name)?|login|name|foo|u)|)")
_TEMPLATE: Final = re.compile(rb"[\s,;)}:]|\{[{%]|%\}")
"""Characters with which no value begins: they follow a closing quote, or are a template's tag."""
_LISTED_NAME: Final = re.compile(
    rb"[_-]?(?:[A-Za-z]+[0-9]{0,2}|[A-Z0-9]{2,8})(?:[_-](?:[A-Za-z]+[0-9]{0,2}|[A-Z0-9]{2,8}))*|0x[0-9A-Fa-f]+"
)
_CONSTANT: Final = re.compile(rb"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|_?[a-z]+(?:_[a-z]+){2,}")
_SENTENCE: Final = re.compile(rb"[A-Z][a-z]*(?:,? [a-z]+){3,}[.!?]?")
_FILE: Final = re.compile(
    rb"[\w./~-]+\.(?:pem|key|crt|cer|der|json|p12|pfx|jks|ya?ml)(?::.*)?|(?:/[a-z_.-]{1,20}){2,8}", re.DOTALL
)
_IDENTIFIER: Final = re.compile(rb"[A-Za-z_]+(?:\.[A-Za-z_]+)+:[A-Za-z_]+|[a-z]+(?::[a-z-]+){3,}")
"""`package.module:function`, `urn:ietf:params:oauth`"""
_CHAIN: Final = re.compile(rb"[A-Za-z_$]\w{0,2}\.[A-Za-z_$][\w$]*=")
"""An assignment of minified code to several names: `a.key=b.Name=b.Other=…`"""
_PROSE_AFTER: Final = re.compile(rb" [a-z]+[ .,]")
_RESOURCE: Final = re.compile(rb"(?:arn|urn):[^\s\"']{0,100}\Z")
_WORDS: Final = re.compile(rb"[A-Za-z]+(?:[._][A-Za-z]+|\.\$[0-9])+|[^()<>{}|\[\]]*[()<>{}|\[\]].*", re.DOTALL)
"""Names, words and expressions of a program, as a weak name has for its value in source code."""


def looks_like_type(value: bytes) -> bool:
    """Whether the value is CamelCase of whole words, as in class names: `Http2Session`."""
    return _TYPE.fullmatch(value) is not None


_ALNUM: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_MARK_LOOK_BACK: Final = 64
_NAME_CHARS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-" + bytes(range(0x80, 0x100))


def _is_keylike(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether `sk-` begins a key, not a CSS class such as sk-toggleable__label-arrow."""
    body = match.group()[3:]
    if not _WORDY.fullmatch(body):
        return len(set(body)) > 2
    return re.split(rb"[_-]", body, maxsplit=1)[0].decode() in _OPENAI_PREFIXES


def _is_not_in_number(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether no letter or digit precedes the anchor."""
    return at == 0 or not text[at - 1 : at].isalnum() or ends_escape(text, at)


def _is_password(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether the value is not a word or a placeholder for a password: `user:password@`, `user:{password}@`."""
    value: bytes = match.group(1)
    user = match.group()[3 : match.start(1) - 1 - match.start()]
    return not (
        _PLACEHOLDER.fullmatch(value)
        or (_PASSWORD_WORD.fullmatch(value) and _USER_WORD.fullmatch(user))
        or value[:1] in (b"{", b"<", b"[", b"$", b"%")
        or value[-1:] in (b"]", b"}", b">")
    )


def _is_bearer(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    value = match.group(1)
    return len(value) >= 20 or any(48 <= c <= 57 for c in value)


def _is_basic(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether the value is base64 of `user:password`, as Basic credentials are."""
    value = match.group(1).rstrip(b"=")
    try:
        decoded = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
        decoded.decode("utf-8")
    except (binascii.Error, ValueError):
        return False
    return b":" in decoded and all(c >= 32 and c != 127 for c in decoded)


def _is_assignment(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether a separator and a literal value follow a secret name, not prose, a placeholder or a variable."""
    head = text[max(0, at - 48) : at]
    name_start = len(head.rstrip(_NAME_CHARS))
    if b"\x80" <= head[name_start : name_start + 1] < b"\xc0":
        name_start += 1  # the window begins inside a character
    if head[name_start - 1 : name_start] == b"\\" and head[name_start : name_start + 1] in (b"n", b"r", b"t"):
        name_start += 1  # the n of an escaped line break is not part of the name
    name = head[name_start:] + match.group("word")
    separator: bytes = match.group("sep").strip()
    quoted = match.group("quoted")
    if separator == b">" and name.endswith(b"-"):
        name, separator = name[:-1], b"->"
    if not separator:
        name = match.group("word")  # of an option: --api-key VALUE
    strength = secret_name(name.decode("utf-8", "ignore"))
    if strength is None:
        return False
    if separator == b">" and head[name_start - 1 : name_start] != b"<":
        return False
    value: bytes = match.group(match.lastindex or 0).rstrip(b".:!?|")
    if len(set(value)) < 3 or _PLACEHOLDER.fullmatch(value) or value.startswith(b"--"):
        return False
    if strength in (Strength.STRONG, Strength.WEAK) and (len(value) < 6 or len(set(value)) < 4):
        return False
    if strength is Strength.WEAK and _is_of_program(value):
        return False
    if _TEMPLATE.match(value) or _NO_VALUE.match(value) or (name.upper() == b"PWD" and value.startswith(b"/")):
        return False
    if _SENTENCE.fullmatch(value) or _RESOURCE.search(text, max(0, at - 100), at):
        return False
    if _FILE.fullmatch(value) or value == name:
        return False  # a file that holds the secret; privateKey=privateKey
    if _IDENTIFIER.fullmatch(value) or _CHAIN.match(value):
        return False
    if (value.startswith(b".") or separator == b",") and _MODULE.fullmatch(value):
        return False  # "V1Secret": ".models.v1_secret"
    if _CONSTANT.fullmatch(value) and secret_name(value.decode("ascii")) is not None:
        return False  # the name of a variable that holds the secret
    first, space, _ = value.partition(b" ")
    if space and secret_name(first.decode("utf-8", "ignore")) is not None:
        return False  # "Password used to generate the key"
    if separator.startswith(b"==") and value.isalpha() and (value.islower() or quoted is None):
        return False  # if update_password == "always", if aliceSecret === bobSecret
    text_value = value.decode("utf-8", "replace")
    if not holds_secret(strength, text_value, name.decode("utf-8", "ignore")):
        return False
    if separator == b"," and not (quoted and looks_like_credential(text_value) and not _is_of_program(value)):
        return False
    return quoted is not None or not _is_code_or_prose(text, match, name, value)


def _is_of_program(value: bytes) -> bool:
    """Whether the value is a name or an expression, as source code has after a weak name."""
    return bool(
        looks_like_type(value) or _WORDS.fullmatch(value) or _LISTED_NAME.fullmatch(value) or _is_mostly_signs(value)
    )


def _is_mostly_signs(value: bytes) -> bool:
    """Whether the value is mostly punctuation, as in minified code: `!1:te!==`."""
    return len(value.translate(None, _ALNUM)) * 3 > len(value)


def _is_code_or_prose(text: bytes, match: re.Match[bytes], name: bytes, value: bytes) -> bool:
    follower = text[match.end() : match.end() + 1]
    if follower in (b"(", b"["):
        return True  # a call or a subscript: password=get_password(), os.environ["X"]
    if (
        match.group("sep").strip() == b":"
        and value.translate(None, b"_").isalnum()
        and (_CODE_AFTER.match(text, match.end()) or looks_like_type(value))
    ):
        return True  # credentials: HTTPBasicCredentials, password: SecretStr = Field()
    if (
        match.group("sep").strip() == b":"
        and value.isalpha()
        and value.istitle()
        and _PROSE_AFTER.match(text, match.end())
    ):
        return True  # @param password: Password to associate with the user
    if value.startswith(name) and _MORE_OF_NAME.fullmatch(value[len(name) :]):
        return True  # privateKey=privateKeyOpenSSL
    if _VARIABLE.fullmatch(value) and (follower == b";" or name.startswith((b"self.", b"this."))):
        return True  # self._pwd = userDatabase
    if not _REFERENCE.fullmatch(value.rstrip(b"+")):
        return False
    if re.fullmatch(rb"[a-z]+", value):
        # `password: incorrect` is prose, `PASSWORD=correcthorse` is not
        separator = match.group("sep")
        return separator != b"=" or secret_name(value.decode()) is not None
    return True


_VALUE: Final = (
    r"(?:\\{0,3}[\"'](?:(?i:bearer|basic|token)\s{1,3})?(?P<quoted>[^\"'\\\x00\r\n]{3,512})"
    r"|(?:(?i:bearer|basic|token)\s{1,3})?(?P<bare>[^\s\x00\"'\\,;&(){}<>\[\]`]{3,512}))"
)
_ASSIGNMENT: Final = (
    r"(?P<word>[A-Za-z0-9_\x80-\xff-]{2,40})[\"'\\]{0,4}(?:\s{1,3}value(?==))?"
    r"(?P<sep>[ \t]{0,3}(?::{1,3}=|\?=|=>|->|={1,3}|:|\xef\xbc\x9a|>|,)[ \t]{0,3}(?:\r?\n[ \t]{0,8})?)"
) + _VALUE
_OPTION: Final = r"--(?P<word>[A-Za-z][A-Za-z0-9_-]{1,40})[\"']?(?P<sep>[ \t]{1,3})" + _VALUE
_ASSIGNMENT_TAIL: Final = r"[^\s\x00\"'\\,;&(){}<>\[\]`]*"

_CLASSES: Final = {
    "": "",
    "hex": "0123456789abcdef",
    "digit": "0123456789",
    "alnum": "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
}
_CLASSES_MORE: Final = {
    "alnum_": _CLASSES["alnum"] + "_",
    "alnum~_.": _CLASSES["alnum"] + "~_.",
    "alnum+/": _CLASSES["alnum"] + "+/",
}


def _marked_rule(row: Marked) -> Rule:
    """Make a rule for keys recognised by a mark: enough of the right characters precede it, and no others."""
    before = _CLASSES.get(row.before) or _CLASSES_MORE.get(row.before, "")
    members = before.encode("ascii")
    others = frozenset(_CLASSES["alnum"].encode("ascii")) - frozenset(members)

    def is_marked(text: bytes, at: int, match: re.Match[bytes]) -> bool:
        head = text[max(0, at - _MARK_LOOK_BACK) : at]
        length = len(head) - len(head.rstrip(members)) if members else 0
        if length < row.before_min:
            return False
        rest = head[: len(head) - length]
        return not rest or rest[-1] not in others or ends_escape(text, at - length)

    return Rule(row.name, Anchor.TEXT, row.marks, row.pattern, is_marked, before=before)


RULES: Final[tuple[Rule, ...]] = (
    # ── Keys and tokens with a fixed format ────────────────────────────────────────────────────────
    Rule(
        "private_key",
        Anchor.TEXT,
        ("-----begin ",),
        r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s\\]{0,4000}",
        close=("-----END", 20_000),
    ),
    Rule(
        "jwt",
        Anchor.TOKEN,
        ("eyJ",),
        r"eyJ[A-Za-z0-9_-]{8,4096}\.(?:eyJ[A-Za-z0-9_.-]{8,}|[A-Za-z0-9_-]{16,4096}\.[A-Za-z0-9_.-]{16,})",
        strip=".",
    ),
    Rule(
        "aws_access_key_id",
        Anchor.TOKEN,
        ("AKIA", "ASIA", "ABIA", "ACCA"),
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9_])",
    ),
    Rule("gcp_api_key", Anchor.TOKEN, ("AIza",), r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9])"),
    Rule("gcp_oauth_token", Anchor.TOKEN, ("ya29.",), r"ya29\.[A-Za-z0-9_-]{12,}"),
    Rule("anthropic_key", Anchor.TOKEN, ("sk-ant-",), r"sk-ant-[A-Za-z0-9_-]{16,}"),
    Rule(
        "openai_key",
        Anchor.TOKEN,
        ("sk-",),
        r"sk-(?!ant-)[A-Za-z0-9_-]{20,200}",
        check=_is_keylike,
        tail=r"[A-Za-z0-9_-]*",
    ),
    Rule("github_token", Anchor.TOKEN, ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{30,}"),
    Rule("github_pat", Anchor.TOKEN, ("github_pat_",), r"github_pat_[A-Za-z0-9_]{30,}"),
    Rule("gitlab_token", Anchor.TOKEN, ("glpat-",), r"glpat-[A-Za-z0-9_.-]{20,}", strip="."),
    Rule(
        "slack_token",
        Anchor.TOKEN,
        ("xoxa-", "xoxb-", "xoxc-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "xapp-"),
        r"(?:xox[abceoprs]|xapp)-[A-Za-z0-9-]{13,}",
    ),
    Rule(
        "slack_webhook",
        Anchor.TEXT,
        ("hooks.slack.com/",),
        r"(?i:hooks\.slack\.com)/((?:services|workflows|triggers)/[A-Za-z0-9+/_-]{20,})",
        is_context=True,
    ),
    Rule(
        "stripe_key",
        Anchor.TOKEN,
        ("sk_live_", "rk_live_", "pk_live_", "sk_test_", "rk_test_", "pk_test_"),
        r"[srp]k_(?:live|test)_[A-Za-z0-9]{10,}",
    ),
    Rule(
        "keyed_by_word",
        Anchor.TEXT,
        KEY_WORDS,
        r"_[A-Za-z]{2,11}[_-][A-Za-z0-9_-]{16,200}",
        check=is_key_after_word,
        tail=r"[A-Za-z0-9_-]*",
    ),
    Rule("stripe_webhook_secret", Anchor.TOKEN, ("whsec_",), r"whsec_[A-Za-z0-9+/=]{20,}"),
    Rule("huggingface_token", Anchor.TOKEN, ("hf_",), r"hf_[A-Za-z0-9]{30,}"),
    Rule("npm_token", Anchor.TOKEN, ("npm_",), r"npm_[A-Za-z0-9]{36,}"),
    Rule("pypi_token", Anchor.TOKEN, ("pypi-AgEI",), r"pypi-AgEI[A-Za-z0-9_-]{40,}"),
    Rule("sendgrid_key", Anchor.TOKEN, ("SG.",), r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,}"),
    # ── Secrets recognised by the text before them ─────────────────────────────────────────────────
    Rule(
        "url_password",
        Anchor.TEXT,
        ("://",),
        r"://[^\s\x00/:@\"'\\]{0,100}:([^\s\x00/@\"'\\]{1,200})@",
        check=_is_password,
        is_context=True,
    ),
    Rule(
        "bearer",
        Anchor.TEXT,
        ("bearer",),
        r"(?i:bearer)\s{1,3}([A-Za-z0-9._~+/=-]{8,64})",
        check=_is_bearer,
        tail=r"[A-Za-z0-9._~+/=-]*",
        strip=".",
        is_context=True,
    ),
    Rule(
        "basic",
        Anchor.TEXT,
        ("basic ",),
        r"(?i:basic)\s{1,3}([A-Za-z0-9+/=]{8,1024})",
        check=_is_basic,
        is_context=True,
    ),
    Rule(
        "secret_assignment",
        Anchor.TEXT,
        ("--",),
        _OPTION,
        check=_is_assignment,
        tail=_ASSIGNMENT_TAIL,
        strip=".:!?|",
        is_context=True,
    ),
    Rule(
        "secret_assignment",
        Anchor.NAME,
        (
            *("pass", "pwd", "pswd", "secret", "key", "token", "auth", "cookie", "cred", "otp", "pin", "jwt", "sess"),
            *("sid", "csrf", "xsrf", "mfa", "dsn", "conn", "sas", "sig", "nonce", "recovery", "backup", "seed"),
            *("mnemonic", "ssn", "social", "card", "pan", "cvv", "cvc", "iban", "account", "routing", "tax", "dob"),
            *("birth", "phone", "email", "address", "pat", "hash", "pw", "bearer", "database", "webhook", "kennwort"),
            *("contrase", "motdepasse", "senha", "wachtwoord", "\u043f\u0430\u0440\u043e\u043b\u044c", "\u5bc6\u7801"),
            *("\u5bc6\u78bc", "\u30d1\u30b9\u30ef\u30fc\u30c9", "\ube44\ubc00\ubc88\ud638"),
        ),
        _ASSIGNMENT,
        check=_is_assignment,
        tail=_ASSIGNMENT_TAIL,
        strip=".:!?|",
        is_context=True,
    ),
    # ── Personal data ──────────────────────────────────────────────────────────────────────────────
    Rule("email", Anchor.TEXT, ("@",), personal.EMAIL, personal.is_email, before=personal.LOCAL_PART),
    Rule("card", Anchor.SHAPE, personal.CARD_SHAPES, personal.CARD, personal.is_card, is_whole=True),
    Rule("iban", Anchor.SHAPE, ("AA00",), personal.IBAN, personal.is_iban),
    Rule("ssn", Anchor.SHAPE, ("000-00-0000",), personal.SSN, personal.is_ssn, is_whole=True),
    Rule("phone", Anchor.SHAPE, personal.PHONE_SHAPES, personal.PHONE, personal.is_phone, is_whole=True),
    Rule("ip_address", Anchor.SHAPE, ("0.0",), personal.IPV4, personal.is_ipv4, before="0123456789"),
    Rule(
        "ip_address",
        Anchor.HEX,
        ("0000:0000:", "0000:000:", "000:0000:", "0000::", ":000::", ":00::0"),
        personal.IPV6,
        personal.is_ipv6,
        before="0123456789abcdefABCDEF:",
    ),
    # ── Rows from other tables ─────────────────────────────────────────────────────────────────────
    *(Rule(row.name, Anchor.TOKEN, row.starts, row.pattern) for row in FORMATS),
    *(_marked_rule(row) for row in MARKED),
    Rule(
        "telegram_token",
        Anchor.SHAPE,
        ("00000:A",),
        r"[0-9]{5}:A[A-Za-z0-9_-]{33,34}(?![A-Za-z0-9])",
        before="0123456789",
    ),
    Rule(
        "facebook_token",
        Anchor.SHAPE,
        ("0" * 15,),
        r"[0-9]{15,16}\|[A-Za-z0-9_-]{27,40}(?![A-Za-z0-9])",
        _is_not_in_number,
    ),
)
