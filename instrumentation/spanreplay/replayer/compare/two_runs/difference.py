"""The difference between two recorded runs: schema run_diff/1; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.call import CallRecord, Kind, Outcome, Recording
from spanreplay.replayer.addresses import is_same_text
from spanreplay.replayer.compare import ignored
from spanreplay.replayer.compare.conversation import compare
from spanreplay.replayer.compare.findings import first_place
from spanreplay.replayer.compare.moving_parts import MODELS, part_of_kind, part_of_output, part_of_request
from spanreplay.replayer.compare.retrieval import compare_chunks
from spanreplay.replayer.compare.two_runs.align import Pair, align
from spanreplay.replayer.compare.two_runs.costs import CostDiff, compare_costs
from spanreplay.replayer.compare.two_runs.origin import Origins
from spanreplay.replayer.divergence import Cause, Change, Diff, comparable_response, diff_json
from spanreplay.replayer.resolve.budget import Price
from spanreplay.replayer.verdict import compare_stdout

__all__ = ["ADDED", "CHANGED", "DROPPED", "MOVED", "OTHER_OUTPUT", "SAME", "CallDiff", "RunDiff", "compare_runs"]

SCHEMA: Final = "run_diff/1"
SAME, CHANGED, OTHER_OUTPUT, ADDED, DROPPED, MOVED = "same", "changed", "other_output", "added", "dropped", "moved"
DIFFERENCES_MAX: Final = 500
"""The number of calls that are described; further ones are counted."""
_TRAJECTORY: Final = frozenset({CHANGED, ADDED, DROPPED})


@dataclass(frozen=True)
class CallDiff:
    """A call that differs between the runs.

    `change` is changed (different request), other_output (same request, different answer), added (only B has it),
    dropped (only A has it) or moved (same request in another lane or order).
    """

    change: str
    boundary: str
    a: int = 0
    """The number of the call in run A; 0: none."""
    b: int = 0
    lane: str = ""
    code: str = ""
    diff: tuple[Diff, ...] = ()
    part: str = ""
    """The one of the eight moving parts that differs."""
    turn: int = 0
    """For a conversation: the first turn that differs, counted from 1."""
    context: tuple[Change, ...] = ()
    chunks: tuple[Change, ...] = ()

    def describe(self) -> str:
        """Describe the difference in a few words."""
        if self.change == CHANGED:
            return first_place(self.diff)
        if self.change == OTHER_OUTPUT:
            return f"the same request was answered differently: {first_place(self.diff)}"
        words = {ADDED: "only B makes this call", DROPPED: "only A makes this call"}
        return words.get(self.change, "the same request in another lane, or in another order")


@dataclass(frozen=True)
class RunDiff:
    """All differences between two runs; `first` is the first call that differs, with its origins."""

    a: Recording
    b: Recording
    counts: dict[str, int]
    first: CallDiff | None
    causes: tuple[Cause, ...]
    differences: tuple[CallDiff, ...]
    output: dict[str, Any]
    cost: CostDiff
    reasons: tuple[str, ...]
    """Why the recording of one of the runs is incomplete."""

    @property
    def is_same(self) -> bool:
        """Whether both runs made the same calls, got the same answers and produced the same output."""
        ends = (
            (self.a.root.outcome, self.a.root.manifest.get("exit")),
            (
                self.b.root.outcome,
                self.b.root.manifest.get("exit"),
            ),
        )
        return not self.differences and bool(self.output["equal"]) and ends[0] == ends[1]

    def to_json(self) -> dict[str, Any]:
        """Return the form of schema run_diff/1."""
        return {
            "schema": SCHEMA,
            "a": _run_to_json(self.a),
            "b": _run_to_json(self.b),
            "same": self.is_same,
            "counts": self.counts,
            "first": None if self.first is None else _to_json(self.first),
            "causes": [asdict(each) for each in self.causes],
            "differences": [_to_json(each) for each in self.differences],
            "stdout": self.output,
            "cost": self.cost.to_json(),
            "reasons": list(self.reasons),
        }


def compare_runs(a: Recording, b: Recording, *, only: str = "*", prices: tuple[Price, ...] = ()) -> RunDiff:
    """Compare two runs; `only` is a pattern of boundaries or kinds: `llm` or `tool:get_*`.

    Raises: ConfigError for a model without a price, if others have one.
    """
    calls_a, calls_b = (tuple(call for call in run.calls if _is_wanted(call, only)) for run in (a, b))
    pairs = align(calls_a, calls_b)
    keys = [run.root.env.get(names.REDACTION_KEY) for run in (a, b)]
    found = [_judge(pair, is_keyed_alike=keys[0] == keys[1]) for pair in pairs]
    counts = dict.fromkeys((SAME, CHANGED, OTHER_OUTPUT, ADDED, DROPPED, MOVED), 0)
    for each in found:
        counts[SAME if each is None else each.change] += 1
    at = _find_first(found)
    first: CallDiff | None = None
    causes: tuple[Cause, ...] = ()
    outputs = [i for i, each in enumerate(found) if each is not None and each.change == OTHER_OUTPUT]
    origins = Origins(a, b, pairs, outputs)
    if at is not None:
        first = found[at]
        assert first is not None
        causes = origins.explain(at, first.diff if first.change == CHANGED else ())
        first = _with_context(first, pairs[at])
    reasons = [f"{name}: {why}" for name, run in (("A", a), ("B", b)) for why in run.completeness().reasons]
    differences = [each for each in found if each is not None]
    output = compare_stdout(a.root.manifest.get("stdout"), dict(b.root.manifest.get("stdout") or {}))
    cost = compare_costs(calls_a, calls_b, prices)
    result = RunDiff(a, b, counts, first, causes, tuple(differences[:DIFFERENCES_MAX]), output, cost, tuple(reasons))
    return result if first is not None or result.is_same else replace(result, causes=origins.explain_end())


def _is_wanted(call: CallRecord, only: str) -> bool:
    return fnmatchcase(call.boundary, only) or fnmatchcase(call.kind, only)


def _find_first(found: Sequence[CallDiff | None]) -> int | None:
    """Return the first call with a different request, or made by one run only; else the first with another answer."""
    for changes in (_TRAJECTORY, frozenset({OTHER_OUTPUT}), frozenset({MOVED})):
        at = next((i for i, each in enumerate(found) if each is not None and each.change in changes), None)
        if at is not None:
            return at
    return None


def _judge(pair: Pair, *, is_keyed_alike: bool) -> CallDiff | None:
    call = pair.either
    place = CallDiff(
        SAME,
        call.boundary,
        a=pair.a.number if pair.a is not None else 0,
        b=pair.b.number if pair.b is not None else 0,
        lane=call.lane,
        code=call.code,
    )
    if pair.a is None or pair.b is None:
        return replace(place, change=ADDED if pair.a is None else DROPPED, part=part_of_kind(call.kind))
    asked = _diff_requests(pair.a, pair.b, is_keyed_alike=is_keyed_alike)
    if asked is not None:
        part = part_of_request(call.kind, asked, pair.a.request, pair.b.request)
        return replace(place, change=CHANGED, diff=asked, part=part)
    answered = _diff_answers(pair.a, pair.b)
    if answered:
        is_retrieval = call.kind == Kind.RETRIEVER.value
        chunks = compare_chunks(pair.a.response, pair.b.response) if is_retrieval else ()
        part = part_of_output(call.kind, pair.a.meta, pair.b.meta)
        return replace(place, change=OTHER_OUTPUT, diff=answered, part=part, chunks=chunks)
    return replace(place, change=MOVED) if pair.is_moved else None


def _diff_requests(a: CallRecord, b: CallRecord, *, is_keyed_alike: bool) -> tuple[Diff, ...] | None:
    """Return where the requests differ; None if they are the same, () if the difference can't be shown."""
    if a.key == b.key or (a.request and is_same_text(a.request, b.request)):
        return None
    diff, _ = ignored.split(a.keyspec, diff_json(a.request, b.request))
    # With two redaction keys, equal requests have different keys: then only parts outside the key differ
    return diff if diff or is_keyed_alike else None


def _diff_answers(a: CallRecord, b: CallRecord) -> tuple[Diff, ...]:
    if a.outcome != b.outcome and Outcome.OPEN.value not in (a.outcome, b.outcome):
        return (Diff("outcome", a.outcome, b.outcome), *diff_json(a.response, b.response))
    if a.response == b.response:
        return ()
    is_model = a.kind in MODELS
    return diff_json(comparable_response(a.response), comparable_response(b.response), is_model=is_model)


def _with_context(first: CallDiff, pair: Pair) -> CallDiff:
    if first.change != CHANGED or pair.a is None or pair.b is None or pair.b.kind != Kind.LLM.value:
        return first
    comparison = compare(pair.a.request, pair.b.request)
    return replace(first, turn=comparison.turn, context=comparison.changes)


def _run_to_json(run: Recording) -> dict[str, Any]:
    root = run.root
    return {
        "run_id": root.run_id,
        "app": root.app,
        "outcome": root.outcome,
        "exit": root.manifest.get("exit"),
        "calls": len(run.calls),
        "start_ns": root.start_ns,
        "duration_ms": max(0, root.end_ns - root.start_ns) // 1_000_000,
        "replay_of": root.replay_of,
        "user_id": root.user_id,
    }


def _to_json(each: CallDiff) -> dict[str, Any]:
    value = asdict(each)
    value["diff"] = [{k: v for k, v in d.items() if k != "at" or v >= 0} for d in value["diff"]]
    return {name: list(v) if isinstance(v, tuple) else v for name, v in value.items() if v or name in ("a", "b")}
