"""Report the results of a suite: a line per unit, a summary line, JSON and JUnit XML; pure functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

from spanreplay.report import junit
from spanreplay.report.shape import EXIT_STATUS, Verdict, first_cause
from spanreplay.report.shape import SCHEMA as VERDICT_SCHEMA
from spanreplay.report.words import describe_message, duration, plural

__all__ = ["SCHEMA", "decide", "describe", "describe_all", "make_error", "render_json", "render_junit"]

SCHEMA: Final = "suite/1"
_WORST_FIRST: Final = ("error", "tampered", "over_budget", "diverged", "suspended", "incomplete")
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
    return "  ".join(filter(None, (verdict["verdict"].ljust(_WIDTH), verdict.get("run_id", ""), why))).rstrip()


def describe_all(verdicts: Sequence[Verdict], starts: int, duration_ms: int) -> str:
    """The summary line of the suite; `starts`: how many times the application was started."""
    counts = Counter(verdict["verdict"] for verdict in verdicts)
    words = [f"{counts[word]:,} {word}" for word in ("identical", *_WORST_FIRST) if counts[word]]
    started = f"{plural(starts, 'start')} of the application"
    return f"{plural(len(verdicts), 'unit')}: {', '.join(words)}; {started}, {duration(duration_ms)}"


def render_json(verdicts: Sequence[Verdict], starts: int, duration_ms: int) -> str:
    """All verdicts as JSON text, schema `suite/1`; each verdict is a `divergence/1`."""
    counts = Counter(verdict["verdict"] for verdict in verdicts)
    suite = {
        "schema": SCHEMA,
        "verdict": decide(verdicts),
        "counts": dict(sorted(counts.items())),
        "starts": starts,
        "duration_ms": duration_ms,
        "units": list(verdicts),
    }
    return json.dumps(suite, indent=2, allow_nan=False) + "\n"


def render_junit(verdicts: Sequence[Verdict]) -> str:
    """All verdicts as one JUnit XML document, a test suite for each unit."""
    return junit.render_all(verdicts)
