"""Ten minutes without a store, while records come in.

Run: python -m bench.outage
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.figures import Figure, main
from bench.proofs import count_passed

MINUTES: Final = 10


def measure() -> Sequence[Figure]:
    """Return how long the store was down before everything acknowledged was loaded once."""
    passed = count_passed("tests/collector/test_loader.py", "test_c6_loader_waits_for_a_store", OUTAGE_S=60 * MINUTES)
    name = "outage of the store, everything acknowledged loaded once afterwards"
    return [Figure(name, MINUTES * min(1, passed.total()), "min", MINUTES, is_more_better=True)]


if __name__ == "__main__":
    main(measure)
