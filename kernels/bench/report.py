"""The report of one GPU at one commit: on disk after every case, so that a call that is killed loses one at most."""

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
"""A case that ended its process so often is given up, so that a later call gets past it."""
_TRACE_LINES: Final = 12
Part = dict[str, Any]
Fill = Callable[[Part], None]
"""Fills a section's part of the report, so that what it found before an error is in it."""
T = TypeVar("T")


class OutOfTime(Exception):
    """The call's time is over; what is left is for the next one."""


class Report:
    """What was found so far. Of one process."""

    def __init__(self, path: Path, head: dict[str, Any], seconds_max: float, earlier: dict[str, Any] | None = None):
        """earlier: the report that is continued, of the same head."""
        self.path = path
        self.content: dict[str, Any] = {"format": FORMAT, **head, "sections": (earlier or {}).get("sections", {})}
        self._started = time.monotonic()
        self._seconds_max = seconds_max
        for part in self.content["sections"].values():
            _forget_failures(part)

    @property
    def seconds_left(self) -> float:
        """Of those that the call may take."""
        return self._seconds_max - (time.monotonic() - self._started)

    def section(self, name: str, fill: Fill) -> None:
        """Run one section, or what is left of it; its error is part of the report, and so is that time ran out."""
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
        except Exception as exc:  # noqa: BLE001 -- a GPU's minutes are not lost to one section
            part["error"] = f"{type(exc).__name__}: {exc}"[:2000]
            part["trace"] = traceback.format_exc().splitlines()[-_TRACE_LINES:]
        part["seconds"] = round(part.get("seconds", 0) + time.monotonic() - started, 1)
        self.write()
        sys.stderr.write(f"{name}: {part['seconds']} s{', ' + part['error'] if 'error' in part else ''}\n")

    def left(self, part: Part, cases: Iterable[T], name_of: Callable[[T], str]) -> Iterator[T]:
        """The cases that the part does not hold yet; the report is written before and after each.

        Raises: OutOfTime before a case that there is no time for.
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
        """A case of the part is not begun again."""
        del part["begun"][name]
        part["done"].append(name)

    def write(self) -> None:
        """The whole file, anew; whoever reads it meanwhile, or after a kill, finds one that is whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n")
        draft.replace(self.path)


def _forget_failures(part: Part) -> None:
    """Rows without a time of ours are measured again."""
    failed = [row for row in part.get("rows", []) if "ours" in row.get("errors", {})]
    if not failed:
        return
    part["rows"] = [row for row in part["rows"] if row not in failed]
    part["done"] = [name for name in part["done"] if name not in {row["name"] for row in failed}]
    part.pop("is_whole", None)


def load_report(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """The report that a call continues.

    Raises: ValueError for one of another device, commit or version.
    """
    found: dict[str, Any] = json.loads(path.read_text())
    other = {name: (found.get(name), value) for name, value in head.items() if found.get(name) != value}
    if found.get("format") != FORMAT or other:
        differs = "; ".join(f"{name}: {was!r} there, {here!r} here" for name, (was, here) in other.items())
        raise ValueError(f"{path} is no report of this device and commit ({differs or 'another format'})")
    return found


def is_broken(sections: dict[str, Part]) -> bool:
    """Whether a section did not end, an invariant does not hold, or a certificate failed."""
    return any(
        not part.get("is_whole")
        or part.get("given_up")
        or part.get("broken")
        or any(each["verdict"] == "failed" for each in part.get("certificates", []))
        for part in sections.values()
    )


def now() -> str:
    """The time, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
