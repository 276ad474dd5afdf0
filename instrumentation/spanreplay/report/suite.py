"""Report the results of a suite: a line per unit, a summary line, JSON and JUnit XML; pure functions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from spanreplay.model.escape import escape
from spanreplay.report import junit
from spanreplay.report.shape import EXIT_STATUS, Verdict, first_cause
from spanreplay.report.shape import SCHEMA as VERDICT_SCHEMA
from spanreplay.report.words import describe_message, duration, plural

__all__ = [
    "SCHEMA",
    "Group",
    "decide",
    "describe",
    "describe_all",
    "describe_groups",
    "group",
    "make_error",
    "render_json",
    "render_junit",
]

SCHEMA: Final = "suite/1"
_WORST_FIRST: Final = ("error", "tampered", "over_budget", "diverged", "suspended", "incomplete")
GROUPS_SHOWN_MAX: Final = 10
_GROUPED_MIN: Final = 2
_PATH_CHARACTERS: Final = 120
_ANY_ITEM: Final = re.compile(r"\[\d+\]")
_ANY_NUMBER: Final = re.compile(r"\b[0-9a-f]*\d[0-9a-f]*\b")
_WIDTH: Final = max(map(len, EXIT_STATUS))


def make_error(run_id: str, app: str, why: str, hint: str = "") -> Verdict:
    """An error verdict for a unit whose replay gave no verdict."""
    empty: dict[str, Any] = {name: {} for name in ("counts", "stdout", "exit", "tokens")}
    empty |= {name: [] for name in ("divergences", "reasons", "sockets_denied", "not_compared")}
    named = {"schema": VERDICT_SCHEMA, "verdict": "error", "run_id": run_id, "app": app, "error": why, "hint": hint}
    return cast("Verdict", {**empty, **named})


def decide(verdicts: Sequence[Verdict]) -> str:
    """The verdict of the suite: that of its worst unit."""
    found = {verdict["verdict"] for verdict in verdicts}
    return next((word for word in _WORST_FIRST if word in found), "identical")


def describe(verdict: Verdict) -> str:
    """One unit in one line."""
    cause = first_cause(verdict)
    why = ""
    if verdict["verdict"] == "diverged" and cause is not None:
        where = f" at {cause['boundary']}" if cause.get("boundary") else ""
        why = f"{cause.get('kind')}{where}: {describe_message(cause)}"
    elif verdict["verdict"] == "error":
        why = str(verdict.get("error", ""))
    elif verdict["verdict"] != "identical":
        why = str(next(iter(verdict["reasons"]), ""))
    elif verdict.get("warm_up"):
        why = f"after {plural(len(verdict['warm_up']['units']), 'earlier unit')}"
    return "  ".join(filter(None, (verdict["verdict"].ljust(_WIDTH), verdict.get("run_id", ""), why))).rstrip()


def describe_all(verdicts: Sequence[Verdict], starts: int, duration_ms: int) -> str:
    """The summary line of the suite; `starts`: how many times the application was started."""
    counts = Counter(verdict["verdict"] for verdict in verdicts)
    words = [f"{counts[word]:,} {word}" for word in ("identical", *_WORST_FIRST) if counts[word]]
    started = f"{plural(starts, 'start')} of the application"
    return f"{plural(len(verdicts), 'unit')}: {', '.join(words)}; {started}, {duration(duration_ms)}"


@dataclass(frozen=True)
class Group:
    """Units whose replays differ first in the same way: what, where, and in which member, whatever the values."""

    kind: str
    boundary: str
    path: str
    code: str
    """The line of code of the first of them."""
    runs: tuple[str, ...]

    def describe(self) -> str:
        """One line, with a run to look at."""
        at = f" {self.boundary}" if self.boundary else ""
        path = f": {self.path}" if self.path else ""
        code = f"  {self.code}" if self.code else ""
        return f"{plural(len(self.runs), 'unit')}: {self.kind}{at}{path}{code}  e.g. {self.runs[0]}"


def group(verdicts: Sequence[Verdict]) -> list[Group]:
    """The units that diverged or failed, by the signature of their first difference; the largest group first."""
    found: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        signature = _sign(verdict)
        if signature is not None:
            found.setdefault(signature, []).append(verdict)
    groups = [
        Group(*signature, _code_of(alike[0]), tuple(str(verdict.get("run_id", "")) for verdict in alike))
        for signature, alike in found.items()
    ]
    return sorted(groups, key=lambda each: -len(each.runs))


def _sign(verdict: Verdict) -> tuple[str, str, str] | None:
    if verdict["verdict"] == "error":
        return "error", "", _ANY_NUMBER.sub("N", str(verdict.get("error", "")))[:_PATH_CHARACTERS]
    cause = first_cause(verdict) if verdict["verdict"] == "diverged" else None
    if cause is None:
        return None
    diff = cause.get("diff") or [{}]
    path = str(diff[0].get("path", "")).removeprefix("$.")
    return str(cause.get("kind", "")), str(cause.get("boundary", "")), _ANY_ITEM.sub("[*]", path)[:_PATH_CHARACTERS]


def _code_of(verdict: Verdict) -> str:
    cause = first_cause(verdict)
    return "" if cause is None else str(cause.get("code", ""))


def describe_groups(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each group; none unless there are several units to group."""
    groups = group(verdicts)
    if sum(len(each.runs) for each in groups) < _GROUPED_MIN:
        return []
    more = [f"  and {plural(len(groups) - GROUPS_SHOWN_MAX, 'group')} more"] if len(groups) > GROUPS_SHOWN_MAX else []
    return [*(f"  {escape(each.describe())}" for each in groups[:GROUPS_SHOWN_MAX]), *more]


def render_json(verdicts: Sequence[Verdict], starts: int, duration_ms: int) -> str:
    """All verdicts as JSON text, schema `suite/1`; each verdict is a `divergence/1`."""
    counts = Counter(verdict["verdict"] for verdict in verdicts)
    suite = {
        "schema": SCHEMA,
        "verdict": decide(verdicts),
        "counts": dict(sorted(counts.items())),
        "starts": starts,
        "duration_ms": duration_ms,
        "groups": [asdict(each) for each in group(verdicts)],
        "units": list(verdicts),
    }
    return json.dumps(suite, indent=2, allow_nan=False) + "\n"


def render_junit(verdicts: Sequence[Verdict]) -> str:
    """All verdicts as one JUnit XML document, a test suite for each unit."""
    return junit.render_all(verdicts)
