"""Plans: which boundaries run live, which values are overridden, and which plans are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model.errors import ConfigError, ReplayMiss
from spanreplay.replayer.resolve.budget import Budget, CostMeter, Price, parse_price
from spanreplay.replayer.resolve.plan import RULES_MAX, Plan, PlannedCall, build_plan, read_plan
from spanreplay.runtime.edits.selector import parse_selector
from support.replay_calls import Asked, Asker, record_calls


@pytest.mark.parametrize(
    ("stub", "live", "boundary", "is_live"),
    [
        ((), (), "tool:f", False),
        ((), ("tool",), "tool:f", True),
        ((), ("tool:*",), "llm:f", False),
        (("tool:delete*",), ("tool:*",), "tool:delete_row", False),
        (("tool:*",), ("tool:delete*",), "tool:delete_row", True),
        (("tool:*",), ("tool:*",), "tool:f", False),
        ((), ("tool:get_?",), "tool:get_a", True),
        ((), ("tool:get_?",), "tool:get_ab", False),
        ((), ("TOOL:*",), "tool:f", False),
        (("*:*",), ("http:POST 127.0.0.1*",), "http:POST 127.0.0.1:80", True),
    ],
    ids=["default", "kind", "other_kind", "longer_stub", "longer_live", "tie", "one", "two", "case", "host"],
)
def test_s2_longest_pattern_decides(stub: tuple[str, ...], live: tuple[str, ...], boundary: str, is_live: bool) -> None:
    """The longest matching pattern wins, and `stub` wins a tie."""
    assert build_plan(stub=stub, live=live).is_live(boundary) is is_live


@given(st.text(max_size=12))
def test_s27_nothing_is_live_without_a_pattern(boundary: str) -> None:
    """The default plan lets no call run live."""
    assert Plan().is_live(boundary) is False
    assert Plan().may_go_live(boundary) is False
    assert read_plan("").is_live(boundary) is False


@pytest.mark.parametrize("on_change", ["stop", "serve", "live"])
def test_plan_reads_what_it_wrote(on_change: str) -> None:
    """A plan passes through the environment unchanged."""
    plan = build_plan(
        stub=("llm:*", "tool:a@main/*[2..]"),
        live=("tool:a", "http", "llm[-1]"),
        rerun=("tool:c", "tool[2]"),
        on_change=(on_change, "tool:b=serve"),
        patches=('llm[3].system += "ask first"', "delete tool:f[*].x[0]"),
        max_cost=0.25,
        prices=("gpt-x=1,2",),
        is_strict=True,
        stop_at=7,
    ).override("tool:p[1]", value={"price": 2})
    assert read_plan(plan.to_json()) == plan
    assert json.loads(json.dumps(plan.describe())) == plan.describe()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '"x"',
        '{"on_change": "guess"}',
        '{"live": [""]}',
        '{"stub": [" "]}',
        '{"set": ["nothing"]}',
        '{"set": [{}]}',
        '{"budget": {}}',
        '{"changes": [["guess", "llm"]]}',
        '{"stop_at": "soon"}',
    ],
)
def test_s27_plan_that_cannot_be_read_is_refused(text: str) -> None:
    """A damaged plan is an error, never taken for the default one."""
    with pytest.raises(ConfigError):
        read_plan(text)


def test_plan_has_a_limit() -> None:
    """A plan has at most 200 patterns."""
    with pytest.raises(ConfigError, match="at most"):
        build_plan(live=tuple(f"tool:{n}" for n in range(RULES_MAX + 1)))


def test_p12_rerun_wins_over_live_and_serves_a_call_without_a_function() -> None:
    """Of equal rules, `rerun` beats `live`; a statement or a program has no code that could run again."""
    plan = Plan().live("tool").rerun("tool")
    assert plan.runs_again
    assert not plan.is_live("tool:f")
    assert Asker(record_calls([Asked(1)]), plan).ask(Asked(1)).served is not None
    assert not plan.stub("tool").is_live("tool:f")


# ── Selectors ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "text", ["llm:*", "tool:f@main/t:x#1", "llm:*[3]", "tool:f[2..5]", "llm:*[3..]", "llm:*[..2]", "tool:p[-1]"]
)
def test_selector_prints_what_it_read(text: str) -> None:
    """A selector's text gives the same selector again."""
    assert str(parse_selector(text)) == text
    assert parse_selector(str(parse_selector(text))) == parse_selector(text)


@pytest.mark.parametrize(
    "text", ["", " ", "llm[0]", "llm[x]", "llm[3", "@main", "tool:f@", "llm[5..2]", "llm[]", "x" * 600]
)
def test_selector_that_means_nothing_is_refused(text: str) -> None:
    """An invalid selector is an error with a hint, except text whose bracket is part of a name."""
    if text == "llm[3":
        assert parse_selector(text).boundary == "llm[3:*"
        return
    with pytest.raises(ConfigError):
        parse_selector(text)


@pytest.mark.parametrize(
    ("selector", "live"),
    [
        ("tool:f[2]", [2]),
        ("tool:f[2..]", [2, 3]),
        ("tool:f[..2]", [1, 2]),
        ("tool:f[-1]", [3]),
        ("tool:f[*]", [1, 2, 3]),
        ("tool[1]", [1]),
        ("tool:f@other", []),
        ("tool:f@ma?n[3]", [3]),
    ],
)
def test_s2_calls_are_named_by_number_and_lane(selector: str, live: list[int]) -> None:
    """The n-th call of a boundary runs live and the others are served, in whatever order they are made."""
    asker = Asker(record_calls([Asked(1), Asked(2), Asked(3)]), Plan().live(selector))
    found = [x for x in (3, 1, 2) if asker.ask(Asked(x)).served is None]
    assert sorted(found) == live


def test_s2_plan_is_chainable_and_a_value() -> None:
    """`Plan().stub(…).live(…)` adds rules to a new plan; the original plan is unchanged."""
    plan = Plan().stub("llm:*")
    longer = plan.live("tool:delete_file")
    assert (plan.is_live("tool:delete_file"), longer.is_live("tool:delete_file")) == (False, True)
    assert longer == Plan(stub=("llm:*",), live=("tool:delete_file",))


def test_s2_condition_sees_the_call() -> None:
    """A rule with a condition applies if its function says so, and takes precedence over one without."""
    seen: list[PlannedCall] = []

    def is_large(call: PlannedCall) -> bool:
        seen.append(call)
        return bool(call.arguments["x"] > 10)

    asker = Asker(record_calls([Asked(1), Asked(20)]), Plan().stub("tool:f").live("tool", when=is_large))
    assert [asker.ask(Asked(x)).served is None for x in (1, 20)] == [False, True]
    assert [(c.boundary, c.lane, c.index) for c in seen] == [("tool:f", "main", 0), ("tool:f", "main", 1)]
    assert all(c.recorded is not None for c in seen)
    with pytest.raises(ConfigError, match="condition"):
        asker.session.plan.to_json()


@pytest.mark.parametrize("boundary", ["f", "g"])
def test_s28_on_change_by_boundary(boundary: str) -> None:
    """`--on-change tool:f=serve` serves changed calls of f by position, and stops at those of others."""
    plan = build_plan(on_change=("stop", "tool:f=serve"))
    asker = Asker(record_calls([Asked(1), Asked(1, name="g")]), plan)
    if boundary == "f":
        assert asker.ask(Asked(9)).served is not None
    else:
        with pytest.raises(ReplayMiss):
            asker.ask(Asked(9, name="g"))
    assert [d.kind for d in asker.session.divergences] == ["changed_call"]


def test_s2_override_serves_another_value() -> None:
    """An overridden call gives the plan's value; the divergence names the plan as its cause, once."""
    asker = Asker(record_calls([Asked(1), Asked(2)]), Plan().override("tool:f[2]", value={"price": 3}))
    first, second = asker.ask(Asked(1)), asker.ask(Asked(2))
    assert first.served is not None
    assert second.served is not None
    assert (first.served.response, second.served.response) == ('{"value": 1}', '{"value":{"price":3}}')
    (divergence,) = asker.session.divergences
    assert (divergence.kind, divergence.is_downstream) == ("output_changed", False)
    assert divergence.cause.startswith("set by the plan: tool:f[2]")
    assert asker.session.counts["overridden"] == 1


def test_strict_stops_at_a_moved_call() -> None:
    """Under `strict` an equal call in another lane is a difference that ends the replay."""
    recording = record_calls([Asked(1, lane="a")])
    assert Asker(recording).ask(Asked(1, lane="b")).served is not None
    asker = Asker(recording, Plan().strict())
    with pytest.raises(ReplayMiss, match="moved"):
        asker.ask(Asked(1, lane="b"))


def test_s63_replay_ends_before_the_call_that_is_named() -> None:
    """`to(2)` serves the calls before recorded call 2, and says why the replay ended."""
    asker = Asker(record_calls([Asked(1), Asked(2), Asked(3)]), Plan().to(2))
    asker.ask(Asked(1))
    with pytest.raises(ReplayMiss, match="stopped before call 2"):
        asker.ask(Asked(2))
    assert asker.session.stopped == "stopped before call 2 (tool:f), as asked"
    assert not asker.session.divergences


# ── Budget ──────────────────────────────────────────────────────────────────────────────────────────
def test_s42_price_is_found_by_name_version_and_pattern() -> None:
    """A price is given for the model's name, its family without the version, or a pattern; none is made up."""
    stated = ("llama-*=0.2,0.4", "gpt-4o=9", "gpt-4o-mini=0.15,0.6", "gpt-4.1=2,8")
    budget = Budget(1.0, tuple(map(parse_price, stated)))
    assert budget.find_price("gpt-4o-mini-2024-07-18") == Price("gpt-4o-mini", 0.15, 0.6)
    assert budget.find_price("openai/gpt-4.1").model == "gpt-4.1"
    assert budget.find_price("llama-9-big").output_usd == 0.4
    assert budget.find_price("gpt-4o") == Price("gpt-4o", 9, 0)
    with pytest.raises(ConfigError, match="no price known for 'gpt-x'") as caught:
        budget.find_price("gpt-x")
    assert "--price 'gpt-x=" in caught.value.hint


@pytest.mark.parametrize("text", ["gpt-x", "gpt-x=", "gpt-x=a,b", "=1,2", "m=1,2,3", "m=-1,2", "m=nan,1"])
def test_s42_price_that_is_none_is_refused(text: str) -> None:
    """A price consists of a model and one or two amounts."""
    with pytest.raises(ConfigError):
        parse_price(text)


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
def test_s42_ceiling_that_is_no_amount_is_refused(amount: float) -> None:
    """A ceiling is a finite amount, zero or more."""
    with pytest.raises(ConfigError):
        Plan().limit(amount)


def test_s42_parallel_calls_count_while_they_are_under_way() -> None:
    """Calls in flight count towards the budget, so that forty at once do not exceed one ceiling."""
    meter = CostMeter(Budget(0.05, (Price("m", 0, 1_000_000 / 100),)))
    meta = {"model": "m", "tokens_in": 5, "tokens_out": 1}
    assert meter.admit(0, meta, "{}")
    meter.settle(0, meta, "{}", "{}")
    assert meter.spent_usd == pytest.approx(0.01)
    assert [meter.admit(n, meta, "{}") for n in range(1, 41)] == [True] * 4 + [False] * 36
    assert meter.is_over


def test_s42_answer_without_usage_is_counted_by_length() -> None:
    """If an answer states no tokens, they are estimated from its length, and the verdict says so."""
    meter = CostMeter(Budget(1.0, (Price("m", 1, 1),)))
    assert meter.admit(1, {"model": "m"}, "x" * 400)
    meter.settle(1, {"model": "m"}, "x" * 400, "y" * 4000)
    assert meter.spent_usd == pytest.approx(1100 / 1e6)
    assert meter.describe()["estimated"] is True
