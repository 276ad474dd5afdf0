"""Pairs the calls of two runs; pure.

In each lane, the longest series of equal requests that both have in the same order is paired first; the calls left
between two of those pairs are paired by boundary; the calls still left are matched with those of other lanes. Every
step takes O(n log n).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from spanreplay.model.call import CallRecord

__all__ = ["Pair", "align"]

Token = Callable[[CallRecord], Hashable]


@dataclass(frozen=True)
class Pair:
    """A call of run A and the corresponding call of run B; None if a run has none."""

    a: CallRecord | None
    b: CallRecord | None
    is_moved: bool = False
    """Whether the same request was made in another lane, or in another order."""

    @property
    def either(self) -> CallRecord:
        """The call of B, or of A if B has none."""
        call = self.b or self.a
        assert call is not None
        return call


def align(a: Sequence[CallRecord], b: Sequence[CallRecord]) -> list[Pair]:
    """Pair all calls of both runs, in the order of A; a call that only B has comes after its predecessors in B."""
    lanes_a, lanes_b = _by_lane(a), _by_lane(b)
    found: list[Pair] = []
    left_a: list[CallRecord] = []
    left_b: list[CallRecord] = []
    for lane in lanes_a.keys() | lanes_b.keys():
        pairs, only_a, only_b = _align_lane(lanes_a.get(lane, []), lanes_b.get(lane, []))
        found += pairs
        left_a += only_a
        left_b += only_b
    left_a.sort(key=lambda call: call.number)
    left_b.sort(key=lambda call: call.number)
    moved, left_a, left_b = _match(left_a, left_b, _request_of)
    # Lanes that only one run has: a task with another name that does the same work with different input
    apart_a = [call for call in left_a if call.lane not in lanes_b]
    apart_b = [call for call in left_b if call.lane not in lanes_a]
    renamed, _, _ = _match(apart_a, apart_b, _boundary_of)
    paired = {id(call) for pair in renamed for call in (pair.a, pair.b)}
    found += [Pair(pair.a, pair.b, is_moved=True) for pair in moved]
    found += renamed
    found += [Pair(call, None) for call in left_a if id(call) not in paired]
    found += [Pair(None, call) for call in left_b if id(call) not in paired]
    return _sort(found)


def _by_lane(calls: Iterable[CallRecord]) -> dict[str, list[CallRecord]]:
    found: dict[str, list[CallRecord]] = defaultdict(list)
    for call in calls:
        found[call.lane].append(call)
    return dict(found)


def _request_of(call: CallRecord) -> Hashable:
    return call.boundary, call.key


def _boundary_of(call: CallRecord) -> Hashable:
    return call.boundary


def _align_lane(
    a: Sequence[CallRecord], b: Sequence[CallRecord]
) -> tuple[list[Pair], list[CallRecord], list[CallRecord]]:
    """Return (pairs, calls that only A has, calls that only B has) for one lane."""
    pairs: list[Pair] = []
    only_a: list[CallRecord] = []
    only_b: list[CallRecord] = []
    at_a = at_b = 0
    for i, j in [*_common(a, b, _request_of), (len(a), len(b))]:
        gap_a, gap_b = a[at_a:i], b[at_b:j]
        taken = _common(gap_a, gap_b, _boundary_of)
        pairs += [Pair(gap_a[x], gap_b[y]) for x, y in taken]
        xs, ys = {x for x, _ in taken}, {y for _, y in taken}
        only_a += [call for x, call in enumerate(gap_a) if x not in xs]
        only_b += [call for y, call in enumerate(gap_b) if y not in ys]
        if i < len(a):
            pairs.append(Pair(a[i], b[j]))
        at_a, at_b = i + 1, j + 1
    return pairs, only_a, only_b


def _match(
    a: Sequence[CallRecord], b: Sequence[CallRecord], token: Token
) -> tuple[list[Pair], list[CallRecord], list[CallRecord]]:
    """Pair equal tokens in any order; return the pairs and the calls left of both."""
    waiting: dict[Hashable, list[CallRecord]] = defaultdict(list)
    for call in reversed(b):
        waiting[token(call)].append(call)
    pairs: list[Pair] = []
    left_a: list[CallRecord] = []
    for call in a:
        found = waiting[token(call)]
        if found:
            pairs.append(Pair(call, found.pop()))
        else:
            left_a.append(call)
    taken = {id(pair.b) for pair in pairs}
    return pairs, left_a, [call for call in b if id(call) not in taken]


def _common(a: Sequence[CallRecord], b: Sequence[CallRecord], token: Token) -> list[tuple[int, int]]:
    """Return a long series of positions (i, j) with equal tokens that increase in both.

    Equal tokens are distinguished by their number, counted from the beginning or from the end: whichever gives the
    longer series.
    """
    forward = _longest(a, b, token)
    if len(forward) == min(len(a), len(b)):
        return forward
    turned = _longest(a[::-1], b[::-1], token)
    backward = [(len(a) - 1 - i, len(b) - 1 - j) for i, j in reversed(turned)]
    return backward if len(backward) > len(forward) else forward


def _longest(a: Sequence[CallRecord], b: Sequence[CallRecord], token: Token) -> list[tuple[int, int]]:
    """Return the longest such series in which the n-th of equal tokens is the n-th of the other side."""
    places = {each: j for j, each in enumerate(_numbered(b, token))}
    chosen = [(i, places[each]) for i, each in enumerate(_numbered(a, token)) if each in places]
    tails: list[int] = []  # the smallest j at which a series of this length ends
    ends: list[int] = []  # its place in `chosen`
    before: list[int] = []
    for at, (_, j) in enumerate(chosen):
        length = bisect_left(tails, j)
        before.append(ends[length - 1] if length else -1)
        if length == len(tails):
            tails.append(j)
            ends.append(at)
        else:
            tails[length], ends[length] = j, at
    found: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        found.append(chosen[at])
        at = before[at]
    return found[::-1]


def _numbered(calls: Sequence[CallRecord], token: Token) -> list[tuple[Hashable, int]]:
    counts: Counter[Hashable] = Counter()
    found = []
    for call in calls:
        each = token(call)
        counts[each] += 1
        found.append((each, counts[each]))
    return found


def _sort(pairs: list[Pair]) -> list[Pair]:
    """Sort by the position in A; a call that only B has comes after all its predecessors in B."""
    last = 0
    places: dict[int, int] = {}
    for pair in sorted((pair for pair in pairs if pair.b is not None), key=lambda pair: pair.either.number):
        if pair.a is not None:
            last = max(last, pair.a.number)
        places[pair.either.number] = last

    def place(pair: Pair) -> tuple[int, int, int]:
        if pair.a is not None:
            return pair.a.number, 0, 0
        return places[pair.either.number], 1, pair.either.number

    return sorted(pairs, key=place)
