"""Texts inside encodings: percent, JSON, HTML and quoted-printable escapes, terminal colours, base64 of text and bytes.

A secret after `%20`, or inside the base64 of a text, is as readable as any other. Escapes are removed in a view of
the text, and hits in the view are mapped back to the original. Base64 is decoded, redacted as a separate text and
encoded again, so that an agent that encodes the same text in a replay gets the same bytes. All of it is bounded.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

__all__ = [
    "BYTES_MAX",
    "DEPTH_MAX",
    "Binary",
    "Blob",
    "View",
    "ends_escape",
    "find_binary",
    "find_blobs",
    "has_binary",
    "has_blobs",
    "iter_views",
    "may_unescape",
]

DEPTH_MAX: Final = 3
"""Nested encodings that are decoded."""
BYTES_MAX: Final = 1_000_000
"""Leading part of a text that is decoded."""
BLOB_CHARS_MIN: Final = 40

# ── Escapes ─────────────────────────────────────────────────────────────────────────────────────────
_SIGNS: Final = (
    # (a literal that must occur, the pattern that is then searched for)
    (b"%", re.compile(rb"%[0-9A-Fa-f]{2}")),
    (b"\\", re.compile(rb"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{|033\[|e\[|[\"'/])")),
    (b"&", re.compile(rb"&(?:quot|apos|amp|lt|gt|nbsp|#[0-9]{2,5}|#[xX][0-9A-Fa-f]{2,5});")),
    (b"\x1b", re.compile(rb"\x1b[\[\]]")),
    (b"=3D", re.compile(rb"=3D")),
    (b"=\n", re.compile(rb"[^\s=]=\n")),
    (b"=\r\n", re.compile(rb"[^\s=]=\r\n")),
)
_COLOUR: Final = rb"(?:\x1b|\\x1[bB]|\\u001[bB]|\\033|\\e)\[[0-9;:?]{0,24}[A-Za-z]"
_PLAIN_UNITS: Final = (
    _COLOUR
    + rb"|%(?P<percent>[0-9A-Fa-f]{2})|\\x(?P<hex>[0-9A-Fa-f]{2})|\\u(?P<wide>[0-9A-Fa-f]{4})"
    + rb"|\\u\{(?P<braced>[0-9A-Fa-f]{1,6})\}|\\(?P<letter>[nrtbf\"'/\\])"
    + rb"|&(?P<name>quot|apos|amp|lt|gt|nbsp);|&#(?P<decimal>[0-9]{2,5});|&#[xX](?P<entity>[0-9A-Fa-f]{2,5});"
)
_UNITS: Final = re.compile(_PLAIN_UNITS)
_PRINTABLE_UNITS: Final = re.compile(_PLAIN_UNITS + rb"|=\r?\n|=(?P<printable>[0-9A-F]{2})")
_LETTERS: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
_NAMES: Final = {b"quot": b'"', b"apos": b"'", b"amp": b"&", b"lt": b"<", b"gt": b">", b"nbsp": b" "}
_ENDS: Final = re.compile(
    rb"(?:" + _COLOUR + rb"|[%=][0-9A-Fa-f]{2}|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[0-7]{3}|\\[nrtbfav0])\Z"
)
_ENDS_MAX: Final = 32


def ends_escape(text: bytes, at: int) -> bool:
    """Whether the letters before a position end an escape, not a word."""
    return _ENDS.search(text[max(0, at - _ENDS_MAX) : at]) is not None


def may_unescape(text: bytes) -> bool:
    """Whether the text holds an escape; cheap if it has none."""
    patterns = [pattern for sign, pattern in _SIGNS if sign in text]
    return bool(patterns) and any(pattern.search(text) is not None for pattern in patterns)


class View(NamedTuple):
    """A text without its escapes, and the escapes as (start here, end here, start in the original, end there)."""

    text: bytes
    units: list[tuple[int, int, int, int]]

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Map bytes [start, end) of the view to bytes of the original text."""
        return self._place(start)[0], self._place(end - 1)[1]

    def _place(self, position: int) -> tuple[int, int]:
        """The original bytes that the byte at a position comes from."""
        index = bisect.bisect_right(self.units, (position, len(self.text) + 1, 0, 0)) - 1
        if index < 0:
            return position, position + 1
        _, here_end, there_start, there_end = self.units[index]
        if position < here_end:
            return there_start, there_end
        moved = position - here_end + there_end
        return moved, moved + 1


def iter_views(text: bytes) -> Iterator[list[View]]:
    """Yield the text with one, two and three layers of escapes removed; each as the list of views that lead to it."""
    views: list[View] = []
    current = text[:BYTES_MAX]
    while len(views) < DEPTH_MAX and may_unescape(current):
        view = _unescape(current)
        views = [*views, view]
        yield views
        current = view.text


def _unescape(text: bytes) -> View:
    is_printable = any(pattern.search(text) is not None for _, pattern in _SIGNS[-3:])
    pieces: list[bytes] = []
    units: list[tuple[int, int, int, int]] = []
    here = there = 0
    for unit in (_PRINTABLE_UNITS if is_printable else _UNITS).finditer(text):
        decoded = _decode_unit(unit)
        if b"\x00" in decoded:
            continue  # NUL separates texts
        pieces += (text[there : unit.start()], decoded)
        here += unit.start() - there
        units.append((here, here + len(decoded), unit.start(), unit.end()))
        here += len(decoded)
        there = unit.end()
    pieces.append(text[there:])
    return View(b"".join(pieces), units)


def _decode_unit(unit: re.Match[bytes]) -> bytes:
    kind = unit.lastgroup
    if kind is None:
        return b""  # a colour, a soft line break
    value = unit[kind]
    if kind == "letter":
        return _LETTERS.get(value, value)
    if kind == "name":
        return _NAMES[value]
    if kind in ("percent", "hex", "printable"):
        return bytes((int(value, 16),))
    number = int(value, 10 if kind == "decimal" else 16)
    return chr(number).encode("utf-8", "surrogatepass") if number <= 0x10FFFF else unit[0]


# ── base64 ──────────────────────────────────────────────────────────────────────────────────────────
_BLOB_CHARS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_BLOB_TABLE: Final = bytes(120 if byte in _BLOB_CHARS else 32 for byte in range(256))
_BLOB_RUN: Final = b"x" * BLOB_CHARS_MIN
_BLOB: Final = re.compile(rb"[A-Za-z0-9+/_-]+(?:\r?\n[A-Za-z0-9+/_-]{2,})*={0,2}")
_BLOB_LINE: Final = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_PROBE_CHARS: Final = 40
_WORD_TABLE: Final = bytes(120 if byte in _BLOB_CHARS + b"." and byte not in b"+/" else 32 for byte in range(256))
_WORD_RUN: Final = b"x" * 18  # the shortest key
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_BACK: Final = bytes.maketrans(b"+/", b"-_")


class Blob(NamedTuple):
    """Bytes [start, end) of a text are the base64 of another text; `encode` makes the same kind of base64."""

    start: int
    end: int
    text: str
    encode: Callable[[str], bytes]


class Binary(NamedTuple):
    """Bytes [start, end) of a text are the base64 of bytes that are not text."""

    start: int
    end: int
    raw: bytes
    is_url_safe: bool

    def encode(self, clean: bytes) -> bytes:
        """Encode other bytes as the same kind of base64."""
        made = base64.b64encode(clean)
        return made.translate(_BACK) if self.is_url_safe else made


def has_binary(text: bytes) -> bool:
    """Whether the text holds base64 of binary data that may contain a key."""
    return next(find_binary(text), None) is not None


def find_binary(text: bytes) -> Iterator[Binary]:
    """The base64 in a text that decodes to binary data that may contain a key."""
    for start, end in _iter_long_runs(text):
        end += len(text[end : end + 2]) - len(text[end : end + 2].lstrip(b"="))
        chars = text[start:end]
        if len(chars) % 4:
            continue
        raw = binascii.a2b_base64(chars.translate(_URL_SAFE))
        if raw.translate(_WORD_TABLE).find(_WORD_RUN) >= 0 and not _is_whole_text(raw):
            yield Binary(start, end, raw, b"-" in chars or b"_" in chars)


def has_blobs(text: bytes) -> bool:
    """Whether the bytes hold base64 that may decode to text."""
    return next(_iter_starts(text), None) is not None


def find_blobs(text: bytes) -> Iterator[Blob]:
    """The base64 in a text that decodes to text, up to `BYTES_MAX` decoded characters."""
    left = BYTES_MAX
    end = 0
    for start in _iter_starts(text):
        if start < end:
            continue
        for pattern in (_BLOB, _BLOB_LINE):  # the next line may be ordinary words, not more base64
            found = pattern.match(text, start)
            if found is None or (found.end() - start) * 3 // 4 > left:
                continue
            blob = _read_blob(found[0], start)
            if blob is not None:
                left -= len(blob.text)
                end = blob.end
                yield blob
                break


def _iter_starts(text: bytes) -> Iterator[int]:
    """Positions where base64 of a text may begin: the first characters decode to printable ones."""
    for start, end in _iter_long_runs(text):
        at = start
        while 0 <= at <= end - BLOB_CHARS_MIN:
            if _is_text(text[at : at + _PROBE_CHARS]):
                yield at
                break
            at = text.find(b"/", at, end) + 1 or -1  # a path may precede it


def _iter_long_runs(text: bytes) -> Iterator[tuple[int, int]]:
    """The unbroken runs of base64 characters that are at least `BLOB_CHARS_MIN` long; padding is not included."""
    if len(text) < BLOB_CHARS_MIN:
        return
    classes = text.translate(_BLOB_TABLE)
    start = classes.find(_BLOB_RUN)
    while start >= 0:
        end = classes.find(b" ", start)
        end = len(text) if end < 0 else end
        yield start, end
        start = classes.find(_BLOB_RUN, end)


def _is_text(chars: bytes) -> bool:
    raw = binascii.a2b_base64(chars.translate(_URL_SAFE))
    if _CONTROL.search(raw) is not None:
        return False
    return raw.isascii() or _decode_cut(raw) is not None


def _is_whole_text(raw: bytes) -> bool:
    if _CONTROL.search(raw) is not None:
        return False
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _decode_cut(raw: bytes) -> str | None:
    """Decode bytes as UTF-8, ignoring a character that is cut off at the end; None if they are not text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        return (
            raw[: exc.start].decode("utf-8") if exc.start >= len(raw) - 3 and exc.reason[:10] == "unexpected" else None
        )


def _read_blob(chars: bytes, start: int) -> Blob | None:
    body = chars.replace(b"\r", b"").replace(b"\n", b"").rstrip(b"=")
    body = body[: len(body) - (len(body) % 4 == 1)]
    try:
        raw = binascii.a2b_base64(body.translate(_URL_SAFE) + b"=" * (-len(body) % 4))
        text = raw.decode("utf-8")
    except ValueError:
        return None
    if _CONTROL.search(raw) is not None:
        return None
    first, line_break, _ = chars.partition(b"\n")
    width = len(first.rstrip(b"\r")) if line_break else 0
    separator = b"\r\n" if first.endswith(b"\r") else b"\n"
    is_url_safe = b"-" in body or b"_" in body
    is_padded = chars.endswith(b"=") or not len(body) % 4

    def encode(clean: str) -> bytes:
        made = base64.b64encode(clean.encode("utf-8", "surrogatepass"))
        made = made.translate(_BACK) if is_url_safe else made
        made = made if is_padded else made.rstrip(b"=")
        return separator.join(made[i : i + width] for i in range(0, len(made), width)) if width else made

    return Blob(start, start + len(chars), text, encode)
