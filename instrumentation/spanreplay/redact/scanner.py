"""Find secrets in bytes, in linear time, with nothing but `bytes.find` and bounded matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from spanreplay.redact.rules import RULES, TOKEN_RUN_MIN, Anchor, Rule
from spanreplay.redact.tokens import TOKEN, TOKEN_CHARS

__all__ = ["Edit", "Hit", "Scanner", "resolve"]

Compile = Callable[[bytes], "re.Pattern[bytes]"]


class Hit(NamedTuple):
    """Bytes [start, end) that a rule found."""

    start: int
    end: int
    rule: Rule


class Edit(NamedTuple):
    """Bytes [start, end) that must go, and the name of the rule that says so."""

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
_BEFORE_MAX: Final = 64
LEFTOVER_MIN: Final = 6
"""What remains of a hit beside a token is taken too, if it is at least this long."""


class _Compiled(NamedTuple):
    rule: Rule
    match: re.Pattern[bytes]
    tail: re.Pattern[bytes] | None
    close: bytes


class _Plan(NamedTuple):
    """The rules, compiled and filed under their anchors."""

    text: tuple[tuple[bytes, tuple[_Compiled, ...]], ...]
    shape: tuple[tuple[bytes, tuple[_Compiled, ...]], ...]
    token_anchor: re.Pattern[bytes] | None
    token: dict[bytes, _Compiled]


class Scanner:
    """The rules, ready to run. Compiled on first use; thread-safe."""

    def __init__(self, rules: Sequence[Rule] = RULES, compile_pattern: Compile = re.compile) -> None:
        self._rules = tuple(rules)
        self._compile = compile_pattern
        self._plan: _Plan | None = None

    def scan(self, text: bytes) -> list[Hit]:
        """Every hit, unsorted; hits may overlap."""
        plan = self._plan
        if plan is None:
            plan = self._plan = self._make_plan()
        hits: list[Hit] = []
        lowered = text.lower()
        for anchor, rules in plan.text:
            if anchor in lowered:
                _scan_anchor(text, lowered, anchor, rules, hits)
        if plan.token_anchor is not None:
            for start, end in _iter_runs(text):
                _scan_run(text, start, end, plan, hits)
        if plan.shape:
            shaped = text.translate(_SHAPE_TABLE)
            for anchor, rules in plan.shape:
                if anchor in shaped:
                    _scan_anchor(text, shaped, anchor, rules, hits)
        return hits

    def _make_plan(self) -> _Plan:
        filed: dict[Anchor, dict[bytes, list[_Compiled]]] = {kind: {} for kind in Anchor}
        for rule in self._rules:
            close = rule.close[0].encode() if rule.close else b""
            tail = self._compile(rule.tail.encode("ascii")) if rule.tail else None
            compiled = _Compiled(rule, self._compile(rule.pattern.encode("ascii")), tail, close)
            for anchor in rule.anchors:
                filed[rule.anchor].setdefault(anchor.encode("ascii"), []).append(compiled)
        tokens = filed[Anchor.TOKEN]
        # Longest first: `sk-ant-` must win over `sk-`.
        literals = sorted(tokens, key=lambda literal: (-len(literal), literal))
        return _Plan(
            text=tuple((anchor, tuple(rules)) for anchor, rules in filed[Anchor.TEXT].items()),
            shape=tuple((anchor, tuple(rules)) for anchor, rules in filed[Anchor.SHAPE].items()),
            token_anchor=re.compile(b"|".join(map(re.escape, literals))) if literals else None,
            token={literal: rules[0] for literal, rules in tokens.items()},
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
    assert plan.token_anchor is not None
    search = plan.token_anchor.search
    found = search(text, start, end)
    while found is not None:
        at = found.start()
        next_at = at + 1
        if _starts_word(text, at):
            hit = _match_at(text, at, plan.token[found.group()])
            if hit is not None:
                hits.append(hit)
                next_at = hit.end
        found = search(text, next_at, end)


def _starts_word(text: bytes, at: int) -> bool:
    """No letter or digit stands before, except that of an escape (the `n` of a JSON newline) or of a token."""
    if at == 0 or text[at - 1] not in _ALNUM_SET:
        return True
    if at > 1 and text[at - 2] == 0x5C and text[at - 1] in b"nrtbf":
        return True
    return at >= TOKEN_CHARS and TOKEN.fullmatch(text, at - TOKEN_CHARS, at) is not None


def _scan_anchor(text: bytes, searched: bytes, anchor: bytes, rules: tuple[_Compiled, ...], hits: list[Hit]) -> None:
    at = searched.find(anchor)
    while at >= 0:
        next_at = at + 1
        for compiled in rules:
            hit = _match_at(text, at, compiled)
            if hit is not None:
                hits.append(hit)
                next_at = max(next_at, hit.end)
        at = searched.find(anchor, next_at)


def _match_at(text: bytes, at: int, compiled: _Compiled) -> Hit | None:
    match = compiled.match.match(text, at)
    if match is None:
        return None
    rule = compiled.rule
    if rule.check is not None and not rule.check(text, at, match):
        return None
    start, end = match.span(match.lastindex or 0)
    if compiled.tail is not None:
        more = compiled.tail.match(text, end)
        end = end if more is None else more.end()
    if rule.strip:
        end = start + len(text[start:end].rstrip(rule.strip.encode("ascii")))
    if rule.before:
        head = text[max(0, start - _BEFORE_MAX) : start]
        start -= len(head) - len(head.rstrip(rule.before.encode("ascii")))
    if rule.close is not None:
        end = _find_close(text, start, end, compiled.close, rule.close[1])
    return Hit(start, end, rule) if start < end else None


def _find_close(text: bytes, start: int, end: int, marker: bytes, ahead: int) -> int:
    """The end of the line of dashes that closes the block; without one, where the match ended."""
    at = text.find(marker, start, start + ahead)
    if at < 0:
        return end
    dashes = text.find(b"-----", at + len(marker), at + len(marker) + 80)
    return dashes + 5 if dashes >= 0 else max(end, at + len(marker))


def resolve(text: bytes, hits: list[Hit], known: Sequence[bytes]) -> list[Edit]:
    """Hits and known values as edits, sorted and disjoint.

    Tokens are opaque and known values stay whole: a hit is clipped to what lies outside of them, so that a
    text gives the same result before and after part of it was redacted.
    """
    opaque = _find_opaque(text, known)
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


def _find_opaque(text: bytes, known: Sequence[bytes]) -> list[tuple[int, int, bool]]:
    """Tokens (True) and known values (False), sorted and disjoint; the first of two that overlap stays."""
    found = [(m.start(), m.end(), True) for m in TOKEN.finditer(text)] if b"rdx-" in text else []
    for value in known:
        at = text.find(value)
        while at >= 0:
            end = at + len(value)
            if not _cuts_number(text, at, end):
                found.append((at, end, False))
            at = text.find(value, end)
    found.sort(key=lambda span: (span[0], -span[1]))
    disjoint: list[tuple[int, int, bool]] = []
    for span in found:
        if not disjoint or span[0] >= disjoint[-1][1]:
            disjoint.append(span)
    return disjoint


def _cuts_number(text: bytes, start: int, end: int) -> bool:
    """A known value of digits must not be cut out of a longer number."""
    if not text[start:end].isdigit():
        return False
    return text[start - 1 : start].isdigit() or text[end : end + 1].isdigit()


def _character_end(text: bytes, end: int) -> int:
    """A bounded repeat may stop inside a UTF-8 character."""
    while end < len(text) and text[end] & 0xC0 == 0x80:
        end += 1
    return end
