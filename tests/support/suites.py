"""Replays suites of units as a user does: `spanreplay suite`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def replay_suite(place: Workplace, *command: str, options: Sequence[str]) -> Suite:
    """Run `spanreplay suite` with these options; `command` are the arguments of the Python that it starts."""
    report = place.path / "suite.json"
    report.unlink(missing_ok=True)
    done = place.run("suite", *options, "--json", str(report), "--", str(place.python), *command)
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    return Suite(done.stderr, done.returncode, found)
