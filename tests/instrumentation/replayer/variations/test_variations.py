"""Variations of a recording's answers: each is a valid patch, a seed repeats them, and a search makes them small."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spanreplay
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError
from spanreplay.replayer.resolve.directions import check_plan
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.variations.seeded import are_compatible, draw_variations
from spanreplay.replayer.variations.shrink import shrink
from spanreplay.replayer.variations.sites import Change, Field, Variation, find_fields
from spanreplay.replayer.variations.ways import list_ways, number_ways, text_ways
from support.recordings import make_incident
from support.runs import make_call, make_recording, make_run_id

RUN = make_run_id()


def record(*responses: Any, **fields: Any) -> Recording:
    """A recording of calls of a tool with these answers."""
    calls = tuple(
        make_call(RUN, number, response=json.dumps(each), kind="tool", name="t", index=number - 1, **fields)
        for number, each in enumerate(responses, start=1)
    )
    return Recording(make_recording(RUN, 1).root, calls)


def test_s37_every_variation_fits_its_recording() -> None:
    """Each drawn variation is a plan that a replay accepts, and changes at most one thing in a field."""
    recording = make_incident()
    variations = draw_variations(find_fields(recording), 300, seed=7)
    assert len(variations) == 300
    for variation in variations:
        check_plan(Plan().set(*(change.patch for change in variation)), recording)
        assert are_compatible(variation)
    assert {len(each) for each in variations} == {1, 2, 3, 4}


def test_s37_a_seed_draws_the_same_variations() -> None:
    """The same seed gives the same variations, in order; more of them begin with the same; another seed, others."""
    recording = make_incident()

    def draw(count: int, seed: int) -> list[tuple[str, ...]]:
        return [tuple(c.patch for c in each) for each in draw_variations(find_fields(recording), count, seed)]

    assert draw(50, 7) == draw(50, 7) == draw(80, 7)[:50]
    assert draw(50, 7) != draw(50, 8)
    assert len(set(draw(80, 7))) == 80


def test_s37_every_tool_and_field_gets_its_turn() -> None:
    """A tool that is called once is changed as often as one that is called twenty times; no field is left out."""
    busy = [make_call(RUN, n, response='{"value": 1}', kind="tool", name="busy", index=n) for n in range(1, 21)]
    rare = make_call(RUN, 21, response='{"value": {"a": 1, "b": "x", "c": [1]}}', kind="tool", name="rare")
    recording = Recording(make_recording(RUN, 1).root, (*busy, rare))
    changes = [c for each in draw_variations(find_fields(recording), 100, seed=1) for c in each]
    of_rare = [c for c in changes if c.field.call.name == "rare"]
    assert abs(len(of_rare) - len(changes) / 2) <= len(changes) / 10
    assert {c.field.path for c in of_rare} == {"(all of it)", "a", "b", "c", "c[0]"}


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        (number_ways(40), {39, 41, 0, -1, -40, 20, 80, 400, 2**31}),
        (number_ways(12.5), {12.4, 12.6, 0.0, -1.0, -12.5, 6.0, 25.0, 125.0, float(2**31)}),
        (text_ways(""), {" ", "x"}),
        (text_ways("12.50", is_strict=True), {"12.49", "12.51", "0.00", "-1.00", "25.00", "6.00"}),
        (text_ways("2026-02-28T09:04", is_strict=True), {"2026-02-27T09:04", "2026-03-01T09:04", "2027-02-28T09:04"}),
        (text_ways("ab", ["cd", "ab"]), {"cd", "AB", "a", "", "ab ", "abx"}),
    ],
)
def test_s37_values_stay_of_their_kind(ways: Any, expected: set[Any]) -> None:
    """A number keeps its precision, a date stays a date, a text may become one that was seen elsewhere."""
    assert expected <= {way.now(amount) for way in ways for amount in (0, *way.marks)}


def test_s37_lists_get_shorter_longer_and_turned() -> None:
    """A list loses elements from its end until it is empty, repeats its last one, and is turned round."""
    ways = list(list_ways([1, 2, 3]))
    assert [ways[0].now(amount) for amount in range(ways[0].amounts)] == [[1, 2], [1], []]
    assert [ways[1].now(1), ways[2].now(0)] == [[1, 2, 3, 3, 3], [3, 2, 1]]
    assert list(list_ways([])) == []


@pytest.mark.parametrize(
    ("kind", "patches"),
    [
        ("missing", ["t[1].response = null", "delete t[1].response.a", "t[1].response.a = null"]),
        ("added", ["t[1].response.unexpected = 1"]),
        ("type", ['t[1].response.a = "1"']),
        ("error", ["t[1] raises TimeoutError: no answer in time"]),
        ("list", []),
    ],
)
def test_s37_kinds_of_changes(kind: str, patches: list[str]) -> None:
    """Fields go missing, come in addition, change their type; a call fails: each kind can be asked for alone."""
    found = find_fields(record({"value": {"a": 1}}), kinds=[kind])
    assert [site.patch(0).replace("tool:", "") for field in found for site in field.sites] == patches


def test_s37_values_that_the_codec_rebuilds_keep_their_format() -> None:
    """Of a value with a type of its own only numbers and dates change: the replay could not build it otherwise."""
    found = find_fields(record({"value": {"$type": "decimal", "value": "12.50"}}))
    assert {site.patch(0) for field in found if field.path == "value" for site in field.sites} == {
        'tool:t[1].response.value = "12.49"',
        'tool:t[1].response.value = "12.51"',
    }


def test_s37_calls_within_a_served_call_are_left_alone() -> None:
    """A replay serves the outer call, so a change in a call inside it would have no effect."""
    outer = make_call(RUN, 1, response='{"value": 1}', kind="tool", name="outer")
    inner = make_call(RUN, 2, response='{"value": 2}', kind="tool", name="inner", parent=1)
    found = find_fields(Recording(make_recording(RUN, 1).root, (outer, inner)))
    assert {field.call.name for field in found} == {"outer"}


def _change(field: Field, amount: int) -> Change:
    return Change(field, field.sites[0], amount)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 3))
def test_s37_shrinking_finds_the_threshold(first: int, second: int, needed: int) -> None:
    """Only the changes that matter stay, each with the least amount that still does."""
    fields = find_fields(record({"value": {"a": 1, "b": 2, "c": 3}}), kinds=["value"])
    variation: Variation = tuple(_change(f, n) for f, n in zip(fields, (first, second, 5), strict=True))
    least = {"a": first // 2, "b": second // 3} if needed == 3 else {"a": first // 2} if needed else {"c": 0}

    def has_effect(tried: Variation) -> bool:
        amounts = {change.field.path: change.amount for change in tried}
        return all(amounts.get(path, -1) >= amount for path, amount in least.items())

    small = shrink(variation, has_effect, 1000)
    assert {change.field.path: change.amount for change in small} == least


def test_s37_shrinking_stops_at_its_limit() -> None:
    """Without tries left, the variation is returned as it is."""
    (field,) = find_fields(record({"value": 1}), kinds=["value"])
    assert shrink((_change(field, 9),), lambda each: True, 0)[0].amount == 9


def test_s38_strategy_says_what_is_wrong() -> None:
    """A kind that does not exist, and a recording without answers to change, are refused when the strategy is made."""
    with pytest.raises(ConfigError, match="'odd' is not one of value, list"):
        spanreplay.perturbations(record({"value": 1}), kinds=["odd"])
    with pytest.raises(ConfigError, match="no answer in this run has a field"):
        spanreplay.perturbations(record({"value": 1}), only="llm")


def test_s38_plan_is_shown_as_a_program_writes_it() -> None:
    """The text of a plan makes the same plan, so that a failing example can be pasted."""
    plan = Plan().stub("llm").live("tool:get_*").changed("serve").changed("stop", "tool").set("tool:f[1].response = 1")
    assert eval(repr(plan)) == plan  # noqa: S307 -- our own text
    assert repr(Plan().strict()) == "Plan() with {'strict': True}"
