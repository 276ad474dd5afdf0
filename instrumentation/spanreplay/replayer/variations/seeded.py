"""Variations drawn with a seed: the same recording and seed give the same ones, on every machine; pure.

Boundaries, their calls, the fields of a call and the ways to change a field are each dealt like cards: none comes twice
before all came once. So a tool that is called once gets as much attention as a model that is called fifty times.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, Generic, TypeVar

from spanreplay.replayer.variations.sites import CHANGES_MAX, Change, Field, Site, Variation, fits

__all__ = ["are_compatible", "draw_variations"]

_TRIES: Final = 30
"""Draws for each wanted variation, before a recording counts as having no more."""
T = TypeVar("T")


class _Deck(Generic[T]):
    """Cards in a seeded order, dealt again from the start when all are out."""

    def __init__(self, cards: Sequence[T], chance: random.Random) -> None:
        self._cards, self._chance = list(cards), chance
        self._left: list[T] = []

    def deal(self) -> T:
        if not self._left:
            self._left = self._chance.sample(self._cards, len(self._cards))
        return self._left.pop()


def draw_variations(fields: Sequence[Field], count: int, seed: int) -> list[Variation]:
    """At most `count` different variations; fewer if the fields do not have as many."""
    if not fields:
        return []
    chance = random.Random(seed)  # noqa: S311 -- a sample, not a secret
    deck = _lay_out(fields, chance)
    drawn: dict[tuple[str, ...], Variation] = {}
    for _ in range(_TRIES * count):
        if len(drawn) >= count:
            break
        size = 1
        while size < CHANGES_MAX and chance.getrandbits(1):
            size += 1
        variation = tuple(_draw(deck, chance) for _ in range(size))
        name = tuple(change.patch for change in variation)
        if name not in drawn and are_compatible(variation):
            drawn[name] = variation
    return list(drawn.values())


_Entry = tuple[Field, Site, int | None]
_Decks = _Deck[_Deck[_Deck[_Deck[_Entry]]]]


def _lay_out(fields: Sequence[Field], chance: random.Random) -> _Decks:
    boundaries: dict[str, dict[int, list[_Deck[_Entry]]]] = {}
    for number, group in groupby(fields, key=lambda field: field.call.number):
        found = list(group)
        calls = boundaries.setdefault(found[0].call.boundary, {})
        calls[number] = [_Deck(list(_entries(field)), chance) for field in found]
    return _Deck(
        [_Deck([_Deck(decks, chance) for decks in calls.values()], chance) for calls in boundaries.values()], chance
    )


def _entries(field: Field) -> Iterator[_Entry]:
    """Each way to change a field by each of its marks, and by any amount (None)."""
    for site in field.sites:
        yield from ((field, site, mark) for mark in site.marks)
        if site.amounts > len(site.marks):
            yield field, site, None


def _draw(deck: _Decks, chance: random.Random) -> Change:
    field, site, mark = deck.deal().deal().deal().deal()
    return Change(field, site, _draw_amount(site.amounts, chance) if mark is None else mark)


def _draw_amount(amounts: int, chance: random.Random) -> int:
    """An amount below a limit, of any order of magnitude; whole numbers only, so that no machine rounds otherwise."""
    bits = chance.randrange(amounts.bit_length())
    return min(amounts - 1, chance.getrandbits(bits) if bits else 0)


def are_compatible(variation: Variation) -> bool:
    """Whether the changes of a variation can be made together, and each one changes something."""
    if len({(change.field.call.seq, change.field.path) for change in variation}) < len(variation):
        return False
    by_call: dict[int, list[Change]] = {}
    for change in variation:
        by_call.setdefault(change.field.call.seq, []).append(change)
    return all(
        all(fits(changes[0].field.call, [each.patch]) for each in changes)
        and fits(changes[0].field.call, [each.patch for each in changes])
        for changes in by_call.values()
    )
