"""Model drift over many runs: equal requests that another model or serving stack answers, or that get other answers.

`fold_recordings` scans recordings one by one; `report_drift` reports the findings of that scan or of a store's query.
Both are pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spanreplay.model.call import CallRecord, Kind, Outcome, Recording
from spanreplay.model.serving_stack import STATED, list_changed

__all__ = [
    "Answer",
    "DriftEvent",
    "DriftQuery",
    "DriftReport",
    "DriftScan",
    "OutputDrift",
    "StackAnswers",
    "fold_recordings",
    "report_drift",
]

ITEMS_MAX: Final = 200_000
"""Serving stacks and outputs that a fold remembers; the least recently seen key is forgotten first."""
KEYS_FOUND_MAX: Final = 1000
"""Keys with more than one serving stack or output that are reported."""
STACKS_MAX: Final = 16
"""Serving stacks of one key that are distinguished."""
OUTPUTS_MAX: Final = 1000
"""Outputs of one key and stack that are distinguished."""
FIRSTS_MAX: Final = 4
"""Outputs of one key and stack whose first answer is kept."""
MODEL_KINDS: Final = (Kind.LLM.value, Kind.EMBEDDING.value)
SAMPLING, UNEXPLAINED = "sampling", "unexplained"
_CAUSE: Final = {"response_model": "model", "fingerprint": "fingerprint", "determinism": "determinism"}


@dataclass(frozen=True)
class DriftQuery:
    """A selection of runs; times are nanoseconds since the epoch, 0 and '' match every run."""

    since_ns: int = 0
    until_ns: int = 0
    app: str = ""
    include_replays: bool = False


@dataclass(frozen=True)
class Answer:
    """One recorded answer: its call, and a hash of its output ('' if unknown)."""

    run_id: str
    call: int
    span_id: str
    start_ns: int
    output: str = ""


@dataclass(frozen=True)
class StackAnswers:
    """All answers of one serving stack to one request; `firsts` has the first answer per output, oldest first."""

    key: str
    boundary: str
    model: str
    temperature: float | None
    response_model: str
    fingerprint: str
    determinism: str
    answers: int
    outputs: int
    firsts: tuple[Answer, ...]

    @property
    def first(self) -> Answer:
        """The oldest answer."""
        return self.firsts[0]

    @property
    def stated(self) -> dict[str, str]:
        """The server's statements about itself, keyed like the members of a call's meta."""
        return {name: getattr(self, name) for name, _ in STATED}


@dataclass(frozen=True)
class DriftScan:
    """Counts of what was scanned, and every key with more than one serving stack or output."""

    runs: int = 0
    answers: int = 0
    keys: int = 0
    found: tuple[StackAnswers, ...] = ()
    left_out: int = 0
    """Keys with a finding that are not reported, and keys forgotten before there was one."""


@dataclass(frozen=True)
class DriftEvent:
    """A change of serving stack between equal requests; `before` and `after` are the oldest of `keys` such pairs."""

    before: StackAnswers
    after: StackAnswers
    changed: tuple[str, ...]
    keys: int = 1


@dataclass(frozen=True)
class OutputDrift:
    """A request with more than one output; `cause` is sampling, model, fingerprint, determinism or unexplained."""

    key: str
    boundary: str
    model: str
    temperature: float | None
    answers: int
    outputs: int
    cause: str
    pair: tuple[Answer, Answer]


@dataclass(frozen=True)
class DriftReport:
    """Events, oldest first; output drifts, most outputs first."""

    scan: DriftScan
    events: tuple[DriftEvent, ...]
    outputs: tuple[OutputDrift, ...]


@dataclass
class _Stack:
    """The answers of one serving stack to one key so far."""

    named: StackAnswers
    answers: int = 0
    firsts: dict[str, Answer] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def add(self, answer: Answer) -> bool:
        """Count an answer; return whether its output is new and remembered."""
        self.answers += 1
        if len(self.firsts) < FIRSTS_MAX:
            self.firsts.setdefault(answer.output, answer)
        is_new = bool(answer.output) and answer.output not in self.seen and len(self.seen) < OUTPUTS_MAX
        if is_new:
            self.seen.add(answer.output)
        return is_new

    def describe(self) -> StackAnswers:
        firsts = tuple(sorted(self.firsts.values(), key=lambda a: a.start_ns))
        return replace(self.named, answers=self.answers, outputs=len(self.seen), firsts=firsts)


def _name(call: CallRecord) -> StackAnswers:
    """The key and the serving stack of a call, with no answers yet."""
    temperature = call.meta.get("temperature")
    return StackAnswers(
        key=call.key,
        boundary=call.boundary,
        model=str(call.meta.get("model") or ""),
        temperature=temperature if isinstance(temperature, (int, float)) else None,
        response_model=str(call.meta.get("response_model") or ""),
        fingerprint=str(call.meta.get("fingerprint") or ""),
        determinism=str(call.meta.get("determinism") or ""),
        answers=0,
        outputs=0,
        firsts=(),
    )


_Stacks = dict[tuple[str, ...], _Stack]


class _Fold:
    """Keys ordered by when they were last seen, each with its serving stacks."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._items = 0
        self._runs = self._answers = self._keys_seen = 0
        self._keys_found = self._keys_forgotten = 0
        self._keys: OrderedDict[str, _Stacks] = OrderedDict()
        self._found: list[StackAnswers] = []

    def add(self, recording: Recording) -> None:
        """Add one run."""
        calls = [c for c in recording.calls if c.kind in MODEL_KINDS and c.outcome == Outcome.OK.value and c.key]
        self._runs += bool(calls)
        self._answers += len(calls)
        for call in calls:
            self._add_call(recording.run_id, call)
            while self._items > self._items_max and len(self._keys) > 1:
                self._forget(self._keys.popitem(last=False)[1])

    def _add_call(self, run_id: str, call: CallRecord) -> None:
        stacks = self._keys.get(call.key)
        if stacks is None:
            self._keys_seen += 1
            stacks = self._keys[call.key] = {}
        self._keys.move_to_end(call.key)
        named = _name(call)
        name = tuple(named.stated.values())
        if name not in stacks:
            if len(stacks) >= STACKS_MAX:
                return
            stacks[name] = _Stack(named)
            self._items += 1
        output = str(call.meta.get("output_hash") or "")
        self._items += stacks[name].add(Answer(run_id, call.number, call.span_id, call.start_ns, output))

    def _forget(self, stacks: _Stacks) -> None:
        self._items -= sum(1 + len(stack.seen) for stack in stacks.values())
        self._keys_forgotten += not self._settle(stacks)

    def _settle(self, stacks: _Stacks) -> bool:
        """Return whether a key has a finding; keep the finding if there is room."""
        outputs = {output for stack in stacks.values() for output in stack.seen}
        is_found = len(stacks) > 1 or len(outputs) > 1
        self._keys_found += is_found
        if is_found and self._keys_found <= KEYS_FOUND_MAX:
            self._found.extend(stack.describe() for stack in stacks.values())
        return is_found

    def finish(self) -> DriftScan:
        """Return all findings."""
        for stacks in self._keys.values():
            self._settle(stacks)
        left_out = self._keys_forgotten + max(0, self._keys_found - KEYS_FOUND_MAX)
        return DriftScan(self._runs, self._answers, self._keys_seen, tuple(self._found), left_out)


def fold_recordings(recordings: Iterable[Recording], query: DriftQuery, *, items_max: int = ITEMS_MAX) -> DriftScan:
    """Scan runs for equal requests to models; `recordings` come oldest first, one in memory at a time."""
    fold = _Fold(items_max)
    for recording in recordings:
        root = recording.root
        is_early = bool(query.since_ns) and root.start_ns < query.since_ns
        is_late = bool(query.until_ns) and root.start_ns > query.until_ns
        is_other = bool(query.app) and root.app != query.app
        if not (is_early or is_late or is_other or (root.replay_of and not query.include_replays)):
            fold.add(recording)
    return fold.finish()


def report_drift(scan: DriftScan) -> DriftReport:
    """The events and output drifts of a scan."""
    by_key: dict[str, list[StackAnswers]] = {}
    for stack in scan.found:
        by_key.setdefault(stack.key, []).append(stack)
    events: dict[tuple[Any, ...], DriftEvent] = {}
    outputs: list[OutputDrift] = []
    for stacks in by_key.values():
        stacks.sort(key=lambda s: s.first.start_ns)
        for event in _find_events(stacks):
            _merge(events, event)
        outputs += _find_outputs(stacks)
    outputs.sort(key=lambda o: (-o.outputs, o.pair[0].start_ns))
    ordered = sorted(events.values(), key=lambda e: e.after.first.start_ns)
    return DriftReport(scan, tuple(ordered), tuple(outputs))


def _find_events(stacks: Sequence[StackAnswers]) -> Iterator[DriftEvent]:
    """Each serving stack of a key that differs from all earlier ones."""
    known = [stacks[0]]
    for stack in stacks[1:]:
        changes = [list_changed(before.stated, stack.stated) for before in known]
        if all(changes):
            yield DriftEvent(known[-1], stack, tuple(changes[-1]))
        known.append(stack)


def _merge(events: dict[tuple[Any, ...], DriftEvent], event: DriftEvent) -> None:
    """Count one change of a model's serving stack once, however many requests show it and in either direction."""
    sides = frozenset(tuple(side.stated.values()) for side in (event.before, event.after))
    name = (event.before.boundary, event.before.model, sides)
    known = events.get(name)
    if known is not None:
        oldest = min(known, event, key=lambda e: e.after.first.start_ns)
        event = replace(oldest, keys=known.keys + 1)
    events[name] = event


def _find_outputs(stacks: Sequence[StackAnswers]) -> Iterator[OutputDrift]:
    """The drift of a key's outputs, if it has several."""
    firsts: dict[str, Answer] = {}
    for stack in stacks:
        for answer in stack.firsts:
            if answer.output:
                firsts.setdefault(answer.output, answer)
    if len(firsts) < 2:
        return
    first, second, *_ = sorted(firsts.values(), key=lambda a: a.start_ns)
    yield OutputDrift(
        key=stacks[0].key,
        boundary=stacks[0].boundary,
        model=stacks[0].model,
        temperature=stacks[0].temperature,
        answers=sum(stack.answers for stack in stacks),
        outputs=max(len(firsts), *(stack.outputs for stack in stacks)),
        cause=_cause(stacks),
        pair=(first, second),
    )


def _cause(stacks: Sequence[StackAnswers]) -> str:
    """Sampling if the temperature allows it; else the stack change if each stack has one output; else unexplained."""
    if stacks[0].temperature is None or stacks[0].temperature > 0:
        return SAMPLING  # without a temperature the provider's default applies, which is above zero
    if all(stack.outputs <= 1 for stack in stacks):
        for event in _find_events(stacks):
            return _CAUSE[event.changed[0]]
    return UNEXPLAINED
