"""Long proofs of the same kind many times: CI tries a sample, `make matrix` all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")
IS_WHOLE: Final = os.environ.get("SPANREPLAY_TEST_MATRIX") == "1"


def sampled(cases: Iterable[T], count: int) -> list[T]:
    """`count` of these cases, always the same, evenly spread with the first among them; all in `make matrix`."""
    found = list(cases)
    if IS_WHOLE or len(found) <= count:
        return found
    return [found[at * len(found) // count] for at in range(count)]
