"""Find secrets in bytes, in linear time, using only `bytes.find` and bounded matches."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from spanreplay.redact.decoding import ends_escape
from spanreplay.redact.names import name_ends
from spanreplay.redact.rules import RULES, TOKEN_RUN_MIN, Anchor, Rule
from spanreplay.redact.tokens import TOKEN

__all__ = ["Edit", "Hit", "Scanner", "find_opaque", "resolve"]

Compile = Callable[[bytes], "re.Pattern[bytes]"]


class Hit(NamedTuple):
    """Bytes [start, end) that a rule found."""

    start: int
    end: int
    rule: Rule


class Edit(NamedTuple):
    """Bytes [start, end) that must be replaced, and the name of the rule that found them."""

    start: int
    end: int
    rule: str


def _class_table(members: bytes, inside: int, outside: int) -> bytes:
    return bytes(inside if byte in members else outside for byte in range(256))


_ALNUM: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_ALNUM_SET: Final = frozenset(_ALNUM)
_IN, _OUT = b"x", b" "
_RUN_TABLE: Final = _class_table(_ALNUM + b"_.-", _IN[0], _OUT[0])
_RUN: Final = _IN * TOKEN_RUN_MIN
_SHAPE_TABLE: Final = bytes(
    48 if 48 <= c <= 57 else 65 if 65 <= c <= 90 else c if c in b".-+( ):@/" else 1 for c in range(256)
)
_HEX_TABLE: Final = bytes(48 if c in b"0123456789abcdefABCDEF" else c if c == 58 else 1 for c in range(256))
_BEFORE_MAX: Final = 64
_ESCAPE_LEADS: Final = frozenset(b"%=\\[;:?")
_NAME: Final = re.compile(
    rb"(?:[a-z0-9]*|[A-Z0-9]*|[A-Za-z]?[a-z]*)(?:[_.-]+(?:[A-Z]?[a-z]+|[A-Z]+|[0-9]{1,4}))*[_.-]*"
)
_NAME_ENDS: Final = frozenset((*(name.lower().encode("utf-8")[-3:] for name in name_ends()), b"lue"))
"""The last three bytes of secret names, and of `value` as in `name="password" value="…"`."""
_GAP: Final = b" \t\"'\\"
"""What may stand between a name and its separator."""
_GAP_MAX: Final = 10
"""As many of these as a rule allows, and three bytes of the name."""
_NAME_REACH: Final = 55
"""The anchor of a name is at most so many bytes before its separator."""
UNSURE_MIN: Final = 5
"""Shorter key prefixes occur by chance in long base64url."""
BLOB_LOOK_BACK: Final = 40
SURE_BYTES_MIN: Final = 12
"""A known value of this many letters and digits never occurs inside a longer word by chance."""
BLOB_BYTES_MIN: Final = 512
"""Unbroken base64 of at least this length contains letters that look like a key by chance."""
_OTHER_THAN_BASE64: Final = re.compile(rb"[^A-Za-z0-9+/=\r\n]")
LEFTOVER_MIN: Final = 6
"""The rest of a hit beside a token is redacted too if it is at least this long."""


class _Compiled:
    """A rule whose pattern is compiled when a text first has one of its anchors, which few texts have."""

    __slots__ = ("_compile", "_match", "_tail", "close", "rule")

    def __init__(self, rule: Rule, compile_pattern: Compile) -> None:
        self.rule = rule
        self.close = rule.close[0].encode() if rule.close else b""
        self._compile = compile_pattern
        self._match: re.Pattern[bytes] | None = None
        self._tail: re.Pattern[bytes] | None = None

    def match(self, text: bytes, at: int) -> re.Match[bytes] | None:
        """Match the rule's pattern at a position."""
        pattern = self._match
        if pattern is None:
            pattern = self._match = self._compile(self.rule.pattern.encode("ascii"))
        return pattern.match(text, at)

    def find_end(self, text: bytes, end: int) -> int:
        """The end of a match that ends at `end`, with what the rule's tail adds to it."""
        if not self.rule.tail:
            return end
        tail = self._tail
        if tail is None:
            tail = self._tail = self._compile(self.rule.tail.encode("ascii"))
        more = tail.match(text, end)
        return end if more is None else more.end()


class _Anchors(NamedTuple):
    """Anchors that are searched for in one pass, filed under their stem: the shortest anchor they begin with."""

    stem: re.Pattern[bytes]
    by_stem: dict[bytes, tuple[tuple[bytes, tuple[_Compiled, ...]], ...]]


class _Plan(NamedTuple):
    """The rules, filed under their anchors."""

    order: dict[int, int]
    text: _Anchors | None
    shape: _Anchors | None
    hex: _Anchors | None
    names: _Anchors | None
    token_start: re.Pattern[bytes] | None
    token: dict[bytes, tuple[tuple[bytes, _Compiled], ...]]
    """Key prefixes by their first two bytes; the longest first: `sk-ant-` must win over `sk-`."""


class Scanner:
    """The rules, ready to run. Filed on first use, and each compiled when it is first tried; thread-safe."""

    def __init__(self, rules: Sequence[Rule] = RULES, compile_pattern: Compile = re.compile) -> None:
        self._rules = tuple(rules)
        self._compile = compile_pattern
        self._plan: _Plan | None = None

    def scan(self, text: bytes) -> list[Hit]:
        """Every hit, not sorted by position; hits may overlap."""
        plan = self._plan
        if plan is None:
            plan = self._plan = self._make_plan()
        hits: list[Hit] = []
        lowered = text.lower()
        if plan.text is not None:
            _scan_anchors(text, lowered, plan.text, hits)
        if plan.names is not None:
            taken: dict[int, int] = {}
            for start, end in _iter_assignments(lowered):
                _scan_anchors(text, lowered, plan.names, hits, start, end, taken)
        if plan.token_start is not None:
            for start, end in _iter_runs(text):
                _scan_run(text, start, end, plan, hits)
            if b"rdx-" in text:
                for token in TOKEN.finditer(text):
                    _match_start(text, token.end(), token.end(), plan, hits)
        if plan.shape is not None:
            _scan_anchors(text, text.translate(_SHAPE_TABLE), plan.shape, hits)
        if plan.hex is not None and b":" in text:
            hexed = text.translate(_HEX_TABLE)
            if b"::" in text or b"0000:0" in hexed:
                _scan_anchors(text, hexed, plan.hex, hits)
        if hits and len(text) >= BLOB_BYTES_MIN:
            hits = [hit for hit in hits if not _is_in_blob(text, hit)]
        if len(hits) > 1:
            hits.sort(key=lambda hit: plan.order[id(hit.rule)])  # if two rules find the same, the earlier row is named
        return hits

    def scan_binary(self, raw: bytes) -> list[Hit]:
        """Every key in binary data that has a prefix of its own; numbers and addresses occur there by chance."""
        plan = self._plan
        if plan is None:
            plan = self._plan = self._make_plan()
        hits: list[Hit] = []
        if plan.token_start is not None:
            for start, end in _iter_runs(raw):
                _scan_run(raw, start, end, plan, hits)
        if plan.text is not None and b"-----" in raw:
            blocks: list[Hit] = []
            _scan_anchors(raw, raw.lower(), plan.text, blocks)
            hits += (hit for hit in blocks if hit.rule.close is not None)
        return hits

    def _make_plan(self) -> _Plan:
        filed: dict[Anchor, dict[bytes, list[_Compiled]]] = {kind: {} for kind in Anchor}
        for rule in self._rules:
            compiled = _Compiled(rule, self._compile)
            for anchor in rule.anchors:
                filed[rule.anchor].setdefault(anchor.encode("utf-8"), []).append(compiled)
        starts: dict[bytes, list[tuple[bytes, _Compiled]]] = {}
        for literal, rules in sorted(filed[Anchor.TOKEN].items(), key=lambda item: (-len(item[0]), item[0])):
            starts.setdefault(literal[:2], []).extend((literal, rule) for rule in rules)
        return _Plan(
            order={id(rule): index for index, rule in enumerate(self._rules)},
            text=_make_anchors(filed[Anchor.TEXT]),
            shape=_make_anchors(filed[Anchor.SHAPE]),
            names=_make_anchors(filed[Anchor.NAME]),
            hex=_make_anchors(filed[Anchor.HEX]),
            token_start=_start_pattern(starts),
            token={pair: tuple(rules) for pair, rules in starts.items()},
        )


def _iter_runs(text: bytes) -> Iterator[tuple[int, int]]:
    """The unbroken runs of token characters that are long enough to hold a key."""
    classes = text.translate(_RUN_TABLE)
    start = classes.find(_RUN)
    while start >= 0:
        end = classes.find(_OUT, start + TOKEN_RUN_MIN)
        if end < 0:
            end = len(text)
        yield start, end
        start = classes.find(_RUN, end)


def _scan_run(text: bytes, start: int, end: int, plan: _Plan, hits: list[Hit]) -> None:
    assert plan.token_start is not None
    taken = start
    if start and text[start - 1] in _ESCAPE_LEADS:
        for at in range(start + 1, min(start + 8, end)):
            if ends_escape(text, at):
                taken = max(taken, _match_start(text, start, at, plan, hits))
    for found in plan.token_start.finditer(text, start, end):
        if found.start() >= taken:
            taken = max(taken, _match_start(text, start, found.start(), plan, hits))


def _match_start(text: bytes, start: int, at: int, plan: _Plan, hits: list[Hit]) -> int:
    """Add a hit for the key that begins at a position, and return its end; 0 if there is none."""
    for literal, compiled in plan.token.get(text[at : at + 2], ()):
        if not text.startswith(literal, at) or (len(literal) < UNSURE_MIN and _is_inside_blob(text, start, at)):
            continue
        hit = _match_at(text, at, compiled)
        if hit is not None:
            hits.append(hit)
            return hit.end
    return 0


def _start_pattern(pairs: Iterable[bytes]) -> re.Pattern[bytes] | None:
    """A pattern for the first two bytes of any key that no letter or digit precedes; None without keys."""
    by_first: dict[bytes, set[bytes]] = {}
    for pair in pairs:
        by_first.setdefault(pair[:1], set()).add(pair[1:])
    if not by_first:
        return None
    branches = (
        re.escape(first) + b"[" + b"".join(map(re.escape, sorted(seconds))) + b"]"
        for first, seconds in sorted(by_first.items())
    )
    return re.compile(rb"(?<![A-Za-z0-9])(?:" + b"|".join(branches) + b")")


def _is_inside_blob(text: bytes, start: int, at: int) -> bool:
    """Whether a short key prefix is in the middle of base64url: `…fX3_sk-…` is not a key, `my_key_sk-…` is."""
    head = text[max(start, at - BLOB_LOOK_BACK) : at]
    return len(head) > 12 and head[-1:] in b"_-" and not _NAME.fullmatch(head)


def _is_in_blob(text: bytes, hit: Hit) -> bool:
    """Whether a hit is part of long base64, where the letters of a key occur by chance.

    A character that base64 lacks (`-`, `_`, `.`) makes a hit a key. A path has one within 512 characters, and no `+`.
    """
    if _OTHER_THAN_BASE64.search(text, hit.start, hit.end) is not None:
        return False
    near = max(0, hit.start - BLOB_BYTES_MIN)
    head = text[near : hit.start]
    start = near + max((found.end() for found in _OTHER_THAN_BASE64.finditer(head)), default=0)
    other = _OTHER_THAN_BASE64.search(text, hit.end, hit.end + BLOB_BYTES_MIN)
    end = other.start() if other is not None else min(len(text), hit.end + BLOB_BYTES_MIN)
    return end - start >= BLOB_BYTES_MIN and text.find(b"+", start, end) >= 0


def _make_separator() -> re.Pattern[bytes]:
    """An expression for a separator that follows the end of a secret name, or a long gap, behind which may be one."""
    sign, gap = b"[=:>?,\xef-]", b"[" + re.escape(_GAP) + b"]"
    ends = [_one_pattern(end for end in _NAME_ENDS if len(end) == length) for length in (2, 3)]

    def after(*places: bytes) -> bytes:
        return b"|".join(b"(?<=" + place + sign + b")" for place in places)

    after_gap = after(*(end + gap * length for end in ends for length in (1, 2)), gap * 3)
    return re.compile(sign + b"(?:(?<=" + gap + sign + b")(?:" + after_gap + b")|" + after(*ends) + b")")


def _iter_assignments(lowered: bytes) -> Iterator[tuple[int, int]]:
    """Where the anchor of a secret name may be: before a separator that what ends like such a name precedes."""
    start = end = 0
    for found in _SEPARATOR.finditer(lowered):
        at = found.start()
        head = lowered[max(0, at - _GAP_MAX) : at].rstrip(_GAP)
        if head[-3:] in _NAME_ENDS or head[-2:] in _NAME_ENDS:
            if at - _NAME_REACH > end:
                if end:
                    yield start, end
                start = at - _NAME_REACH
            end = at
    if end:
        yield max(0, start), end


def _make_anchors(rules: dict[bytes, list[_Compiled]]) -> _Anchors | None:
    stems = [anchor for anchor in rules if not any(anchor != other and anchor.startswith(other) for other in rules)]
    if not stems:
        return None
    by_stem = {
        stem: tuple((anchor, tuple(found)) for anchor, found in rules.items() if anchor.startswith(stem))
        for stem in stems
    }
    return _Anchors(re.compile(_one_pattern(stems)), by_stem)


def _scan_anchors(
    text: bytes,
    searched: bytes,
    anchors: _Anchors,
    hits: list[Hit],
    start: int = 0,
    end: int = sys.maxsize,
    taken: dict[int, int] | None = None,
) -> None:
    """Search for all anchors within [start, end) in one pass; a rule is not tried again inside its own hit."""
    taken = {} if taken is None else taken
    search = anchors.stem.search
    found = search(searched, start, end)
    while found is not None:
        at = found.start()
        for anchor, rules in anchors.by_stem[found.group()]:
            if not searched.startswith(anchor, at):
                continue
            for compiled in rules:
                if taken and at < taken.get(id(compiled), 0):
                    continue
                match = compiled.match(text, at)
                if match is None:
                    continue
                hit = _accept(text, at, compiled, match)
                if hit is not None:
                    hits.append(hit)
                    taken[id(compiled)] = hit.end
        found = search(searched, at + 1, end)


def _one_pattern(words: Iterable[bytes]) -> bytes:
    """Build an expression for all words that tries each first letter once; no word may begin with another."""
    by_first: dict[bytes, list[bytes]] = {}
    for word in sorted(words):
        by_first.setdefault(word[:1], []).append(word[1:])
    branches = [
        re.escape(first) + (re.escape(rest[0]) if len(rest) == 1 else _one_pattern(rest))
        for first, rest in sorted(by_first.items())
    ]
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"


def _match_at(text: bytes, at: int, compiled: _Compiled) -> Hit | None:
    match = compiled.match(text, at)
    return None if match is None else _accept(text, at, compiled, match)


def _accept(text: bytes, at: int, compiled: _Compiled, match: re.Match[bytes]) -> Hit | None:
    """Turn a match into a hit; None if it fails the rule's check."""
    rule = compiled.rule
    if rule.check is not None and not rule.check(text, at, match):
        return None
    start, end = match.span(0 if rule.is_whole else match.lastindex or 0)
    end = compiled.find_end(text, end)
    if rule.strip:
        end = start + len(text[start:end].rstrip(rule.strip.encode("ascii")))
    if rule.before:
        head = text[max(0, start - _BEFORE_MAX) : start]
        start -= len(head) - len(head.rstrip(rule.before.encode("ascii")))
        if start and text[start - 1] == 0x5C and start < at:
            start += 1  # the n of an escaped line break
        while start < at and text[start] == 0x27:
            start += 1  # the quote before a text in Python or SQL
    if rule.close is not None:
        end = _find_close(text, start, end, compiled.close, rule.close[1])
    return Hit(start, end, rule) if start < end else None


def _find_close(text: bytes, start: int, end: int, marker: bytes, ahead: int) -> int:
    """The end of the line of dashes that closes the block; without one, the end of the match."""
    at = text.find(marker, start, start + ahead)
    if at < 0:
        return end
    dashes = text.find(b"-----", at + len(marker), at + len(marker) + 80)
    return dashes + 5 if dashes >= 0 else max(end, at + len(marker))


_SEPARATOR: Final = _make_separator()


def resolve(text: bytes, hits: list[Hit], known: Sequence[bytes]) -> list[Edit]:
    """Hits and known values as edits, sorted and disjoint.

    Tokens are opaque and known values stay whole: a hit is clipped to the bytes outside them, so that a
    text gives the same result before and after part of it was redacted.
    """
    opaque = find_opaque(text, known)
    if not hits and not opaque:
        return []
    found_by: dict[tuple[int, int], str] = {}
    for hit in hits:
        found_by.setdefault((hit.start, hit.end), hit.rule.name)
    edits = [
        Edit(start, end, found_by.get((start, end), "known_secret")) for start, end, is_token in opaque if not is_token
    ]
    first = 0
    covered = 0
    for start, end, rule in sorted(hits, key=lambda hit: (hit.start, -hit.end)):
        start, end = max(start, covered), _character_end(text, end)
        if start >= end:
            continue
        covered = end
        while first < len(opaque) and opaque[first][1] <= start:
            first += 1
        edits.extend(_clip(start, end, rule.name, opaque, first))
    edits.sort()
    return edits


def _clip(start: int, end: int, rule: str, opaque: list[tuple[int, int, bool]], first: int) -> Iterator[Edit]:
    least = 1
    for index in range(first, len(opaque)):
        opaque_start, opaque_end, _ = opaque[index]
        if opaque_start >= end:
            break
        least = LEFTOVER_MIN
        if opaque_start - start >= least:
            yield Edit(start, opaque_start, rule)
        start = opaque_end
    if end - start >= least:
        yield Edit(start, end, rule)


def find_opaque(text: bytes, known: Sequence[bytes]) -> list[tuple[int, int, bool]]:
    """Tokens (True) and known values (False), sorted and disjoint; if two overlap, the first stays."""
    found = [(m.start(), m.end(), True) for m in TOKEN.finditer(text)] if b"rdx-" in text else []
    for value in known:
        at = text.find(value)
        while at >= 0:
            end = at + len(value)
            if not _cuts_word(text, at, end):
                found.append((at, end, False))
            at = text.find(value, end)
    found.sort(key=lambda span: (span[0], -span[1]))
    disjoint: list[tuple[int, int, bool]] = []
    for span in found:
        if not disjoint or span[0] >= disjoint[-1][1]:
            disjoint.append(span)
    return disjoint


def _cuts_word(text: bytes, start: int, end: int) -> bool:
    """Whether a known value is part of a longer word or number; a value that no word contains counts anywhere."""
    value = text[start:end]
    if len(value) >= SURE_BYTES_MIN and not value.isdigit() and not value.isalpha():
        return False
    return _is_wordy(text[start - 1 : start], value[:1]) or _is_wordy(text[end : end + 1], value[-1:])


def _is_wordy(neighbour: bytes, edge: bytes) -> bool:
    return neighbour.isalnum() and edge.isalnum()


def _character_end(text: bytes, end: int) -> int:
    """Move `end` to the end of a character: a bounded repeat may stop inside a UTF-8 character."""
    while end < len(text) and text[end] & 0xC0 == 0x80:
        end += 1
    return end
