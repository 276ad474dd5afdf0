"""A plan applied to one recording: it decides what happens to each call of the replay.

The numbers in a selector are those of recorded calls, regardless of the order in the replay; they are looked up once,
before the agent starts. A patch that doesn't fit the recording is refused then.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import CallRecord, Kind, Outcome, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.model.keyspec import KEYSPECS
from spanreplay.model.lane_names import is_earlier
from spanreplay.replayer.resolve.budget import is_paid
from spanreplay.replayer.resolve.plan import SERVE, STUB, Plan, PlannedCall, Rule
from spanreplay.runtime.edits.apply_patch import patch_request, patch_response
from spanreplay.runtime.edits.patch import REQUEST, RESPONSE, Patch
from spanreplay.runtime.edits.selector import Selector

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing

_MODELS: Final = ("llm", "embedding")
_READ: Final = ("clock", "random", "*")
_NAMES_SHOWN_MAX: Final = 5


@dataclass(frozen=True)
class Direction:
    """What to do with one call."""

    action: str = STUB
    on_change: str = "stop"
    requests: tuple[Patch, ...] = ()
    responses: tuple[Patch, ...] = ()


class Numbers:
    """The numbers of a recording's calls under each selector."""

    def __init__(self, recording: Recording, selectors: Iterable[Selector]) -> None:
        numbered = [s for s in dict.fromkeys(selectors) if s.is_numbered]
        self._numbers: dict[Selector, dict[int, int]] = {s: {} for s in numbered}
        self._extra: dict[Selector, dict[int, int]] = {s: {} for s in numbered}
        for call in (c for c in recording.calls if not is_earlier(c.lane)):
            for selector in numbered:
                if selector.matches(call.boundary, call.lane):
                    found = self._numbers[selector]
                    found[call.seq] = len(found) + 1

    def has(self, selector: Selector, call: CallRecord | None, seq: int = 0) -> bool:
        """Whether a selector includes a call's number; calls without a counterpart (`seq` in the replay) count on."""
        if not selector.is_numbered:
            return True
        numbers = self._numbers[selector]
        if call is not None:
            number = numbers.get(call.seq, 0)
            return bool(number) and selector.has(number, len(numbers))
        extra = self._extra[selector]
        return selector.has(len(numbers) + extra.setdefault(seq, len(extra) + 1), len(numbers))


class Directions:
    """Decides about calls; the session's lock guards it. Raises: ConfigError if a patch doesn't fit."""

    def __init__(self, plan: Plan, recording: Recording) -> None:
        self.plan = plan
        self.asked: dict[int, str] = {}
        """Number of each recorded HTTP request that is served although it differs → the current request, redacted."""
        self._default = Direction(on_change=plan.on_change)
        self._is_plain = not (plan.rules or plan.changes or plan.patches)
        selectors = [r.selector for r in (*plan.rules, *plan.changes)] + [p.selector for p in plan.patches]
        self._numbers = Numbers(recording, selectors)
        is_fork = plan.resume is not None and plan.resume.forked_at
        for patch in () if is_fork else plan.patches:  # those of a fork are about calls beyond it, and checked before
            self._check(patch, recording)
        if plan.budget is not None:
            self._check_prices(recording)

    def decide(self, crossing: Crossing, call: CallRecord | None) -> Direction:
        """Return the plan's decision about a call; `call` is its recorded counterpart, if any."""
        if self._is_plain:
            return self._default
        boundary, lane = crossing.boundary, crossing.lane.path
        if is_earlier(lane):  # a plan applies to the judged unit
            return Direction()
        rule = self._strongest(self.plan.rules, crossing, call)
        change = self._strongest(self.plan.changes, crossing, call)
        if change is not None and change.action == SERVE:
            self._note_asked(crossing, call)
        patches = [
            p
            for p in self.plan.patches
            if p.selector.matches(boundary, lane) and self._numbers.has(p.selector, call, crossing.seq)
        ]
        return Direction(
            action=STUB if rule is None else rule.action,
            on_change=self.plan.on_change if change is None else change.action,
            requests=tuple(p for p in patches if p.side == REQUEST),
            responses=tuple(p for p in patches if p.side == RESPONSE),
        )

    def _note_asked(self, crossing: Crossing, call: CallRecord | None) -> None:
        if call is not None and call.kind == Kind.HTTP.value and call.key != crossing.key_hex:
            self.asked[call.number] = crossing.spec.request

    def _strongest(self, rules: tuple[Rule, ...], crossing: Crossing, call: CallRecord | None) -> Rule | None:
        boundary, lane = crossing.boundary, crossing.lane.path
        found: Rule | None = None
        for rule in rules:
            if not rule.selector.matches(boundary, lane) or not self._numbers.has(rule.selector, call, crossing.seq):
                continue
            if rule.when is not None and not rule.when(_view(crossing, call)):
                continue
            if found is None or rule.weight > found.weight:
                found = rule
        return found

    # ── before the agent starts ─────────────────────────────────────────────────────────────────────
    def _check(self, patch: Patch, recording: Recording) -> None:
        calls = [c for c in recording.calls if not is_earlier(c.lane)]
        matching = [c for c in calls if patch.selector.matches(c.boundary, c.lane)]
        meant = [c for c in matching if self._numbers.has(patch.selector, c)]
        if not meant:
            count = f"only {len(matching)}" if matching else "none"
            which = Selector(patch.selector.boundary, patch.selector.lane)
            raise patch.fail(f"the recording has no such call, {count} of {which}", -99)
        for call in meant:
            if patch.side == REQUEST:
                patched = patch_request(call.request, [patch], is_model=call.kind in _MODELS)
                _check_argument(patch, call.request, patched)
            elif call.outcome != Outcome.OPEN.value:
                patch_response(call.response, call.outcome, [patch])

    def _check_prices(self, recording: Recording) -> None:
        budget = self.plan.budget
        if budget is None:
            return
        for call in recording.calls:
            if is_paid(call.kind) and call.meta.get("model") and self.plan.may_go_live(call.boundary):
                budget.find_price(str(call.meta["model"]))


def _check_argument(patch: Patch, recorded: str, patched: str) -> None:
    """Refuse an argument that the recorded function call didn't have. Raises: ConfigError."""
    before, after = (_arguments_of(text) for text in (recorded, patched))
    new = sorted(after.keys() - before.keys())
    if new:
        known = ", ".join(before) or "none"
        raise patch.fail(f"the call has no argument {new[0]!r}; its arguments are {known}", 0)


def _arguments_of(request: str) -> dict[str, Any]:
    value = json.loads(request)
    found = value.get("arguments") if isinstance(value, dict) and "method" not in value else None
    return found if isinstance(found, dict) else {}


def _check_rule(selector: Selector, recording: Recording) -> None:
    """Refuse a selector that matches no recorded call; clocks and random values are read, not called."""
    if selector.boundary.startswith(_READ) or any(selector.matches(c.boundary, c.lane) for c in recording.calls):
        return
    known = list(dict.fromkeys(c.boundary for c in recording.calls))
    near = difflib.get_close_matches(selector.boundary, known, n=_NAMES_SHOWN_MAX, cutoff=0.5) or known
    more = f" and {len(known) - _NAMES_SHOWN_MAX} more" if len(near) > _NAMES_SHOWN_MAX else ""
    shown = ", ".join(near[:_NAMES_SHOWN_MAX]) + more
    raise ConfigError(
        f"{str(selector)!r} fits no recorded call; the recording has {shown or 'none'}",
        hint="'*' also names the calls that the recording lacks",
    )


def _view(crossing: Crossing, call: CallRecord | None) -> PlannedCall:
    spec = crossing.spec
    return PlannedCall(
        kind=spec.kind,
        name=spec.name,
        lane=crossing.lane.path,
        index=crossing.index,
        effect=spec.effect,
        call_id=spec.call_id,
        code=crossing.code,
        request_text=spec.request,
        recorded=call,
    )


def check_strict(plan: Plan, recording: Recording) -> None:
    """Refuse a strict replay of an incomplete recording, listing its holes. Raises: ConfigError."""
    completeness = recording.completeness()
    if not plan.is_strict or plan.stop_at or completeness.is_complete:
        return
    holes = "\n".join(completeness.reasons)
    raise ConfigError(
        f"the recording is incomplete, and the plan is strict\n{holes}",
        hint="without strict() it is replayed up to its first hole; to(N) ends the replay before call N",
    )


def check_plan(plan: Plan, recording: Recording) -> None:
    """Refuse a plan that doesn't fit the recording, before anything runs. Raises: ConfigError."""
    for rule in (*plan.rules, *plan.changes):
        _check_rule(rule.selector, recording)
    Directions(plan, recording)
    for each in plan.compares:
        if not isinstance(recording.root.manifest.get(each), dict):
            raise ConfigError(f"--compare {each}: the recording does not have it", hint="record the run again")
    if plan.stop_at and recording.calls and plan.stop_at > recording.calls[-1].number:
        last = recording.calls[-1].number
        raise ConfigError(
            f"--to {plan.stop_at}: the recording's last call is {last}", hint="spanreplay show lists them"
        )


def check_keys(recording: Recording) -> None:
    """Refuse a run with calls that no Python agent can make: one in another language would run live, not be replayed.

    Raises: ConfigError.
    """
    unknown = next((call.keyspec for call in recording.calls if call.keyspec and call.keyspec not in KEYSPECS), "")
    if unknown:
        raise ConfigError(
            f"run {recording.run_id} has calls whose keys are of {unknown!r}, which this spanreplay cannot make: "
            "the run was recorded in another language, or by a newer spanreplay",
            hint="replay it with a client in its language, see docs/other-languages.md; or upgrade spanreplay",
        )
