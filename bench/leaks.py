"""Cost for library code of watching for I/O outside of boundaries, in bare calls.

Run: python -m bench.leaks
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import Figure, lower_quartile, main, recording, time_interleaved

GOAL_CALLS = 2.0
ROUNDS = 40
CALLS = 100
SOURCE = """
import os

def open_and_close():
    os.close(os.open(FILE, os.O_RDONLY))

def open_and_read():
    with open(FILE, "rb") as stream:
        stream.read(1)

def loop(work):
    for _ in range(20):
        work()
"""


def make_library(filename: str) -> dict[str, Any]:
    """Return functions whose code appears to be in `filename`."""
    space: dict[str, Any] = {"FILE": uuid.__file__}
    exec(compile(SOURCE, filename, "exec"), space)  # noqa: S102 -- to get a caller in another file
    return space


def measure() -> Sequence[Figure]:
    """Compare the same work bare and while recording, and measure the cost of an audit hook instead."""
    foreign = make_library(str(Path(uuid.__file__).parent / "site-packages" / "library" / "module.py"))
    works: dict[str, Callable[[], object]] = {
        "os.open and close": foreign["open_and_close"],
        "open and read": foreign["open_and_read"],
        "frame of the caller": partial(sys._getframe, 0),
    }
    cases = {name: partial(foreign["loop"], work) for name, work in works.items()}
    before = time_interleaved(cases, rounds=ROUNDS, calls=CALLS)
    with recording():
        now = time_interleaved(cases, rounds=ROUNDS, calls=CALLS)
    figures = []
    for name in works:
        bare, watched = lower_quartile(before[name]) / 20, lower_quartile(now[name]) / 20
        detail = f"{bare * 1000:.0f} ns bare, {watched * 1000:.0f} ns while recording"
        figures.append(Figure(f"{name}, while recording", watched / bare, "calls", GOAL_CALLS, detail))
    sys.addaudithook(_hook)
    hooked = time_interleaved({"hook": cases["frame of the caller"]}, rounds=ROUNDS, calls=CALLS)["hook"]
    bare = lower_quartile(before["frame of the caller"])
    detail = "an empty audit hook: what recordings do without (docs/decisions/0007)"
    figures.append(Figure("frame of the caller, audited", lower_quartile(hooked) / bare, "calls", None, detail))
    return figures


def _hook(event: str, args: tuple[Any, ...]) -> None:
    return


if __name__ == "__main__":
    main(measure)
