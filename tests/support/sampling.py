"""Samples long tests with many similar cases: CI runs a sample, `make matrix` runs all."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, TypeVar

import pytest

T = TypeVar("T")
IS_WHOLE: Final = os.environ.get("SPANREPLAY_TEST_MATRIX") == "1"
MARK: Final = "sampled"
"""The marker of a test with many cases: `@pytest.mark.sampled(COUNT)`."""


def sampled(cases: Iterable[T], count: int) -> list[T]:
    """Return `count` of these cases, always the same, evenly spread from the first; all of them in `make matrix`."""
    found = list(cases)
    if IS_WHOLE or len(found) <= count:
        return found
    return [found[at * len(found) // count] for at in range(count)]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases of marked tests beyond their sample, unless the command line names cases."""
    if config.option.keyword or any("[" in arg for arg in config.args):
        return
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARK) is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = set[pytest.Item]()
    for found in cases.values():
        mark = found[0].get_closest_marker(MARK)
        assert mark is not None
        left_out.update(set(found) - set(sampled(found, *mark.args)))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
