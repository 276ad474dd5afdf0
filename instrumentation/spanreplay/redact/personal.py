"""Personal data with a recognisable structure: e-mail, card, IBAN, social security number, phone, IP address.

Each has a check that other kinds of numbers fail, so amounts, dates, versions and ids stay.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from spanreplay.redact.decoding import ends_escape

__all__ = [
    "CARD",
    "CARD_SHAPES",
    "EMAIL",
    "IBAN",
    "IPV4",
    "IPV6",
    "LOCAL_PART",
    "PHONE",
    "PHONE_SHAPES",
    "SSN",
    "is_card",
    "is_email",
    "is_iban",
    "is_ipv4",
    "is_ipv6",
    "is_phone",
    "is_ssn",
]

# A comma is never part of one: it separates columns
_NUMBER_BEFORE: Final = re.compile(rb"[A-Za-z0-9_]\Z|[0-9][.:/-]\Z|[.$]\Z|[0-9][ (]\Z")
_NUMBER_AFTER: Final = re.compile(rb"[A-Za-z0-9_]|[.:/-][0-9]")


def _stands_alone(text: bytes, start: int, end: int) -> bool:
    """Whether the match is not part of a longer number or word."""
    if _NUMBER_AFTER.match(text, end) is not None:
        return False
    return _NUMBER_BEFORE.search(text[max(0, start - 2) : start]) is None or ends_escape(text, start)


# ── E-mail: the part before the @; the domain says where, not who ───────────────────────────────────
LOCAL_PART: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._%+'-"
EMAIL: Final = r"()@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?\.){1,6}[A-Za-z]{2,24}(?![A-Za-z0-9_(=\[-])"
_NO_DOMAINS: Final = (
    b".png",
    b".jpg",
    b".jpeg",
    b".gif",
    b".svg",
    b".webp",
    b".ico",
    b".js",
    b".css",
    b".shape",
    b".py",
)
_NOBODY: Final = frozenset({b"git", b"hg", b"npm", b"anonymous"})


def is_email(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether a name precedes the @, not the user of a URL, and no file name follows (`icon@2x.png`)."""
    head = text[max(0, at - 66) : at]
    local = head[len(head.rstrip(LOCAL_PART.encode("ascii"))) :]
    before = head[: len(head) - len(local)]
    if not local or not local.strip(b"._%+'-") or local in _NOBODY or before.endswith(b"//"):
        return False
    return not match.group().lower().endswith(_NO_DOMAINS)


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────────
CARD_SHAPES: Final = ("0000 0000", "0000-0000", "0000 000000", "0000-000000", "0000000000000")
CARD: Final = r"[0-9]{4}(?:([ -]?)[0-9]{4}\1[0-9]{4}\1[0-9]{1,7}|([ -]?)[0-9]{6}\2[0-9]{4,5})(?![0-9])()"
_BRANDS: Final = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15})|(?:5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720)[0-9]+|3[47][0-9]{13}"
    r"|6(?:011|5[0-9]{2}|4[4-9][0-9])[0-9]{12}|35(?:2[89]|[3-8][0-9])[0-9]{12}|3(?:0[0-5]|[689][0-9])[0-9]{11,16}|220[0-4][0-9]{12,15}"
    r"|(?:50[0-9]|5[6-8]|6[37]|2131|1800)[0-9]{10,17}|62[0-9]{14,17}"
)


_DRAWING_BEFORE: Final = re.compile(rb"(?:\A|[\s\"'0-9])[MLHVCSQTAmlhvcsqta] ?\Z")
"""A single letter, as in the path of a vector graphic: the numbers after it are coordinates."""


def is_card(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether the digits have a card brand's length and prefix and a valid check digit, and stand alone."""
    digits = match.group().translate(None, b" -").decode("ascii")
    if _DRAWING_BEFORE.search(text[max(0, at - 3) : at]) is not None:
        return False
    if len(digits) > 16 and match.group().isdigit() and not digits.startswith("62"):
        return False  # nobody writes a card number this long without a break; ids of messages are as long
    if _BRANDS.fullmatch(digits) is None or not _stands_alone(text, at, match.end()) or len(set(digits)) < 2:
        return False
    if digits[0] in "52" and digits[1] in "123457" and len(digits) not in (15, 16) and digits[:2] != "57":
        return False
    doubled = (int(d) * 2 for d in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(n - 9 if n > 9 else n for n in doubled)) % 10 == 0


# ── IBAN ────────────────────────────────────────────────────────────────────────────────────────────
_IBAN_LENGTHS: Final = {
    15: "NO",
    16: "BE",
    18: "DK FI FK FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
"""Countries by the length of their IBANs, in characters."""
IBAN: Final = (
    "(?:"
    + "|".join(
        f"(?:{countries.replace(' ', '|')})[0-9]{{2}}(?: ?[A-Z0-9]){{{length - 4}}}"
        for length, countries in _IBAN_LENGTHS.items()
    )
    + ")(?![A-Za-z0-9])"
)


def is_iban(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether the number leaves a remainder of 1 modulo 97 and is not part of a longer word."""
    if at and text[at - 1 : at].isalnum() and not ends_escape(text, at):
        return False
    plain = match.group().replace(b" ", b"").decode("ascii")
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


# ── Social security number ──────────────────────────────────────────────────────────────────────────
SSN: Final = r"([0-9]{3})-([0-9]{2})-([0-9]{4})()"


def is_ssn(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether area, group and serial are ones that are issued, and the number stands alone."""
    area, group, serial = match[1], match[2], match[3]
    if area in (b"000", b"666") or area[:1] == b"9" or group == b"00" or serial == b"0000":
        return False
    return _stands_alone(text, at, match.end())


# ── Phone ───────────────────────────────────────────────────────────────────────────────────────────
PHONE_SHAPES: Final = ("+0", "+(0", "000-000-0000", "000.000.0000", "000 000 0000", "(000)", "00 00 00 00 00")
PHONE: Final = (
    r"(?:\+(?:\([1-9][0-9]{0,2}\)|[1-9][0-9]{0,2})(?:[ ./-]{0,2}(?:\([0-9]{1,5}\)|[0-9]{1,5})){1,7}"
    r"(?:[ ]?(?:x|ext\.? ?)[0-9]{1,6})?"
    r"|\([2-9][0-9]{2}\)[ -]?[2-9][0-9]{2}[ .-][0-9]{4}(?:[ ]?(?:x|ext\.? ?)[0-9]{1,6})?"
    r"|[2-9][0-9]{2}([.-])[2-9][0-9]{2}\1[0-9]{4}(?:[ ]?(?:x|ext\.? ?)[0-9]{1,6})?"
    r"|0[1-9](?: [0-9]{2}){4})(?![0-9#])"
)
_LONG_YEAR: Final = re.compile(rb"\+[0-9]{4,6}-[01][0-9]-[0-3][0-9](?![0-9])")
_BYTES_DUMP: Final = re.compile(rb"0[0-9](?: 0[0-9]){4}|[0-9]{2}(?: [0-9]{2}){5}")
"""Bytes or minutes of two digits each: no phone number has five groups that begin with 0, or six groups of two."""
_NATIONAL_CALL: Final = re.compile(rb"(?:00|1)[ .-]?\Z")


def is_phone(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether the match has 8 to 21 digits, extension included, and is not part of something else."""
    digits = sum(48 <= c <= 57 for c in match.group())
    if not 8 <= digits <= 21 or (match.group()[:1] == b"+" and digits < 8):
        return False
    before = text[max(0, at - 2) : at]
    if before[-1:] in (b"+", b")", b"]") or _BYTES_DUMP.match(text, at) or _LONG_YEAR.match(text, at):
        return False
    return _NATIONAL_CALL.search(before) is not None or _stands_alone(text, at, match.end())


# ── IP addresses: only public ones; those of a machine or an office identify nobody ─────────────────
IPV4: Final = r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?![0-9A-Za-z_]|\.[0-9]|-(?!(?:[0-9]{1,3}\.){3}[0-9])[.0-9])"
IPV6: Final = r"[0-9A-Fa-f:]{2,41}(?![0-9A-Za-z:])"
_PREFIX_AFTER: Final = re.compile(rb"/[0-9]{1,3}(?![0-9.])")
"""The prefix length of a network, which is nobody's address; even `/32` and `/128` belong to a rule or a route."""
_VERSION_BEFORE: Final = re.compile(
    rb"(?i:(?:version|ver|release|build|\bv)[\"'\s:=]{0,4}|[\w)][/@-]|(?:[=~<>!]=|\^|~)\s?|[<>]\s)\Z"
)


def is_ipv4(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether these are the four bytes of a public address, not a version."""
    start = at
    while start and at - start < 3 and 48 <= text[start - 1] <= 57:
        start -= 1
    before = text[max(0, start - 16) : start]
    if before[-1:].isalnum() and not ends_escape(text, start):
        return False
    if before[-1:] in (b".", b"_", b"-", b"#") or _VERSION_BEFORE.search(before) is not None:
        return False
    if _PREFIX_AFTER.match(text, match.end()) is not None:
        return False
    parts = text[start : match.end()].split(b".")
    if any(int(part) > 255 or (len(part) > 1 and part[:1] == b"0") for part in parts) or parts[1:3] == [b"0", b"0"]:
        return False
    return ipaddress.ip_address(".".join(part.decode("ascii") for part in parts)).is_global


def is_ipv6(text: bytes, at: int, match: re.Match[bytes]) -> bool:
    """Whether this is a public address; `std::cout` and times are not."""
    start = at
    while start and at - start < 40 and text[start - 1] in b"0123456789abcdefABCDEF:":
        start -= 1
    if start and (text[start - 1 : start].isalnum() or text[start - 1] == 0x5F) and not ends_escape(text, start):
        return False
    written = text[start : match.end()].decode("ascii")
    if _PREFIX_AFTER.match(text, match.end()) is not None:
        return False
    if written.count(":") < 2 or not any(c.isdigit() for c in written) or len(written) < 8:
        return False
    try:
        return ipaddress.ip_address(written).is_global
    except ValueError:
        return False
