"""The report of one GPU at one commit, saved after every case, so that a killed call loses at most one case."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, TypeVar

__all__ = ["FORMAT", "Fill", "OutOfTime", "Report", "is_broken", "load_report", "now"]

FORMAT: Final = 2
TRIES_MAX: Final = 2
"""After ending its process this many times, a case is skipped, so that later calls get past it."""
_TRACE_LINES: Final = 12
Part = dict[str, Any]
Fill = Callable[[Part], None]
"""Fills a section's part of the report in place, so that results before an error are kept."""
T = TypeVar("T")


class OutOfTime(Exception):
    """The call's time is over; the next call measures the rest."""


class Report:
    """The results so far; used by one process."""

    def __init__(self, path: Path, head: dict[str, Any], seconds_max: float, earlier: dict[str, Any] | None = None):
        """earlier: the report to continue, with the same head."""
        self.path = path
        self.content: dict[str, Any] = {"format": FORMAT, **head, "sections": (earlier or {}).get("sections", {})}
        self._started = time.monotonic()
        self._seconds_max = seconds_max
        for part in self.content["sections"].values():
            _forget_failures(part)

    @property
    def seconds_left(self) -> float:
        """The seconds that this call has left."""
        return self._seconds_max - (time.monotonic() - self._started)

    def section(self, name: str, fill: Fill) -> None:
        """Run one section, or the rest of it; an error or running out of time is recorded in the report."""
        part: Part = self.content["sections"].setdefault(name, {})
        if part.get("is_whole"):
            sys.stderr.write(f"{name}: measured before\n")
            return
        part.pop("error", None)
        part["at"] = now()
        started = time.monotonic()
        try:
            if self.seconds_left <= 0:
                raise OutOfTime
            fill(part)
            part["is_whole"] = True
        except OutOfTime:
            part["error"] = "out of time; --resume measures what is left"
        except Exception as exc:  # noqa: BLE001 -- one failing section must not waste GPU time
            part["error"] = f"{type(exc).__name__}: {exc}"[:2000]
            part["trace"] = traceback.format_exc().splitlines()[-_TRACE_LINES:]
        part["seconds"] = round(part.get("seconds", 0) + time.monotonic() - started, 1)
        self.write()
        sys.stderr.write(f"{name}: {part['seconds']} s{', ' + part['error'] if 'error' in part else ''}\n")

    def left(self, part: Part, cases: Iterable[T], name_of: Callable[[T], str]) -> Iterator[T]:
        """Yield the cases that the part doesn't hold yet; the report is written before and after each.

        Raises: OutOfTime before a case for which no time is left.
        """
        done, begun = part.setdefault("done", []), part.setdefault("begun", {})
        for case in cases:
            name = name_of(case)
            if name in done:
                continue
            if begun.get(name, 0) >= TRIES_MAX:
                given_up = part.setdefault("given_up", [])
                given_up += [] if name in given_up else [name]
                continue
            if self.seconds_left <= 0:
                raise OutOfTime
            begun[name] = begun.get(name, 0) + 1
            part["at"] = now()
            self.write()
            yield case
            self.done(part, name)
            self.write()

    @staticmethod
    def done(part: Part, name: str) -> None:
        """Mark a case as done, so that it isn't run again."""
        del part["begun"][name]
        part["done"].append(name)

    def write(self) -> None:
        """Replace the whole file atomically: a reader always finds a complete one, even after a kill."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n")
        draft.replace(self.path)


def _forget_failures(part: Part) -> None:
    """Remove rows without a time of ours, so that they are measured again."""
    failed = [row for row in part.get("rows", []) if "ours" in row.get("errors", {})]
    if not failed:
        return
    part["rows"] = [row for row in part["rows"] if row not in failed]
    part["done"] = [name for name in part["done"] if name not in {row["name"] for row in failed}]
    part.pop("is_whole", None)


def load_report(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """Load the report to continue.

    Raises: ValueError if it is from another device, commit or version.
    """
    found: dict[str, Any] = json.loads(path.read_text())
    other = {name: (found.get(name), value) for name, value in head.items() if found.get(name) != value}
    if found.get("format") != FORMAT or other:
        differs = "; ".join(f"{name}: {was!r} there, {here!r} here" for name, (was, here) in other.items())
        raise ValueError(f"{path} is no report of this device and commit ({differs or 'another format'})")
    return found


def is_broken(sections: dict[str, Part]) -> bool:
    """Whether a section didn't finish, an invariant doesn't hold, or a certificate failed."""
    return any(
        not part.get("is_whole")
        or part.get("given_up")
        or part.get("broken")
        or any(each["verdict"] == "failed" for each in part.get("certificates", []))
        for part in sections.values()
    )


def now() -> str:
    """Return the time, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
