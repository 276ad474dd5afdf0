"""A million calls of one process, whose memory stays where it is.

Run: python -m bench.many_calls
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.figures import Figure, main
from bench.proofs import count_passed

CALLS: Final = 1_000_000


def measure() -> Sequence[Figure]:
    """Return how many calls a process made that grew by at most 16 MB in the second half of them."""
    passed = count_passed("tests/end_to_end/test_bounded.py", "test_p8_the_memory_of_a_process_stays", CALLS=CALLS)
    name = "calls of one process, its memory within 16 MB in the second half"
    return [Figure(name, CALLS * min(1, passed.total()), "calls", CALLS, "level calls", is_more_better=True)]


if __name__ == "__main__":
    main(measure)
