"""Report the replays of one request through several services: a line per run, a summary line, JSON; pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spanreplay.report import suite
from spanreplay.report.shape import Verdict
from spanreplay.report.words import duration, plural

__all__ = ["SCHEMA", "Caller", "Given", "Result", "describe", "describe_all", "render_json"]

SCHEMA: Final = "trace/1"


@dataclass(frozen=True)
class Caller:
    """The call that caused a run."""

    run_id: str
    app: str
    call: int


@dataclass(frozen=True)
class Given:
    """An answer that replaces the recorded one: the present answer of the run that gave it."""

    call: int
    run_id: str
    changed: Sequence[str]
    """The differences from the recorded answer, in words."""


@dataclass(frozen=True)
class Result:
    """One run of the trace, replayed."""

    verdict: Verdict
    caller: Caller | None
    """None for a run without a caller in this trace."""
    given: Sequence[Given] = ()
    asked: Sequence[str] = ()
    """The differences between the recorded request and its caller's request now, in words."""


def describe(result: Result) -> str:
    """One run in one line."""
    app, caller = result.verdict.get("app", ""), result.caller
    where = f"{app}, called by call {caller.call} of {caller.app}" if caller is not None else app
    asked = [f"with a changed request: {', '.join(result.asked)}"] if result.asked else []
    told = [
        f"call {each.call} got the new answer of run {each.run_id}: {', '.join(each.changed)}" for each in result.given
    ]
    return "  ".join([suite.describe(result.verdict), f"({'; '.join([where, *asked, *told])})"])


def describe_all(results: Sequence[Result], duration_ms: int) -> str:
    """The summary line of all runs."""
    counts = Counter(result.verdict["verdict"] for result in results)
    words = ", ".join(f"{count:,} {word}" for word, count in counts.most_common())
    apps = len({result.verdict.get("app") for result in results})
    return f"{plural(len(results), 'run')} of {plural(apps, 'application')}: {words}; {duration(duration_ms)}"


def render_json(trace_id: str, results: Sequence[Result], duration_ms: int) -> str:
    """The results as JSON text, schema `trace/1`; each verdict is a `divergence/1`."""
    runs = [
        {
            "caller": None if each.caller is None else {"run_id": each.caller.run_id, "call": each.caller.call},
            "asked": [*each.asked],
            "given": [
                {"call": given.call, "run_id": given.run_id, "changed": [*given.changed]} for given in each.given
            ],
            "verdict": each.verdict,
        }
        for each in results
    ]
    verdict = suite.decide([each.verdict for each in results])
    found = {"schema": SCHEMA, "trace_id": trace_id, "verdict": verdict, "duration_ms": duration_ms, "runs": runs}
    return json.dumps(found, indent=2, allow_nan=False) + "\n"
