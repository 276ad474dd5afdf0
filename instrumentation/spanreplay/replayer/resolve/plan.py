"""The plan of a replay: which calls are served, which run live, which values are changed, and where the replay ends.

    Plan().stub("llm").live("tool:get_*").override("tool:get_price[2]", value=12.5)
    spanreplay replay RUN --stub llm --live 'tool:get_*' --set 'tool:get_price[2].response = 12.5' -- CMD

`selector` explains selectors, `patch` explains patches. If several rules match a call, the most specific wins: first
one with a condition, then one with a number, with a lane, with the longest pattern. `stub` wins a tie.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from spanreplay.model.call import CallRecord
from spanreplay.model.errors import ConfigError
from spanreplay.replayer.resolve.budget import Budget, Price, parse_price
from spanreplay.replayer.resolve.continuation import Resume
from spanreplay.runtime.edits.patch import Patch, parse_patch, set_response
from spanreplay.runtime.edits.selector import Selector, parse_selector

STUB, LIVE, RERUN = "stub", "live", "rerun"
STOP, SERVE = "stop", "serve"
COMPARABLE = ("stderr",)
"""Outputs that are compared only on request."""
ON_CHANGE = (STOP, SERVE, LIVE)
RULES_MAX: Final = 200
_STRENGTH: Final = {STUB: 2, RERUN: 1}
_UNSET: Final = object()


@dataclass(frozen=True)
class Rule:
    """One line of a plan; `action` is stub, live or rerun; in rules about changed calls it is stop, serve or live."""

    action: str
    selector: Selector
    when: Callable[[PlannedCall], bool] | None = None

    @property
    def weight(self) -> tuple[Any, ...]:
        """The specificity that decides between rules that match the same call."""
        return self.when is not None, *self.selector.weight, _STRENGTH.get(self.action, 0)

    @property
    def is_general(self) -> bool:
        """Whether the rule applies to all calls of a boundary."""
        return self.when is None and not self.selector.is_numbered and not self.selector.lane


@dataclass(frozen=True, init=False, repr=False)
class Plan:
    """Which calls are served and which run live; immutable: every method returns a new plan.

    `on_change` says what to do with a call that differs from the recorded one: `stop` (raise), `serve` the recorded
    answer by position, or go `live`. `is_strict` refuses an incomplete recording and a call that has moved.
    `stop_at` is the number of a recorded call before which the replay ends (0: it doesn't end early).
    """

    rules: tuple[Rule, ...]
    on_change: str
    changes: tuple[Rule, ...]
    patches: tuple[Patch, ...]
    is_strict: bool
    allows_tokens: bool
    compares: tuple[str, ...]
    takes_environment: bool
    stop_at: int
    is_break: bool
    dap: str
    is_stepped: bool
    budget: Budget | None
    resume: Resume | None

    def __init__(
        self,
        *,
        stub: tuple[str, ...] | list[str] = (),
        live: tuple[str, ...] | list[str] = (),
        rerun: tuple[str, ...] | list[str] = (),
        on_change: str = STOP,
        is_strict: bool = False,
        stop_at: int = 0,
    ) -> None:
        given = ((STUB, stub), (LIVE, live), (RERUN, rerun))
        rules = [Rule(action, parse_selector(s)) for action, selectors in given for s in selectors]
        fields: dict[str, Any] = {
            "rules": tuple(rules),
            "on_change": _checked(on_change),
            "changes": (),
            "patches": (),
            "is_strict": is_strict,
            "allows_tokens": False,
            "compares": (),
            "takes_environment": True,
            "stop_at": stop_at,
            "is_break": False,
            "dap": "",
            "is_stepped": False,
            "budget": None,
            "resume": None,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check()

    def __repr__(self) -> str:
        """The plan as a program writes it; what its methods for calls and patches don't say follows as a dict."""
        said = [f".{rule.action}({_shown(rule)!r})" for rule in self.rules]
        said += [f".changed({self.on_change!r})"] if self.on_change != STOP else []
        said += [f".changed({rule.action!r}, {str(rule.selector)!r})" for rule in self.changes]
        said += [f".set({', '.join(repr(patch.text) for patch in self.patches)})"] if self.patches else []
        rest = {k: v for k, v in self.describe().items() if k not in (STUB, LIVE, RERUN, "on_change", "changes", "set")}
        return f"Plan(){''.join(said)}{f' with {rest}' if rest else ''}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same in IPython and in Hypothesis, which otherwise list a dataclass's fields."""
        printer.text(repr(self))

    def _check(self) -> None:
        count = len(self.rules) + len(self.changes) + len(self.patches)
        if count > RULES_MAX:
            raise ConfigError(f"a plan has at most {RULES_MAX} patterns, not {count}")

    def _with(self, **fields: Any) -> Plan:
        made = object.__new__(Plan)
        for name in self.__dataclass_fields__:
            object.__setattr__(made, name, fields.get(name, getattr(self, name)))
        made._check()
        return made

    # ── what a user calls ───────────────────────────────────────────────────────────────────────────────
    def stub(self, *selectors: str, when: Callable[[PlannedCall], bool] | None = None) -> Plan:
        """Serve these calls from the recording. `when` is called for each call and returns whether the rule applies."""
        return self._rule(STUB, selectors, when)

    def live(self, *selectors: str, when: Callable[[PlannedCall], bool] | None = None) -> Plan:
        """Let these calls run for real. `when` is called for each call and returns whether the rule applies."""
        return self._rule(LIVE, selectors, when)

    def rerun(self, *selectors: str, when: Callable[[PlannedCall], bool] | None = None) -> Plan:
        """Run the code of these tools again, in the sandbox: the calls that it makes are served and compared."""
        return self._rule(RERUN, selectors, when)

    def _rule(self, action: str, selectors: tuple[str, ...], when: Any) -> Plan:
        if not selectors:
            raise ConfigError(f"{action}() needs a selector", hint=f"for example {action}('tool:get_*')")
        return self._with(rules=(*self.rules, *(Rule(action, parse_selector(s), when) for s in selectors)))

    def changed(self, action: str, *selectors: str) -> Plan:
        """Choose how to treat calls that differ from the recorded ones (stop, serve or live): these calls, or all."""
        _checked(action)
        if not selectors:
            return self._with(on_change=action)
        return self._with(changes=(*self.changes, *(Rule(action, parse_selector(s)) for s in selectors)))

    def set(self, *patches: str) -> Plan:
        """Change fields of requests or responses, as `--set` does: 'llm[3].system += "ask first"'."""
        return self._with(patches=(*self.patches, *map(parse_patch, patches)))

    def answered(self, answers: Sequence[Patch]) -> Plan:
        """Serve what other services answer now; each answer is a patch of `set_answer`."""
        return self._with(patches=(*self.patches, *answers))

    def override(self, selector: str, *, value: Any = _UNSET, error: BaseException | None = None) -> Plan:
        """Serve another result: a value, or an exception to raise. Raises: ConfigError, Unserializable."""
        if (value is _UNSET) == (error is None):
            raise ConfigError("override() takes either a value or an error")
        patch = set_response(parse_selector(selector), None if value is _UNSET else value, error)
        return self._with(patches=(*self.patches, patch))

    def limit(self, max_cost: float, prices: Mapping[str, tuple[float, float]] | None = None) -> Plan:
        """Stop before live model calls have cost more than this many US dollars.

        `prices` are US dollars per million tokens, (in, out), by model; model names may contain `*` and `?`.
        """
        own = tuple(Price(model, *pair) for model, pair in (prices or {}).items())
        return self._with(budget=Budget(max_cost, own))

    def strict(self, is_strict: bool = True) -> Plan:
        """Refuse an incomplete recording, and stop at a call that has moved."""
        return self._with(is_strict=is_strict)

    def allow_tokens(self, allows_tokens: bool = True) -> Plan:
        """Let live calls send the recording's tokens, which stand for hidden values; the verdict lists them."""
        return self._with(allows_tokens=allows_tokens)

    def compare(self, *what: str) -> Plan:
        """Also compare optional outputs: "stderr". Raises: ConfigError for anything else."""
        for each in what:
            if each not in COMPARABLE:
                raise ConfigError(f"compare: {each!r} is not one of {', '.join(COMPARABLE)}")
        return self._with(compares=tuple(dict.fromkeys((*self.compares, *what))))

    def without_recorded_env(self) -> Plan:
        """Don't give the agent the recorded variables and `.env` files."""
        return self._with(takes_environment=False)

    def go_on(self, resume: Resume) -> Plan:
        """Continue, live and recorded, where the recording ends."""
        return self._with(resume=resume)

    def to(self, call: int, *, is_break: bool = False) -> Plan:
        """End the replay before the recorded call with this number is answered, or call `breakpoint()` there."""
        return self._with(stop_at=call, is_break=is_break)

    def step(self) -> Plan:
        """Show each call at the terminal before it is answered, and wait for a command."""
        return self._with(is_stepped=True)

    # ── what a replay calls ─────────────────────────────────────────────────────────────────────────────
    def is_live(self, boundary: str) -> bool:
        """Whether all calls of a boundary, `kind:name`, run live."""
        found = [r for r in self.rules if r.is_general and r.selector.matches(boundary, "")]
        return bool(found) and max(found, key=lambda r: r.weight).action == LIVE

    def may_go_live(self, boundary: str) -> bool:
        """Whether any call of a boundary could run live."""
        if self.on_change == LIVE:
            return True
        rules = (r for r in (*self.rules, *self.changes) if r.action == LIVE)
        return any(_matches_somewhere(r.selector, boundary) for r in rules)

    @property
    def lets_go_live(self) -> bool:
        """Whether any call at all could run live."""
        return self.on_change == LIVE or any(r.action == LIVE for r in (*self.rules, *self.changes))

    @property
    def runs_again(self) -> bool:
        """Whether the code of any tool runs again."""
        return any(r.action == RERUN for r in self.rules)

    def describe(self) -> dict[str, Any]:
        """Return the form that a verdict contains."""
        described: dict[str, Any] = {
            STUB: [_shown(r) for r in self.rules if r.action == STUB],
            LIVE: [_shown(r) for r in self.rules if r.action == LIVE],
            "on_change": self.on_change,
        }
        if self.runs_again:
            described[RERUN] = [_shown(r) for r in self.rules if r.action == RERUN]
        if self.changes:
            described["changes"] = [f"{r.selector}={r.action}" for r in self.changes]
        if self.patches:
            described["set"] = [p.text for p in self.patches]
        if self.is_strict:
            described["strict"] = True
        if self.allows_tokens:
            described["allow_tokens"] = True
        if self.compares:
            described["compare"] = list(self.compares)
        if not self.takes_environment:
            described["recorded_env"] = False
        if self.stop_at:
            described["to"] = self.stop_at
        if self.budget is not None:
            described["max_cost_usd"] = self.budget.max_cost_usd
        return described

    def to_json(self) -> str:
        """Return the form for SPANREPLAY_REPLAY_PLAN. Raises: ConfigError if the plan contains a condition."""
        if any(r.when is not None for r in self.rules):
            raise ConfigError("a plan with a condition works in its own process only", hint="leave out `when`")
        value: dict[str, Any] = {
            STUB: [str(r.selector) for r in self.rules if r.action == STUB],
            LIVE: [str(r.selector) for r in self.rules if r.action == LIVE],
            RERUN: [str(r.selector) for r in self.rules if r.action == RERUN],
            "on_change": self.on_change,
            "changes": [[r.action, str(r.selector)] for r in self.changes],
            "set": [p.to_json() for p in self.patches],
            "is_strict": self.is_strict,
            "allows_tokens": self.allows_tokens,
            "compares": self.compares,
            "takes_environment": self.takes_environment,
            "stop_at": self.stop_at,
            "is_break": self.is_break,
            "dap": self.dap,
            "is_stepped": self.is_stepped,
        }
        if self.budget is not None:
            value["budget"] = self.budget.to_json()
        if self.resume is not None:
            value["resume"] = self.resume.to_json()
        return json.dumps(value)


def _checked(on_change: str) -> str:
    if on_change not in ON_CHANGE:
        raise ConfigError(f"on-change {on_change!r} is not one of {', '.join(ON_CHANGE)}")
    return on_change


def _matches_somewhere(selector: Selector, boundary: str) -> bool:
    return replace(selector, lane="").matches(boundary, "")


def _shown(rule: Rule) -> str:
    return f"{rule.selector} when {_name_of(rule.when)}" if rule.when is not None else str(rule.selector)


def _name_of(condition: Any) -> str:
    return str(getattr(condition, "__qualname__", type(condition).__qualname__))


def build_plan(
    *,
    stub: tuple[str, ...] = (),
    live: tuple[str, ...] = (),
    rerun: tuple[str, ...] = (),
    on_change: str | tuple[str, ...] = STOP,
    patches: tuple[str, ...] = (),
    max_cost: float | None = None,
    prices: tuple[str, ...] = (),
    is_strict: bool = False,
    allows_tokens: bool = False,
    compares: tuple[str, ...] = (),
    takes_environment: bool = True,
    stop_at: int = 0,
    is_break: bool = False,
    dap: str = "",
    is_stepped: bool = False,
) -> Plan:
    """Build a checked plan from command-line arguments. Raises: ConfigError naming what can't be used.

    `on_change` is a word, or several of WORD and SELECTOR=WORD.
    """
    plan = Plan(stub=stub, live=live, rerun=rerun, is_strict=is_strict, stop_at=stop_at)
    for item in (on_change,) if isinstance(on_change, str) else on_change:
        selector, equals, action = item.rpartition("=")
        plan = plan.changed(action, selector) if equals else plan.changed(item)
    if patches:
        plan = plan.set(*patches)
    plan = plan._with(is_break=is_break or bool(dap), dap=dap, is_stepped=is_stepped, allows_tokens=allows_tokens)
    plan = plan.compare(*compares)._with(takes_environment=takes_environment)
    if plan.is_break and not stop_at:
        raise ConfigError("--break needs --to N: the call to break at")
    if max_cost is not None:
        plan = plan._with(budget=Budget(max_cost, tuple(map(parse_price, prices))))
    elif prices:
        raise ConfigError("--price has no effect without --max-cost")
    return plan


def read_plan(text: str) -> Plan:
    """Read a plan that `Plan.to_json` wrote; `@FILE` reads a file, '' is the default plan. Raises: ConfigError."""
    if not text:
        return Plan()
    try:
        value: Any = json.loads(Path(text[1:]).read_bytes() if text.startswith("@") else text)
    except OSError as exc:
        raise ConfigError(f"the replay plan {text} can't be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise ConfigError("the replay plan is not JSON") from exc
    if not isinstance(value, Mapping):
        raise ConfigError("the replay plan is not a JSON object")
    try:
        plan = Plan(
            stub=tuple(map(str, value.get(STUB, ()))),
            live=tuple(map(str, value.get(LIVE, ()))),
            rerun=tuple(map(str, value.get(RERUN, ()))),
            on_change=str(value.get("on_change", STOP)),
            is_strict=bool(value.get("is_strict")),
            stop_at=int(value.get("stop_at", 0)),
        )
        for action, selector in value.get("changes", ()):
            plan = plan.changed(str(action), str(selector))
        patches = tuple(map(Patch.from_json, value.get("set", ())))
        budget = Budget.from_json(value["budget"]) if "budget" in value else None
        resume = Resume.from_json(value["resume"]) if "resume" in value else None
    except (TypeError, ValueError, KeyError) as exc:
        raise ConfigError(f"the replay plan is not one: {exc}") from exc
    return plan._with(
        patches=patches,
        budget=budget,
        resume=resume,
        allows_tokens=bool(value.get("allows_tokens")),
        compares=tuple(map(str, value.get("compares", ()))),
        takes_environment=bool(value.get("takes_environment", True)),
        is_break=bool(value.get("is_break")),
        dap=str(value.get("dap", "")),
        is_stepped=bool(value.get("is_stepped")),
    )


@dataclass(frozen=True)
class PlannedCall:
    """One call of the replay, as a rule's condition sees it; `recorded` is its counterpart, if any."""

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
        """A tool's arguments by name, as JSON; empty for calls without arguments."""
        request = self.request
        found = request.get("arguments") if isinstance(request, dict) else None
        return found if isinstance(found, dict) else {}
