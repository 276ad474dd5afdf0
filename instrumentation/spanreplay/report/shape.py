"""The shape of a verdict as JSON, schema `divergence/1`; stated for machines in divergence-1.schema.json."""

from __future__ import annotations

from typing import Any, Final, TypedDict

__all__ = [
    "EXIT_STATUS",
    "SCHEMA",
    "Candidate",
    "Cause",
    "Change",
    "Code",
    "Cost",
    "Counts",
    "Diff",
    "Divergence",
    "Drift",
    "EarlierUnit",
    "ExitPair",
    "IgnoredDiff",
    "Level",
    "NotCompared",
    "RecordedEnv",
    "Sandbox",
    "Stated",
    "Stdout",
    "Tokens",
    "Verdict",
    "WarmUp",
    "first_cause",
]

SCHEMA: Final = "divergence/1"

EXIT_STATUS: Final = {
    "identical": 0,
    "error": 1,
    "diverged": 3,
    "incomplete": 4,
    "tampered": 5,
    "over_budget": 6,
    "suspended": 7,
    "resumed": 0,
}
"""Verdict → exit status of `spanreplay replay`; 2 is wrong usage."""


class Counts(TypedDict, total=False):
    """How the calls of the replay were resolved."""

    recorded: int
    served: int
    exact: int
    moved: int
    live: int
    changed: int
    extra: int
    missing: int
    covered: int
    downstream: int
    ignored_diffs: int


class Diff(TypedDict, total=False):
    """One place where a call's request differs; `at` is the first differing character."""

    path: str
    recorded: Any
    now: Any
    at: int


class Cause(TypedDict, total=False):
    """One piece of evidence for where a difference comes from; `strength` is value, place or beside."""

    kind: str
    evidence: str
    strength: str
    ref: str


class Candidate(TypedDict, total=False):
    """A recorded call that was near, and why it does not answer."""

    seq: int
    call: int
    boundary: str
    lane: str
    index: int
    score: float
    why_rejected: str
    span_id: str


class Change(TypedDict, total=False):
    """A message or a chunk that is injected, dropped, changed or moved."""

    index: int
    name: str
    change: str


class IgnoredDiff(TypedDict, total=False):
    """A served call that differs in what its key leaves out."""

    kind: str
    boundary: str
    lane: str
    seq: int
    call: int
    code: str
    diff: list[Diff]
    recorded_span_id: str
    replay_span_id: str


class Drift(TypedDict, total=False):
    """Something of the environment that is not as recorded."""

    name: str
    recorded: Any
    now: Any


class Code(TypedDict, total=False):
    """The commits of then and now, and the agent's files that are not as recorded."""

    recorded: str
    now: str
    changed_files: list[str]


class Stated(TypedDict, total=False):
    """What two servers state under one name; empty if one does not."""

    name: str
    recorded: str
    now: str


class Divergence(TypedDict, total=False):
    """One structured difference between recording and replay."""

    kind: str
    boundary: str
    lane: str
    index: int
    seq: int
    call: int
    code: str
    message: str
    diff: list[Diff]
    cause: str
    hint: str
    downstream: bool
    recorded_span_id: str
    replay_span_id: str
    downstream_of: int
    part: str
    turn: int
    context: list[Change]
    chunks: list[Change]
    serving: list[Stated]
    causes: list[Cause]
    candidates: list[Candidate]
    stack: list[str]


class Stdout(TypedDict, total=False):
    """How the process's standard output compares."""

    compared: bool
    equal: bool
    recorded_bytes: int
    bytes: int
    diff: str


class ExitPair(TypedDict, total=False):
    """Exit status then and now; None where it is not known."""

    recorded: int | None
    now: int | None


class Tokens(TypedDict, total=False):
    """Tokens that the recorded run paid, and what live calls paid now."""

    recorded: int
    live: int


class Sandbox(TypedDict, total=False):
    """What keeps native code from changing files: kernel, with the folders left `free`, or python, and `why` so."""

    files: str
    network: str
    free: list[str]
    why: str


class Cost(TypedDict, total=False):
    """What live calls to models cost, in US dollars, and the ceiling."""

    live_usd: float
    max_usd: float
    exceeded: bool
    estimated: bool


class Unexercised(TypedDict, total=False):
    """A boundary that was served although its function has changed since the recording."""

    boundary: str
    code: str
    calls: int


class NotCompared(TypedDict, total=False):
    """What a verdict does not speak for."""

    what: str
    names: list[str]
    why: str


class RecordedEnv(TypedDict, total=False):
    """Variables and `.env` files that the recorded run used: given or missing here, or set here to something else."""

    given: list[str]
    files: list[str]
    missing: list[str]
    differing: list[str]
    unknown: list[str]


class Level(TypedDict):
    """The level of a recording that is not `full`, and what that leaves open, in one sentence."""

    name: str
    leaves_open: str


class EarlierUnit(TypedDict):
    """A unit that was replayed first, and why not whole; empty if it was."""

    run_id: str
    why: str


class WarmUp(TypedDict, total=False):
    """The units that were to be replayed before the judged one, how many were, and how many came before it."""

    before: int
    replayed: int
    units: list[EarlierUnit]
    is_needed: bool


class Verdict(TypedDict, total=False):
    """The result of a replay."""

    schema: str
    verdict: str
    run_id: str
    replay_run_id: str
    app: str
    counts: Counts
    live_note: str
    divergences: list[Divergence]
    divergences_total: int
    ignored_diffs: list[IgnoredDiff]
    environment: list[str]
    recorded_env: RecordedEnv
    drift: list[Drift]
    code: Code
    unexercised: list[Unexercised]
    tokens_sent: list[dict[str, Any]]
    reasons: list[str]
    stopped: str
    suspended: dict[str, Any]
    error: str
    hint: str
    stdout: Stdout
    stderr: Stdout
    not_compared: list[NotCompared]
    exit: ExitPair
    tokens: Tokens
    cost: Cost
    sockets_denied: list[str]
    sandbox: Sandbox
    level: Level
    warm_up: WarmUp
    duration_ms: int
    recorded_duration_ms: int
    plan: dict[str, Any]


def first_cause(verdict: Verdict) -> Divergence | None:
    """The one divergence to look at: the first that is not downstream of another; pure."""
    divergences = verdict.get("divergences") or []
    for divergence in divergences:
        if not divergence.get("downstream"):
            return divergence
    return divergences[0] if divergences else None
