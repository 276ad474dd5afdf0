"""Cost of a patched clock for unrecorded callers and for the agent's code, in bare calls.

Run: python -m bench.clock
"""

from __future__ import annotations

import datetime as dt
import random
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import Figure, lower_quartile, main, recording, time_interleaved

GOAL_CALLS = 4.0
ROUNDS = 40
CALLS = 2000
LOOP = "def loop(read):\n    for _ in range(20):\n        read()\n"


def make_loop(filename: str) -> Callable[[Any], None]:
    """Return a loop of 20 reads whose code appears to be in `filename`."""
    space: dict[str, Any] = {}
    exec(compile(LOOP, filename, "exec"), space)  # noqa: S102 -- to get a caller in another file
    loop: Callable[[Any], None] = space["loop"]
    return loop


def measure() -> Sequence[Figure]:
    """Compare a bare call, one passed through for a foreign caller and one recorded for the agent."""
    names = ("time.time", "datetime.now", "random.random", "uuid.uuid4")
    bare = dict(zip(names, (time.time, dt.datetime.now, random.random, uuid.uuid4), strict=True))
    foreign = make_loop(str(Path(uuid.__file__).parent / "site-packages" / "library" / "module.py"))
    agent = make_loop("/srv/agent/agent.py")
    cases: dict[str, Callable[[], object]] = {name: partial(foreign, read) for name, read in bare.items()}
    cases.pop("datetime.now")  # measured before: recording replaces the type's own method
    before = time_interleaved({"datetime.now": lambda: foreign(dt.datetime.now)}, rounds=ROUNDS, calls=CALLS // 20)
    with recording() as installed:
        patched = dict(zip(names, (time.time, dt.datetime.now, random.random, uuid.uuid4), strict=True))
        for name, read in patched.items():
            cases[f"{name} passed through"] = partial(foreign, read)
            cases[f"{name} recorded"] = partial(agent, read)
        lane = installed.run.root_lane
        times = time_interleaved(
            cases, rounds=ROUNDS, calls=CALLS // 20, between=lambda: installed.run.reads.flush(lane)
        )
    times.update(before)
    quick = {name: lower_quartile(values) / 20 for name, values in times.items()}
    figures = []
    for name in names:
        passed, recorded = quick[f"{name} passed through"], quick[f"{name} recorded"]
        detail = (
            f"{quick[name] * 1000:.0f} ns bare, {passed * 1000:.0f} ns passed through, {recorded * 1000:.0f} ns"
            f" recorded; lower quartile of {ROUNDS} x {CALLS} calls, thread CPU"
        )
        figures.append(Figure(f"{name}, passed through", passed / quick[name], "calls", GOAL_CALLS, detail))
        figures.append(Figure(f"{name}, recorded", recorded / quick[name], "calls"))
    return figures


if __name__ == "__main__":
    main(measure)
