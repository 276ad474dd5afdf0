"""The redaction rules, one row each.

A rule is looked for at its anchors only. Anchors are found with `bytes.find`, so the cost of a rule on text
without its anchor is one memory scan; its pattern then runs at the anchor and nowhere else. For linear time
whatever can still be rejected has a bounded width: a pattern with a check is bounded and leaves the rest of a
long secret to `tail`; one without a check may end with an unbounded repeat (a test looks at each row).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spanreplay.redact.names import Strength, looks_like_credential, secret_name

__all__ = ["RULES", "Anchor", "Rule"]

Check = Callable[[bytes, int, "re.Match[bytes]"], bool]
"""(text, anchor position, match) → whether this really is a secret."""


class Anchor(Enum):
    """What a rule's anchors are compared with."""

    TOKEN = "token"  # noqa: S105 - a kind of anchor, no password
    """Case-sensitive start of a key, inside an unbroken run of `TOKEN_RUN_MIN` token characters; no letter or
    digit may stand before it."""
    TEXT = "text"
    """Anywhere, in any case; written in lower case here."""
    SHAPE = "shape"
    """Digits written as 0 and capital letters as A: `000-00-0000`."""


TOKEN_RUN_MIN: Final = 18
"""No fixed-format key is shorter."""


@dataclass(frozen=True)
class Rule:
    """One row: where to look, what must match there, and which part is the secret.

    pattern  ASCII expression matched at the anchor; the secret is the last group that matched, or all.
             It must not match NUL, which separates texts that are scanned together.
    tail     what more belongs to the secret once it is accepted.
    strip    characters taken off the secret's end: the full stop after `Bearer abc.` is no part of it.
    before   characters that belong to the secret when they stand before the anchor (at most 64).
    is_context  the value is known to be secret only by what stands around it: the run remembers it.
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


_OPENAI_PREFIXES: Final = frozenset(
    {"admin", "ant", "api", "dev", "dummy", "fake", "key", "live", "or", "prod", "proj", "svcacct", "test"}
)
_WORDY: Final = re.compile(rb"[a-z]+(?:[_-]+[a-z]+)+")
_PLACEHOLDER: Final = re.compile(
    rb"(?i)(?:null|none|nil|true|false|undefined|string|str|required|optional|redacted|changeme|example|hidden"
    rb"|\*+|x+|\.+|-+|\$\{?[a-z_]\w*\}?|<[^>]*>?|\{\{.*|%\(.*|your[-_ ].*|.*[-_]here)"
)
_REFERENCE: Final = re.compile(rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[a-z]+(?:_[a-z]+)+|[a-z]+")
_NAME_CHARS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"


def _is_keylike(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """`sk-` and then no CSS class such as sk-toggleable__label-arrow."""
    body = match.group()[3:]
    if not _WORDY.fullmatch(body):
        return len(set(body)) > 2
    return re.split(rb"[_-]", body, maxsplit=1)[0].decode() in _OPENAI_PREFIXES


def _is_bearer(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    value = match.group(1)
    return len(value) >= 20 or any(48 <= c <= 57 for c in value)


def _is_basic(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Basic credentials are base64 of `user:password`."""
    value = match.group(1).rstrip(b"=")
    try:
        decoded = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return b":" in decoded and all(c >= 32 and c != 127 for c in decoded)


def _is_assignment(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """A secret's name, a separator and a literal value: no prose, no placeholder, no variable."""
    head = text[max(0, at - 48) : at]
    name_start = len(head.rstrip(_NAME_CHARS))
    if head[name_start - 1 : name_start] == b"\\" and head[name_start : name_start + 1] in (b"n", b"r", b"t"):
        name_start += 1  # the n of an escaped line break is no part of the name
    name = head[name_start:] + match.group("word")
    strength = secret_name(name.decode("ascii"))
    if strength is None or (not match.group("sep").strip() and not name.startswith(b"--")):
        return False
    quoted = match.group("quoted")
    value: bytes = match.group(match.lastindex or 0).rstrip(b".:!?|")
    if len(value) < 6 or len(set(value)) < 4 or _PLACEHOLDER.fullmatch(value):
        return False
    if strength is Strength.WEAK and not looks_like_credential(value.decode("utf-8", "replace")):
        return False
    return quoted is not None or not _is_code_or_prose(text, match, value)


def _is_code_or_prose(text: bytes, match: re.Match[bytes], value: bytes) -> bool:
    follower = text[match.end() : match.end() + 1]
    if follower in (b"(", b"["):
        return True  # a call or a subscript: password=get_password(), os.environ["X"]
    if not _REFERENCE.fullmatch(value):
        return False
    if re.fullmatch(rb"[a-z]+", value):
        # `password: incorrect` is prose, `PASSWORD=correcthorse` is not
        separator = match.group("sep")
        return separator != b"=" or secret_name(value.decode()) is not None
    return True


_ASSIGNMENT: Final = (
    r"(?P<word>(?i:password|passwd|passphrase|pwd|confirmation|secrets?|key|token|authorization|cookie|credentials?))"
    r"(?:[\"'\\]{0,4}(?P<sep>\s{0,3}(?:=>|:=|[=:])\s{0,3}|\s{1,3}))"
    r"(?:\\{0,3}[\"'](?:(?i:bearer|basic|token)\s{1,3})?(?P<quoted>[^\"'\\\x00\r\n]{6,512})"
    r"|(?:(?i:bearer|basic|token)\s{1,3})?(?P<bare>[^\s\x00\"'\\,;&(){}<>\[\]]{6,512}))"
)
_ASSIGNMENT_TAIL: Final = r"[^\s\x00\"'\\,;&(){}<>\[\]]*"

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
        r"eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_.-]{8,}",
        strip=".",
    ),
    Rule(
        "aws_access_key_id",
        Anchor.TOKEN,
        ("AKIA", "ASIA", "ABIA", "ACCA"),
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9_])",
    ),
    Rule("gcp_api_key", Anchor.TOKEN, ("AIza",), r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9])"),
    Rule("gcp_oauth_token", Anchor.TOKEN, ("ya29.",), r"ya29\.[A-Za-z0-9_-]{20,}"),
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
        ("xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "xapp-"),
        r"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{13,}",
    ),
    Rule(
        "slack_webhook",
        Anchor.TEXT,
        ("hooks.slack.com/",),
        r"(?i:hooks\.slack\.com)/((?:services|workflows|triggers)/[A-Za-z0-9+/]{20,})",
        is_context=True,
    ),
    Rule(
        "stripe_key",
        Anchor.TOKEN,
        ("sk_live_", "rk_live_", "pk_live_", "sk_test_", "rk_test_", "pk_test_"),
        r"[srp]k_(?:live|test)_[A-Za-z0-9]{10,}",
    ),
    Rule("stripe_webhook_secret", Anchor.TOKEN, ("whsec_",), r"whsec_[A-Za-z0-9+/=]{20,}"),
    Rule("huggingface_token", Anchor.TOKEN, ("hf_",), r"hf_[A-Za-z0-9]{30,}"),
    Rule("npm_token", Anchor.TOKEN, ("npm_",), r"npm_[A-Za-z0-9]{36,}"),
    Rule("pypi_token", Anchor.TOKEN, ("pypi-AgEI",), r"pypi-AgEI[A-Za-z0-9_-]{40,}"),
    Rule("sendgrid_key", Anchor.TOKEN, ("SG.",), r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,}"),
    # ── Secrets known by what stands before them ───────────────────────────────────────────────────
    Rule(
        "url_password",
        Anchor.TEXT,
        ("://",),
        r"://[^\s\x00/:@\"'\\]{0,100}:([^\s\x00/@\"'\\]{1,200})@",
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
        (
            "password",
            "passwd",
            "passphrase",
            "pwd",
            "confirmation",
            "secret",
            "key",
            "token",
            "authorization",
            "cookie",
            "credential",
        ),
        _ASSIGNMENT,
        check=_is_assignment,
        tail=_ASSIGNMENT_TAIL,
        strip=".:!?|",
        is_context=True,
    ),
)
