"""Pairs expected calls with those that were made, and shows the pairs side by side; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spanreplay.model.escape import escape
from spanreplay.testing.made_calls import MadeCall
from spanreplay.testing.matching import DIFFERENCES_MAX, Matcher

__all__ = ["Pair", "align", "render_pairs"]

ROWS_MAX: Final = 60
"""Pairs that a failure message shows; those around the first difference."""
_ROWS_BEFORE: Final = 10
_CELLS_MAX: Final = 250_000
"""Above this size of the table, pairs of a name with other arguments are not looked for."""
_COLUMN_MAX: Final = 60
_MATCH, _LIKE, _GAP = 0, 3, 2
"""Costs: a call with other arguments is cheaper than one call too few and one too many."""


@dataclass(frozen=True)
class Pair:
    """An expected call and the one made in its place; None: there is none."""

    expected: Matcher | None
    made: MadeCall | None
    is_match: bool = False

    def describe(self) -> str:
        """The pair in words."""
        if self.made is None:
            return f"{_text(self.expected)} was not made"
        place = f"call {self.made.number}"
        if self.expected is None:
            return f"{place}, {escape(str(self.made))}, is not expected here"
        if self.is_match:
            return f"{place} is {_text(self.expected)}"
        return f"{place}, {self.made.name}: {escape('; '.join(self.expected.differences(self.made)[:DIFFERENCES_MAX]))}"


def align(matchers: Sequence[Matcher], made: Sequence[MadeCall], *, is_ordered: bool) -> list[Pair]:
    """Pair the calls so that as many as possible match; in order, or in any order."""
    return list(_align_in_order(matchers, made) if is_ordered else _align_in_any_order(matchers, made))


def _align_in_order(matchers: Sequence[Matcher], made: Sequence[MadeCall]) -> Iterator[Pair]:
    """The cheapest alignment; equal ends are taken off first, so that long runs stay fast.

    An expected call is matched as early as possible: leading pairs that match are never given up.
    """
    head = 0
    while head < min(len(matchers), len(made)) and matchers[head].matches(made[head]):
        yield Pair(matchers[head], made[head], is_match=True)
        head += 1
    yield from _align_rest(matchers[head:], made[head:])


def _align_rest(matchers: Sequence[Matcher], made: Sequence[MadeCall]) -> Iterator[Pair]:
    rows, columns = len(matchers), len(made)
    is_small = rows * columns <= _CELLS_MAX
    costs = [
        [_GAP * (rows - i + columns - j) if i == rows or j == columns else 0 for j in range(columns + 1)]
        for i in range(rows + 1)
    ]
    together: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            matcher, call = matchers[i], made[j]
            cost = _MATCH if matcher.matches(call) else _LIKE if is_small and matcher.has_name(call) else None
            together[i][j] = cost
            best = _GAP + min(costs[i + 1][j], costs[i][j + 1])
            costs[i][j] = best if cost is None else min(best, cost + costs[i + 1][j + 1])
    i = j = 0
    while i < rows or j < columns:
        cost = together[i][j] if i < rows and j < columns else None
        if cost is not None and costs[i][j] == cost + costs[i + 1][j + 1]:
            yield Pair(matchers[i], made[j], is_match=cost == _MATCH)
            i, j = i + 1, j + 1
        elif i < rows and costs[i][j] == _GAP + costs[i + 1][j]:
            yield Pair(matchers[i], None)
            i += 1
        else:
            yield Pair(None, made[j])
            j += 1


def _align_in_any_order(matchers: Sequence[Matcher], made: Sequence[MadeCall]) -> Iterator[Pair]:
    """As many matching pairs as possible, then pairs of one name, then the rest."""
    candidates = [[j for j, call in enumerate(made) if matcher.matches(call)] for matcher in matchers]
    owner = _match_most(candidates)
    partner = {i: j for j, i in owner.items()}
    left = [j for j in range(len(made)) if j not in owner]
    for i, matcher in enumerate(matchers):
        if i in partner:
            yield Pair(matcher, made[partner[i]], is_match=True)
            continue
        like = next((j for j in left if matcher.has_name(made[j])), None)
        if like is None:
            yield Pair(matcher, None)
        else:
            left.remove(like)
            yield Pair(matcher, made[like])
    yield from (Pair(None, made[j]) for j in left)


def _match_most(candidates: Sequence[Sequence[int]]) -> dict[int, int]:
    """Made call → expected call, for as many as possible: `get_*` leaves `get_order` to the one that needs it.

    Source: Kuhn's algorithm for bipartite matching, with breadth-first augmenting paths.
    """
    owner: dict[int, int] = {}
    for start in range(len(candidates)):
        came_from: dict[int, int] = {}  # made call → the expected call from which it was reached
        queue, end = [start], -1
        while queue and end < 0:
            i = queue.pop(0)
            for j in candidates[i]:
                if j in came_from:
                    continue
                came_from[j] = i
                if j not in owner:
                    end = j
                    break
                queue.append(owner[j])
        taken = {i: j for j, i in owner.items()}
        while end >= 0:
            i = came_from[end]
            owner[end] = i
            end = taken.get(i, -1) if i != start else -1
    return owner


def render_pairs(pairs: Sequence[Pair], is_wrong: Callable[[Pair], bool]) -> str:
    """The pairs in two columns, a `>` in front of those that are wrong."""
    first = next((n for n, pair in enumerate(pairs) if is_wrong(pair)), 0)
    start = max(0, first - _ROWS_BEFORE)
    shown = pairs[start : start + ROWS_MAX]
    left = [_cut(_text(pair.expected) if pair.expected is not None else "(not expected)") for pair in shown]
    right = [_cut(escape(str(pair.made))) if pair.made is not None else "(not made)" for pair in shown]
    width = max(map(len, ["expected", *left]))
    lines = [f"    {'expected'.ljust(width)}   made"]
    lines += [f"    … {start} calls before"] if start else []
    for pair, expected, made in zip(shown, left, right, strict=True):
        number = f"  [call {pair.made.number}]" if pair.made is not None else ""
        lines.append(f"  {'>' if is_wrong(pair) else ' '} {expected.ljust(width)}   {made}{number}")
    rest = len(pairs) - start - len(shown)
    lines += [f"    … {rest} more"] if rest else []
    return "\n".join(lines)


def _text(matcher: Matcher | None) -> str:
    return "" if matcher is None else escape(matcher.text)


def _cut(text: str) -> str:
    return text if len(text) <= _COLUMN_MAX else f"{text[: _COLUMN_MAX - 1]}…"
