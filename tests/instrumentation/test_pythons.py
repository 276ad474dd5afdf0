"""The parts that depend most on the version of Python also work under the other versions that are here."""

from __future__ import annotations

import pytest

from support.pythons import NONE, other_pythons, run_tests


@pytest.mark.slow
@pytest.mark.parametrize("version", other_pythons() or [pytest.param((), marks=pytest.mark.skip(NONE))], ids=str)
def test_n1_s68_lanes_and_their_order_hold_under_another_python(version: tuple[int, int]) -> None:
    """Lane names, and the recorded facts that order a replay, are the same."""
    files = [
        "tests/instrumentation/runtime/test_lanes.py",
        "tests/instrumentation/seams/concurrency/test_lane_order.py",
    ]
    assert " passed" in run_tests(other_pythons()[version], *files)
