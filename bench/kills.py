"""A thousand times kill -9 of a collector, at a random time while it acknowledges or loads.

Run: python -m bench.kills
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.figures import Figure, main
from bench.proofs import count_passed

CASES: Final = 400
"""Kills while acknowledging; half as many cases follow with three kills each while loading."""
KILLS_OF: Final = {"test_c1_kill_while_acknowledging": 1, "test_c1_kill_while_loading": 3}


def measure() -> Sequence[Figure]:
    """Count the kills after which nothing acknowledged was lost or stored twice."""
    killed = count_passed("tests/collector/test_collector.py", " or ".join(KILLS_OF), KILLS=CASES)
    kills = sum(KILLS_OF[name] * count for name, count in killed.items())
    name = "kill -9 of a collector at a random time, nothing acknowledged lost or twice"
    return [Figure(name, kills, "kills", 1000, f"{killed.total()} cases", is_more_better=True)]


if __name__ == "__main__":
    main(measure)
