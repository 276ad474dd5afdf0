"""Checks whether a replay can reproduce Python's recorded hash seeds on this machine: tracing may be forbidden."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Final

from spanreplay.cli.agent.child import hashing_as

WHY: Final = "a process can't be traced here, so no replay seeds Python's hashes"


@cache
def can_seed() -> bool:
    """Whether two starts with the same secret produce the same hash."""
    argv, environ = (sys.executable, "-c", "print(hash('alpha'))"), {"PATH": os.environ.get("PATH", os.defpath)}
    found = set()
    for _ in range(2):
        with hashing_as(bytes(range(24)), argv, environ) as (words, source):
            done = subprocess.run(words, env=environ, pass_fds=source, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    return len(found) == 1


def fixed_seed() -> dict[str, str]:
    """Return the variable that a run and its replay need if a replay can't seed hashes; empty if it can."""
    return {} if can_seed() else {"PYTHONHASHSEED": "0"}
