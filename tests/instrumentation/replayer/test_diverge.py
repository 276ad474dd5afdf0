"""Differences between JSON texts have a path, are bounded, and readable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.replayer.divergence import (
    DIFFS_MAX,
    VALUE_CHARACTERS_MAX,
    Diff,
    Divergence,
    comparable_response,
    diff_json,
    leaf_strings,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("recorded", "now", "expected"),
    [
        ({"a": 1}, {"a": 2}, [Diff("a", 1, 2)]),
        ({"a": [1, {"b": "xy"}]}, {"a": [1, {"b": "xz"}]}, [Diff("a[1].b", "xy", "xz", 1)]),
        ({"a": 1}, {}, [Diff("a", 1, "(absent)")]),
        ([1], [1, 2], [Diff("[1]", "(absent)", 2)]),
        ("abc", "ab", [Diff("$", "abc", "ab", 2)]),
        ({"a": 1}, {"a": "1"}, [Diff("a", 1, "1")]),
        ({"a": 1}, {"a": True}, [Diff("a", 1, True)]),
        ({"a": 1}, {"a": 1.0}, [Diff("a", 1, 1.0)]),
        ({"a": {}}, {"a": []}, [Diff("a", {}, [])]),
        ({}, {}, []),
    ],
    ids=["value", "nested", "gone", "longer", "text", "type", "bool", "float", "container", "equal"],
)
def test_s65_differences_have_their_place(recorded: Any, now: Any, expected: list[Diff]) -> None:
    """A difference has its path, both values, and for texts the first character that differs."""
    assert list(diff_json(json.dumps(recorded), json.dumps(now))) == expected


@given(values, values)
def test_texts_differ_exactly_where_their_values_do(a: Any, b: Any) -> None:
    """Equal values have no difference, others at least one; the number of differences is bounded."""
    one, other = json.dumps(a, sort_keys=True), json.dumps(b, sort_keys=True)
    found = diff_json(one, other)
    assert bool(found) == (one != other)
    assert len(found) <= DIFFS_MAX
    json.dumps([d.recorded for d in found])


def test_long_values_are_cut_around_the_difference() -> None:
    """The report shows the part of a long text that differs."""
    a = "x" * 5000 + "left" + "y" * 5000
    b = "x" * 5000 + "right" + "y" * 5000
    (diff,) = diff_json(json.dumps(a), json.dumps(b))
    assert diff.at == 5000
    assert "left" in diff.recorded
    assert "right" in diff.now
    assert len(diff.recorded) <= VALUE_CHARACTERS_MAX + 2


def test_many_differences_stop_at_the_limit() -> None:
    """A report lists at most twenty differences of one call."""
    assert len(diff_json(json.dumps([0] * 100), json.dumps([1] * 100))) == DIFFS_MAX


def test_texts_that_are_not_json_are_compared_as_they_are() -> None:
    """A damaged record is still compared, as plain text."""
    assert diff_json("{", "{}") == (Diff("$", "{", "{}", 1),)


def test_divergence_as_json_leaves_out_what_does_not_apply() -> None:
    """`at` is present only if two texts differ; `is_downstream` is called `downstream`."""
    made = Divergence("moved", "tool:f", "m", diff=(Diff("a", 1, 2), Diff("b", "x", "y", 0))).to_json()
    assert made["diff"] == [
        {"path": "a", "recorded": 1, "now": 2},
        {"path": "b", "recorded": "x", "now": "y", "at": 0},
    ]
    assert made["downstream"] is False
    assert "is_downstream" not in made


@pytest.mark.parametrize(
    ("chunks", "body"),
    [
        ('[[1,"{\\"a\\":"],[9,"1}"]]', {"a": 1}),
        ('[[1,"da"],[9,"ta"]]', "data"),
        ('[[1,{"b64":"AA=="}]]', [{"b64": "AA=="}]),
        ("[]", ""),
    ],
    ids=["json", "text", "bytes", "empty"],
)
def test_http_responses_are_compared_by_what_they_say(chunks: str, body: Any) -> None:
    """Status and body are compared; times, chunks and headers are not."""
    text = f'{{"status":200,"headers":[["date","today"]],"chunks":{chunks},"end":"complete"}}'
    assert json.loads(comparable_response(text)) == {"status": 200, "end": "complete", "body": body}


def test_n5_ids_that_a_model_draws_are_no_difference_and_hide_none() -> None:
    """In a stream of a hundred events with other ids and times, the one differing word is found."""

    def stream(seed: str, word: str) -> str:
        events = [
            {"id": f"chatcmpl-{seed}", "created": len(seed), "choices": [{"delta": {"content": f"w{n}"}}]}
            for n in range(100)
        ]
        events[77]["choices"] = [{"delta": {"content": word}}]
        chunks = [[n, f"data: {json.dumps(event)}\n\n"] for n, event in enumerate(events)]
        return comparable_response(json.dumps({"status": 200, "chunks": chunks, "end": "complete"}))

    assert diff_json(stream("a", "yes"), stream("bcd", "yes"), is_model=True) == ()
    (found,) = diff_json(stream("a", "yes"), stream("bcd", "no"), is_model=True)
    assert (found.path, found.recorded, found.now) == ("body[77].choices[0].delta.content", "yes", "no")


def test_inserted_element_changes_none_behind_it() -> None:
    """If a list got one more element in the middle, only that one differs."""
    (found,) = diff_json("[1, 2, 3, 4]", "[1, 2, 9, 3, 4]")
    assert (found.path, found.recorded, found.now) == ("[2]", "(absent)", 9)


def test_other_responses_are_compared_whole() -> None:
    """A tool's value is compared as a whole."""
    assert comparable_response('{"value":1}') == '{"value":1}'


def test_leaf_strings_are_those_that_can_be_recognised() -> None:
    """Long strings are found at any depth; short ones and numbers are too ambiguous."""
    assert leaf_strings('{"a": ["long enough", "short", {"b": "also long"}], "c": 12345678}') == {
        "long enough",
        "also long",
    }
    assert leaf_strings("not json at all") == {"not json at all"}
