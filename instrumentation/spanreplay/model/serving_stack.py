"""Read a server's statements about how it computed an answer; the note on the worth of live answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["LIVE_NOTE", "STATED", "list_changed", "read_determinism", "split_line"]

LIVE_NOTE: Final = "fresh generation, not evidence: live answers don't show what happened in the recorded run"
"""Part of every report of a replay in which a call was live."""

STATED: Final = (
    ("response_model", "model"),
    ("fingerprint", "system_fingerprint"),
    ("determinism", "x-spanreplay-determinism"),
)
"""Member of a call's meta, and the name under which servers state it."""
_VERSION: Final = re.compile(r"(?P<engine>.+?)[-/ ]v?(?P<version>\d[^/ ]*)$")
_NO: Final = frozenset({"0", "false", "no", "off"})


def split_line(line: str) -> dict[str, str]:
    """The parts of a determinism line, `name=value; …`; parts without a name are left out."""
    pairs = (part.strip().partition("=") for part in line.split(";"))
    return {name: value for name, is_pair, value in pairs if is_pair and name}


def read_determinism(line: str) -> dict[str, str | bool]:
    """Engine, its version, dtype and whether sums are batch-invariant, as far as the line states them.

    A line with a plan implies that sums follow it, whatever the batch, unless it states `batch_invariant` itself.
    """
    parts = split_line(line)
    found: dict[str, str | bool] = {}
    if engine := parts.get("engine", ""):
        match = _VERSION.match(engine)
        found["engine"] = match["engine"] if match else engine
        if match:
            found["engine_version"] = match["version"]
    if dtype := parts.get("dtype", ""):
        found["dtype"] = dtype
    if flag := parts.get("batch_invariant", ""):
        found["batch_invariant"] = flag.lower() not in _NO
    elif parts.get("plan"):
        found["batch_invariant"] = True
    return found


def list_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Which of the three statements the server has changed; members of a call's meta.

    A model or a fingerprint that is not stated says nothing. An engine that stated how it computes, and now states
    another way or none, is another serving stack.
    """
    changed = []
    for name, _ in STATED:
        a, b = before.get(name) or "", after.get(name) or ""
        if a != b and (name == "determinism" or (a and b)):
            changed.append(name)
    return changed
