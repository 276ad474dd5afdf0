"""The benchmark split into calls short enough for a borrowed GPU; each may be killed and resumed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final, NamedTuple

from bench.checks import CHECKS

__all__ = ["PARTS", "Part", "commands"]

CALL_SECONDS_MAX: Final = 540
ALL_SECONDS_MAX: Final = 1800
_MARGIN_SECONDS: Final = 40
"""The time between the last start of a case and the end of the call: a case takes less."""


class Part(NamedTuple):
    """One call."""

    what: str
    sections: tuple[str, ...]
    seconds: int
    """The time after which it is killed."""


PARTS: Final = (
    Part("checks, products with few and with many rows", (*CHECKS, "K2", "K1"), 480),
    Part("attention, groups", ("K5", "K6", "K7"), 360),
    Part("rows, a decoded token, fp8, answers", ("K3", "K4", "K8", "fp8", "answers"), 420),
    Part("certificates", ("certificates",), 330),
    Part("tiles", ("tiles",), 180),
)
"""The most valuable parts first, in case there isn't time for all."""


def commands(commit: str, results: Path | None = None) -> list[str]:
    """Return a comment and a command for each part, for a shell in the repository's root."""
    where = f" --results {shlex.quote(str(results))}" if results else ""
    lines = []
    for number, part in enumerate(PARTS, 1):
        run = f"python kernels/bench/run.py --part {number} --resume --commit {commit}{where}"
        limit = f"--seconds {part.seconds - _MARGIN_SECONDS}"
        lines += [f"# {number}: {part.what}", f"timeout -s KILL {part.seconds} {run} {limit}"]
    return lines
