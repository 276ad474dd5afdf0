"""Replays suites of units as a user does: `spanreplay suite`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spanreplay.model.call import Recording
from support.replaying import Workplace


@dataclass(frozen=True)
class Suite:
    """A finished suite: its output, exit status and JSON."""

    stderr: str
    status: int
    report: dict[str, Any]

    def words(self) -> dict[str, str]:
        """Return run id → its verdict."""
        return {unit["run_id"]: unit["verdict"] for unit in self.report["units"]}

    def causes(self, run_id: str) -> list[tuple[str, str]]:
        """Return (kind, boundary) of every divergence of a unit that isn't downstream of another."""
        (unit,) = [each for each in self.report["units"] if each["run_id"] == run_id]
        return [(each["kind"], each["boundary"]) for each in unit["divergences"] if not each["downstream"]]


def replay_suite(place: Workplace, *command: str, options: Sequence[str]) -> Suite:
    """Run `spanreplay suite` with these options; `command` are the arguments of the Python that it starts."""
    report = place.path / "suite.json"
    report.unlink(missing_ok=True)
    done = place.run("suite", *options, "--json", str(report), "--", str(place.python), *command)
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    return Suite(done.stderr, done.returncode, found)


def insist_identical(place: Workplace, *command: str, units: Sequence[Recording], options: Sequence[str] = ()) -> None:
    """Assert that units are identical in a suite: each in a fork of one start of the program, not in a process each."""
    runs = [word for unit in units for word in ("--run", unit.run_id)]
    suite = replay_suite(place, *command, options=[*runs, *options])
    assert (suite.status, suite.report["counts"]) == (0, {"identical": len(units)}), suite.stderr
