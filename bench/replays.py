"""A hundred replays under several Pythons and hash seeds, of a run that was recorded under each of two.

Run: python -m bench.replays
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.figures import Figure, main
from bench.proofs import count_passed

REPLAYS: Final = 100
"""For each Python that records."""


def measure() -> Sequence[Figure]:
    """Count the replays whose output and results have the hash of the recording."""
    passed = count_passed("tests/end_to_end/test_determinism.py", "test_s20", REPLAYS=REPLAYS)
    replays = REPLAYS * passed.total()
    detail = f"of {passed.total()} runs, each recorded under another Python"
    return [Figure("replays of a run with one hash", replays, "replays", REPLAYS, detail, is_more_better=True)]


if __name__ == "__main__":
    main(measure)
