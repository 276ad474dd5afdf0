"""The shape of a verdict as JSON, schema `divergence/1`; divergence-1.schema.json is the machine-readable version."""

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
    rerun: int
    changed: int
    extra: int
    missing: int
    covered: int
    downstream: int
    ignored_diffs: int
    not_asked: int
    start: int
    reordered: int


class Diff(TypedDict, total=False):
    """One field in which a call's request differs; `at` is the index of the first differing character."""

    path: str
    recorded: Any
    now: Any
    at: int


class Cause(TypedDict, total=False):
    """One piece of evidence for the cause of a difference; `strength` is value, place or beside."""

    kind: str
    evidence: str
    strength: str
    ref: str


class Candidate(TypedDict, total=False):
    """A similar recorded call, and the reason why it was not served."""

    seq: int
    call: int
    boundary: str
    lane: str
    index: int
    score: float
    why_rejected: str
    span_id: str


class Change(TypedDict, total=False):
    """A message or a chunk that was injected, dropped, changed or moved."""

    index: int
    name: str
    change: str


class IgnoredDiff(TypedDict, total=False):
    """A served call that differs in fields that are not part of its key."""

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
    """A part of the environment that differs from the recording."""

    name: str
    recorded: Any
    now: Any


class Code(TypedDict, total=False):
    """The commits of the recording and of now, and the agent's files that have changed."""

    recorded: str
    now: str
    changed_files: list[str]


class Stated(TypedDict, total=False):
    """The values that two servers state under one name; empty if not stated."""

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
    """The comparison of the process's standard output (or error)."""

    compared: bool
    equal: bool
    recorded_bytes: int
    bytes: int
    diff: str


class ExitPair(TypedDict, total=False):
    """Exit status recorded and now; None if not known."""

    recorded: int | None
    now: int | None


class Tokens(TypedDict, total=False):
    """Tokens that the recorded run paid for, and tokens that live calls used now."""

    recorded: int
    live: int


class Sandbox(TypedDict, total=False):
    """What stops native code from changing files: `kernel`, except in `free` folders, or `python`, with the reason."""

    files: str
    network: str
    free: list[str]
    why: str


class Cost(TypedDict, total=False):
    """The cost of live calls to models, in US dollars, and the limit."""

    live_usd: float
    max_usd: float
    exceeded: bool
    estimated: bool


class Unexercised(TypedDict, total=False):
    """A boundary that was served although its function, or code of which it asks models, may have changed."""

    boundary: str
    code: str
    calls: int
    inside: list[str]


class NotCompared(TypedDict, total=False):
    """Something that a replay does not compare, and why."""

    what: str
    names: list[str]
    why: str


class RecordedEnv(TypedDict, total=False):
    """Variables and `.env` files that the recorded run used: given by the replay, missing here, or different here."""

    given: list[str]
    files: list[str]
    missing: list[str]
    differing: list[str]
    unknown: list[str]
    machine: list[str]


class Level(TypedDict):
    """The level of a recording that is not `full`, and its limits in one sentence."""

    name: str
    leaves_open: str


class EarlierUnit(TypedDict):
    """A unit that was replayed first, and the reason if it was not replayed in full; empty if it was."""

    run_id: str
    why: str


class WarmUp(TypedDict, total=False):
    """Warm-up: the units to replay before the judged one, how many were replayed, and how many came before it."""

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
    """The main divergence: the first that is not downstream of another, else the first; pure."""
    divergences = verdict.get("divergences") or []
    for divergence in divergences:
        if not divergence.get("downstream"):
            return divergence
    return divergences[0] if divergences else None
