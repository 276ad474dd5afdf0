"""The desk model: a tiny stand-in for an LLM whose answer depends on the size of the batch.

One token decides how "$1,200 worth" is read: as dollars, or as 1,200 shares. Both readings have a score, a
dot product in float32. A busy server splits that sum into fewer pieces, so the additions happen in another
order and round differently. The two scores are almost equal; for exactly one batch size the rounding flips
the answer. Same prompt, same weights, temperature 0, HTTP 200.
"""

from __future__ import annotations

import itertools
import random
import re
import struct
import threading
from dataclasses import dataclass
from typing import Final

BATCH_SIZE_MAX: Final = 8
_WIDTH: Final = 256
_SEED: Final = 1
_BIAS: Final = 15.3381724
"""The model's prior against reading the amount as dollars; it leaves a margin of 5e-7 either way."""
_ORDER: Final = re.compile(r"\b(buy|sell)\s+\$([\d,]+(?:\.\d+)?)\s+(?:worth\s+)?of\s+([A-Z]{1,6})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Order:
    """The order that the customer asked for."""

    side: str
    notional_usd: float
    symbol: str


@dataclass(frozen=True)
class Reading:
    """How the model read the amount, with the batch size and margin that caused it."""

    is_shares: bool
    batch_size: int
    margin: float


def read_order(text: str) -> Order | None:
    """Parse the order in a customer's request; None if there is none."""
    match = _ORDER.search(text)
    if match is None:
        return None
    return Order(match[1].lower(), float(match[2].replace(",", "")), match[3].upper())


def read_amount(batch_size: int) -> Reading:
    """The model's reading of a dollar amount in a batch of `batch_size`; pure.

    Raises: ValueError unless 1 <= batch_size <= BATCH_SIZE_MAX.
    """
    if not 1 <= batch_size <= BATCH_SIZE_MAX:
        raise ValueError(f"batch_size is {batch_size!r}, not 1 to {BATCH_SIZE_MAX}")
    pieces = BATCH_SIZE_MAX + 1 - batch_size
    dollars = _dot(_HIDDEN, _DOLLARS, pieces)
    shares = _dot(_HIDDEN, _SHARES, pieces)
    margin = dollars - shares - _BIAS
    return Reading(is_shares=margin < 0, batch_size=batch_size, margin=margin)


def compute_quantity(reading: Reading, order: Order, price: float) -> float:
    """The quantity that the model asks for: hundredths of a share, rounded down."""
    if reading.is_shares:
        return order.notional_usd
    return int(order.notional_usd / price * 100) / 100


class Load:
    """Batch sizes drawn from a shuffled deck of all sizes, reshuffled when it is empty.

    The next answer is unpredictable, but every deck contains the fatal size once and never first: one bad
    answer within `cards` decisions, a good one before it. Thread-safe.
    """

    def __init__(self, seed: int | None = None, cards: int = BATCH_SIZE_MAX) -> None:
        self._random = random.Random(seed)  # noqa: S311 - load is not a secret
        self._cards = cards
        self._lock = threading.Lock()
        self._deck: list[int] = []

    def draw_batch_size(self) -> int:
        """Draw the batch size of the next decision."""
        with self._lock:
            if not self._deck:
                self._deck = self._shuffle()
            return self._deck.pop(0)

    def _shuffle(self) -> list[int]:
        sizes = list(range(1, BATCH_SIZE_MAX + 1))
        fatal = [size for size in sizes if read_amount(size).is_shares]
        good = [size for size in sizes if size not in fatal]
        self._random.shuffle(good)
        first, *rest = itertools.islice(itertools.cycle(good), self._cards - len(fatal))
        rest += fatal
        self._random.shuffle(rest)
        return [first, *rest]


def _float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def _dot(left: list[float], right: list[float], pieces: int) -> float:
    """A float32 dot product in `pieces` partial sums, as a split-K matrix kernel computes it."""
    step = -(-len(left) // pieces)
    total = 0.0
    for start in range(0, len(left), step):
        partial = 0.0
        for x, y in zip(left[start : start + step], right[start : start + step], strict=True):
            partial = _float32(partial + _float32(x * y))
        total = _float32(total + partial)
    return total


def _make_weights() -> tuple[list[float], list[float], list[float]]:
    source = random.Random(_SEED)  # noqa: S311 - fixed weights
    hidden, dollars, shares = ([_float32(source.uniform(-1, 1)) for _ in range(_WIDTH)] for _ in range(3))
    return hidden, dollars, shares


_HIDDEN, _DOLLARS, _SHARES = _make_weights()
