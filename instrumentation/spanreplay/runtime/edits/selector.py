"""Selects the calls that a rule of a plan applies to: `KIND[:NAME][@LANE][[NUMBER]]`.

    llm                 every call of this kind          tool:get_*          by name
    tool:pay@main/*     those in these lanes             llm[3]              the third model call of the run
    llm[3..]            from the third on                tool:pay[-1]        the last one

`*` stands for any characters, `?` for exactly one. Numbers count the recorded calls that match the rest of the
selector, in the order in which they started, from 1; calls that are not in the recording get the numbers after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from spanreplay.model.errors import ConfigError

_NUMBER: Final = re.compile(r"\[([^\[\]]*)\]\Z")
_RANGE: Final = re.compile(r"(?:(?P<one>-?\d+)|(?P<first>\d*)\.\.(?P<last>\d*)|\*)\Z")
PATTERN_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True)
class Selector:
    """A parsed selector. `first` and `last` are inclusive, 0 if open; negative ones count from the end."""

    boundary: str
    lane: str = ""
    first: int = 0
    last: int = 0

    @property
    def is_numbered(self) -> bool:
        """Whether it names calls by their number."""
        return bool(self.first or self.last)

    @property
    def weight(self) -> tuple[bool, bool, int]:
        """Its specificity: a number outranks a lane, a lane any pattern, and a longer pattern a shorter one."""
        return self.is_numbered, bool(self.lane), len(self.boundary)

    def matches(self, boundary: str, lane: str) -> bool:
        """Whether a call's boundary and lane match, regardless of its number."""
        return _matcher(self.boundary)(boundary) and (not self.lane or _matcher(self.lane)(lane))

    def has(self, number: int, total: int) -> bool:
        """Whether call `number` of the `total` matching recorded ones is selected."""
        if not self.is_numbered:
            return True
        first = self.first if self.first >= 0 else total + 1 + self.first
        last = self.last if self.last >= 0 else total + 1 + self.last
        return (not self.first or number >= first) and (not self.last or number <= last)

    def __str__(self) -> str:
        lane = f"@{self.lane}" if self.lane else ""
        if not self.is_numbered:
            return f"{self.boundary}{lane}"
        if self.first == self.last:
            return f"{self.boundary}{lane}[{self.first}]"
        return f"{self.boundary}{lane}[{self.first or ''}..{self.last or ''}]"


def parse_selector(text: str) -> Selector:
    """Parse a selector. Raises: ConfigError that quotes the text."""
    written = text.strip()
    if not written:
        raise ConfigError("an empty pattern in the plan", hint="write kind:name, for example 'tool:*'")
    if len(written) > PATTERN_CHARACTERS_MAX:
        raise ConfigError(f"a pattern of the plan has more than {PATTERN_CHARACTERS_MAX} characters")
    first = last = 0
    number = _NUMBER.search(written)
    if number is not None:
        first, last = _parse_number(number[1], text)
        written = written[: number.start()]
    boundary, at, lane = written.partition("@")
    if not boundary or (at and not lane):
        raise ConfigError(f"{text!r} is not a selector", hint="write KIND:NAME@LANE[NUMBER], for example 'tool:pay[2]'")
    return Selector(boundary if ":" in boundary else f"{boundary}:*", lane, first, last)


def _parse_number(written: str, text: str) -> tuple[int, int]:
    found = _RANGE.match(written.strip())
    hint = "calls are counted from 1: llm[3], llm[3..], llm[..2], llm[-1], llm[*]"
    if found is None:
        raise ConfigError(f"[{written}] in {text!r} is not the number of a call", hint=hint)
    if found["one"] is not None:
        first = last = int(found["one"])
        if not first:
            raise ConfigError(f"there is no call 0 in {text!r}", hint=hint)
    else:
        first, last = int(found["first"] or 0), int(found["last"] or 0)
        if last and first > last:
            raise ConfigError(f"[{written}] in {text!r} does not name a call", hint=hint)
    return first, last


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Callable[[str], bool]:
    if pattern in ("*", "*:*"):
        return lambda text: True
    pieces = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    compiled = re.compile("".join(pieces), re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None
