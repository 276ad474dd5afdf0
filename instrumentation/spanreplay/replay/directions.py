"""A plan applied to one recording: what is to happen with each call of the replay.

Numbers of a selector are those of recorded calls, whatever order the replay asks in; they are looked up once, before
the agent starts, and a patch that does not fit the recording is refused then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanreplay.call import CallRecord, Outcome, Recording
from spanreplay.errors import ConfigError
from spanreplay.replay.budget import is_paid
from spanreplay.replay.patch import REQUEST, RESPONSE, Patch
from spanreplay.replay.patched import patch_request, patch_response
from spanreplay.replay.plan import STUB, Plan, Rule
from spanreplay.replay.selector import Selector

if TYPE_CHECKING:
    from spanreplay.crossing import Crossing

_MODELS: Final = ("llm", "embedding")


@dataclass(frozen=True)
class Direction:
    """What to do with one call."""

    action: str = STUB
    on_change: str = "stop"
    requests: tuple[Patch, ...] = ()
    responses: tuple[Patch, ...] = ()


@dataclass(frozen=True)
class PlannedCall:
    """One call of the replay, as the condition of a rule sees it; `recorded` is its counterpart, if it has one."""

    kind: str
    name: str
    lane: str
    index: int
    effect: str
    call_id: str
    code: str
    request_text: str
    recorded: CallRecord | None = None

    @property
    def boundary(self) -> str:
        """Kind and name: `tool:delete_accounts`."""
        return f"{self.kind}:{self.name}"

    @property
    def request(self) -> Any:
        """The redacted request as a JSON value."""
        try:
            return json.loads(self.request_text)
        except ValueError:
            return self.request_text

    @property
    def arguments(self) -> dict[str, Any]:
        """A tool's arguments by name, as JSON; empty for calls that have none."""
        request = self.request
        found = request.get("arguments") if isinstance(request, dict) else None
        return found if isinstance(found, dict) else {}


class Numbers:
    """The numbers that a recording's calls have under each selector."""

    def __init__(self, recording: Recording, selectors: Iterable[Selector]) -> None:
        numbered = [s for s in dict.fromkeys(selectors) if s.is_numbered]
        self._numbers: dict[Selector, dict[int, int]] = {s: {} for s in numbered}
        self._extra: dict[Selector, dict[int, int]] = {s: {} for s in numbered}
        for call in recording.calls:
            for selector in numbered:
                if selector.matches(call.boundary, call.lane):
                    found = self._numbers[selector]
                    found[call.seq] = len(found) + 1

    def has(self, selector: Selector, call: CallRecord | None, seq: int = 0) -> bool:
        """Whether the number of a call is meant; calls without a counterpart, `seq` in the replay, are counted on."""
        if not selector.is_numbered:
            return True
        numbers = self._numbers[selector]
        if call is not None:
            number = numbers.get(call.seq, 0)
            return bool(number) and selector.has(number, len(numbers))
        extra = self._extra[selector]
        return selector.has(len(numbers) + extra.setdefault(seq, len(extra) + 1), len(numbers))


class Directions:
    """Decides about calls; the session's lock guards it. Raises: ConfigError where a patch does not fit."""

    def __init__(self, plan: Plan, recording: Recording) -> None:
        self.plan = plan
        self._default = Direction(on_change=plan.on_change)
        self._is_plain = not (plan.rules or plan.changes or plan.patches)
        selectors = [r.selector for r in (*plan.rules, *plan.changes)] + [p.selector for p in plan.patches]
        self._numbers = Numbers(recording, selectors)
        for patch in plan.patches:
            self._check(patch, recording)
        if plan.budget is not None:
            self._check_prices(recording)

    def decide(self, crossing: Crossing, call: CallRecord | None) -> Direction:
        """What the plan says about a call; `call` is its recorded counterpart, if there is one."""
        if self._is_plain:
            return self._default
        boundary, lane = crossing.boundary, crossing.lane.path
        rule = self._strongest(self.plan.rules, crossing, call)
        change = self._strongest(self.plan.changes, crossing, call)
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
        matching = [c for c in recording.calls if patch.selector.matches(c.boundary, c.lane)]
        meant = [c for c in matching if self._numbers.has(patch.selector, c)]
        if not meant:
            count = f"only {len(matching)}" if matching else "none"
            which = Selector(patch.selector.boundary, patch.selector.lane)
            raise patch.fail(f"the recording has no such call, {count} of {which}", -99)
        for call in meant:
            if patch.side == REQUEST:
                patch_request(call.request, [patch], is_model=call.kind in _MODELS)
            elif call.outcome != Outcome.OPEN.value:
                patch_response(call.response, call.outcome, [patch])

    def _check_prices(self, recording: Recording) -> None:
        budget = self.plan.budget
        if budget is None:
            return
        for call in recording.calls:
            if is_paid(call.kind) and call.meta.get("model") and self.plan.may_go_live(call.boundary):
                budget.find_price(str(call.meta["model"]))


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
    """Refuse a strict replay of an incomplete recording, with its holes. Raises: ConfigError."""
    completeness = recording.completeness()
    if not plan.is_strict or plan.stop_at or completeness.is_complete:
        return
    holes = "\n".join(completeness.reasons)
    raise ConfigError(
        f"the recording is incomplete, and the plan is strict\n{holes}",
        hint="without strict() it is replayed up to its first hole; to(N) ends the replay before call N",
    )


def check_plan(plan: Plan, recording: Recording) -> None:
    """Refuse a plan that does not fit the recording, before anything runs. Raises: ConfigError."""
    Directions(plan, recording)
    if plan.stop_at and recording.calls and plan.stop_at > recording.calls[-1].seq:
        last = recording.calls[-1].seq
        raise ConfigError(
            f"--to {plan.stop_at}: the recording's last call is {last}", hint="spanreplay show lists them"
        )
