"""How long waits with a limit lasted, so that a replay can tell whether another limit would end them otherwise.

In the manifest, under `waited`: name of a wait → its clock, its seconds and, if it expired, the time when it did (ns
since the epoch), else 0. The seconds are the limit of a wait that expired, else how long it took; shorter ones than
WAITED_S_MIN are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spanreplay.model.ids import monotonic_ns, now_ns
from spanreplay.runtime.order.order import is_later

__all__ = ["MEMBER", "WAITED_S_MIN", "Wait", "Waited", "describe_change", "read_waited"]

MEMBER: Final = "waited"
WAITED_MAX: Final = 256
WAITED_S_MIN: Final = 0.1


class Wait(NamedTuple):
    """A wait in a recording."""

    clock: int
    seconds: float
    expired_ns: int

    @property
    def has_expired(self) -> bool:
        """Whether nothing came within its limit."""
        return self.expired_ns > 0


class Waited:
    """The waits of one run that were long enough. Thread-safe: single operations on a dictionary."""

    def __init__(self) -> None:
        self._found: dict[str, Wait] = {}

    def end(self, name: str, clock: int, since_ns: int) -> None:
        """Note a wait that ended with what it was for; it began at `since_ns` on the monotonic clock."""
        took_s = (monotonic_ns() - since_ns) / 1e9
        if took_s >= WAITED_S_MIN:
            self._add(name, Wait(clock, round(took_s, 3), 0))

    def expire(self, name: str, clock: int, limit_s: Any) -> None:
        """Note a wait that expired."""
        self._add(name, Wait(clock, round(float(limit_s), 3), now_ns()))

    def _add(self, name: str, wait: Wait) -> None:
        if len(self._found) < WAITED_MAX:
            self._found[name] = wait

    def for_manifest(self) -> dict[str, Any]:
        """The manifest's member; empty if no wait was long enough."""
        return {MEMBER: {name: list(wait) for name, wait in self._found.items()}} if self._found else {}


def read_waited(manifest: Mapping[str, Any]) -> dict[str, Wait]:
    """The waits in a recording's manifest."""
    found = manifest.get(MEMBER)
    rows = found.items() if isinstance(found, Mapping) else ()
    return {name: Wait(*row) for name, row in rows if _is_row(row)}


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 3
        and all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in row)
    )


def describe_change(seconds: float, limit: Any, *, has_expired: bool) -> str:
    """Say how another limit would end a wait of so many seconds; '' if it would not."""
    now_s = math.inf if limit is None else max(float(limit), 0.0)
    if has_expired and is_later(seconds, now_s):
        ends = "has no limit now" if limit is None else f"would last {_write(now_s)} now"
        return f"a wait for it ran out after {_write(seconds)} when recorded, and {ends}"
    if not has_expired and is_later(now_s, seconds):
        return f"a wait for it lasted {_write(seconds)} when recorded, and would run out after {_write(now_s)} now"
    return ""


def _write(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 1 else f"{round(seconds, 1):g} s"
