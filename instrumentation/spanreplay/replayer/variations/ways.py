"""The ways in which one value can change, each by an amount: 0 is the smallest change, a larger one changes more; pure.

A number grows or shrinks by units of its own precision, a text gets longer or shorter, a list loses or repeats
elements. Texts that hold a number or a date change as one. `marks` are amounts where code is likely to go wrong: those
that give 0, -1, an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

__all__ = ["AMOUNTS_MAX", "Way", "list_ways", "number_ways", "text_ways"]

AMOUNTS_MAX: Final = 10**15
LONGER_MAX: Final = 2_000
REPEATS_MAX: Final = 20
_DAYS_MAX: Final = 40_000
_DECIMALS_MAX: Final = 9
_LARGE: Final = 2**31
_NUMBER: Final = re.compile(r"-?\d{1,15}(\.\d{1,9})?\Z")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
_ODD: Final = (" ", "\n", "'", '"', "<", "\\", "é", "\u202e", "\U0001f600", "\x00")
"""Characters that code trips over when a text ends with them."""


@dataclass(frozen=True)
class Way:
    """One way to change a value: `now(amount)` is the new value, for each amount below `amounts`."""

    now: Callable[[int], Any]
    amounts: int = 1
    marks: tuple[int, ...] = ()


def number_ways(value: int | float) -> Iterator[Way]:
    """Larger and smaller numbers of the same precision."""
    exact = Decimal(repr(value))
    if exact.is_finite():
        exponent = exact.as_tuple().exponent if isinstance(value, float) else 0
        decimals = min(_DECIMALS_MAX, max(0, -exponent)) if isinstance(exponent, int) else 0
        yield from _exact_ways(exact, decimals, type(value))


def _exact_ways(exact: Decimal, decimals: int, make: Callable[[Decimal], Any]) -> Iterator[Way]:
    unit = Decimal(1).scaleb(-decimals)
    up, down = (exact * 2, exact * 10, Decimal(_LARGE)), (Decimal(0), Decimal(-1), -exact, Decimal(int(exact / 2)))
    yield Way(lambda by: make(exact - unit * (by + 1)), AMOUNTS_MAX, _marks(down, exact, -unit))
    yield Way(lambda by: make(exact + unit * (by + 1)), AMOUNTS_MAX, _marks(up, exact, unit))


def _marks(targets: Sequence[Decimal], value: Decimal, unit: Decimal) -> tuple[int, ...]:
    """The amounts that lead to these values, as far as they lie in that direction."""
    amounts = (int((target - value) / unit) - 1 for target in targets)
    return tuple(dict.fromkeys(amount for amount in amounts if 0 <= amount < AMOUNTS_MAX))


def text_ways(value: str, elsewhere: Sequence[str] = (), *, is_strict: bool = False) -> Iterator[Way]:
    """Other texts; `elsewhere`: texts that the recording has in the same field of other answers.

    If `is_strict`, only numbers and dates change, and stay such.
    """
    yield from _numeric_ways(value)
    yield from _date_ways(value)
    if is_strict:
        return
    others = [each for each in dict.fromkeys(elsewhere) if each != value]
    if others:
        yield Way(others.__getitem__, len(others))
    if value.swapcase() != value:
        yield Way(lambda by: value.swapcase())
    if value:
        yield Way(lambda by: value[: len(value) - 1 - by], len(value), (len(value) - 1,))
    yield Way(lambda by: value + _ODD[by], len(_ODD))
    yield Way(lambda by: value + "x" * (by + 1), LONGER_MAX, (LONGER_MAX - 1,))


def _numeric_ways(value: str) -> Iterator[Way]:
    if _NUMBER.match(value):
        decimals = len(value.partition(".")[2])
        yield from _exact_ways(Decimal(value), decimals, lambda number: f"{number:.{decimals}f}")


def _date_ways(value: str) -> Iterator[Way]:
    if not _DATE.match(value):
        return
    try:
        day, rest = date.fromisoformat(value[:10]), value[10:]
    except ValueError:
        return
    later, earlier = (date.max - day).days, (day - date.min).days
    if earlier:
        yield Way(
            lambda by: (day - timedelta(by + 1)).isoformat() + rest, min(earlier, _DAYS_MAX), _days(earlier, 1, 365)
        )
    if later:
        yield Way(lambda by: (day + timedelta(by + 1)).isoformat() + rest, min(later, _DAYS_MAX), _days(later, 1, 365))


def _days(room: int, *days: int) -> tuple[int, ...]:
    return tuple(each - 1 for each in days if each <= room)


def list_ways(value: Sequence[Any]) -> Iterator[Way]:
    """Lists with fewer elements, with the last one repeated, in reverse order."""
    if not value:
        return
    yield Way(lambda by: list(value[: len(value) - 1 - by]), len(value), (len(value) - 1,))
    yield Way(lambda by: [*value, *[value[-1]] * (by + 1)], REPEATS_MAX)
    if list(value) != list(reversed(value)):
        yield Way(lambda by: list(reversed(value)))
