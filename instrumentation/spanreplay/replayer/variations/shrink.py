"""Find a smaller variation with the same effect: fewer changes first, then smaller ones; pure but for the question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spanreplay.replayer.variations.sites import Variation

__all__ = ["shrink"]


def shrink(variation: Variation, has_effect: Callable[[Variation], bool], tries_max: int) -> Variation:
    """The smallest variation found in at most `tries_max` questions.

    No change in it can be left out, and no smaller amount of a change was found by halving.
    """
    ask = _Asking(has_effect, tries_max)
    return _lessen(_leave_out(variation, ask), ask)


class _Asking:
    """Asks whether a variation has the effect; when no tries are left, the answer is no."""

    def __init__(self, has_effect: Callable[[Variation], bool], tries_max: int) -> None:
        self._has_effect, self._left = has_effect, tries_max

    def __call__(self, variation: Variation) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        return self._has_effect(variation)


def _leave_out(variation: Variation, ask: _Asking) -> Variation:
    at = 0
    while len(variation) > 1 and at < len(variation):
        smaller = variation[:at] + variation[at + 1 :]
        if ask(smaller):
            variation, at = smaller, 0
        else:
            at += 1
    return variation


def _lessen(variation: Variation, ask: _Asking) -> Variation:
    for at in range(len(variation)):
        variation = _lessen_one(variation, at, ask)
    return variation


def _lessen_one(variation: Variation, at: int, ask: _Asking) -> Variation:
    def put(amount: int) -> Variation:
        return (*variation[:at], replace(variation[at], amount=amount), *variation[at + 1 :])

    amount = variation[at].amount
    return put(_least(amount, lambda smaller: ask(put(smaller)))) if amount else variation


def _least(amount: int, has_effect: Callable[[int], bool]) -> int:
    """The least amount with the effect, by halving; amounts above one that has it are taken to have it."""
    if has_effect(0):
        return 0
    without = 0
    while amount - without > 1:
        middle = (amount + without) // 2
        if has_effect(middle):
            amount = middle
        else:
            without = middle
    return amount
