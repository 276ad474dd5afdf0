"""Calls of two runs in pairs: every call once, the longest equal series together, in the order of the first run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model.call import CallRecord, Recording
from spanreplay.replayer.compare.two_runs.align import Pair, align
from support.runs import make_call, make_recording, make_run_id

STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from(["main", "main/t:x"])), max_size=25
)


def make_run(steps: list[tuple[str, int, str]], number: int = 0) -> tuple[CallRecord, ...]:
    """A run of calls, each given by name, question and lane."""
    run_id = make_run_id(number)
    calls = tuple(
        make_call(
            run_id, 2 * at + 1, kind="tool", name=name, lane=lane, key=f"{name}{asked}", request=f'{{"asked": {asked}}}'
        )
        for at, (name, asked, lane) in enumerate(steps)
    )
    return Recording(make_recording(run_id).root, calls).calls


def told(pair: Pair) -> tuple[int, int]:
    """The two numbers of a pair; 0 if a run has no such call."""
    return pair.a.number if pair.a else 0, pair.b.number if pair.b else 0


@given(STEPS, STEPS)
def test_w1_every_call_of_both_runs_is_in_one_pair(
    first: list[tuple[str, int, str]], second: list[tuple[str, int, str]]
) -> None:
    """Paired calls have one boundary, those of A keep A's order, and a run aligns with itself."""
    a, b = make_run(first), make_run(second, 1)
    pairs = align(a, b)
    assert [pair.a for pair in pairs if pair.a is not None] == list(a)
    assert sorted(pair.b.number for pair in pairs if pair.b is not None) == [call.number for call in b]
    assert all(pair.a.boundary == pair.b.boundary for pair in pairs if pair.a and pair.b)
    assert {told(pair) for pair in align(a, a)} == {(call.number, call.number) for call in a}


NEW_STEPS = st.lists(st.tuples(st.just("d"), st.integers(0, 3), st.sampled_from(["main", "main/t:x"])), max_size=25)


@given(STEPS, NEW_STEPS, STEPS)
def test_w1_equal_calls_around_a_difference_are_pairs(
    before: list[tuple[str, int, str]], between: list[tuple[str, int, str]], after: list[tuple[str, int, str]]
) -> None:
    """Calls inserted into B stay unpaired, and every call of A is paired with an equal request."""
    a, b = make_run(before + after), make_run(before + between + after, 1)
    pairs = align(a, b)
    assert sum(pair.a is not None and pair.b is not None and pair.a.key == pair.b.key for pair in pairs) == len(a)
    assert sum(pair.a is None for pair in pairs) == len(between)


@pytest.mark.parametrize("more", [0, 2])
def test_w1_a_call_more_that_equals_others_is_the_one_that_is_more(more: int) -> None:
    """Of equal requests, one extra at the beginning or at the end of a loop is the unpaired one."""
    steps = [("a", 1, "main"), ("a", 2, "main")]
    a, b = make_run(steps), make_run([*steps[:more], ("a", 2, "main"), *steps[more:]], 1)
    assert [told(pair) for pair in align(a, b) if pair.a is not None] == [(1, 2 - more // 2), (2, 3 - more // 2)]


def test_w1_a_task_of_another_name_is_compared_with_the_one_it_replaces() -> None:
    """A renamed task's calls are moved if they ask the same, and changed if they don't."""
    a = make_run([("a", 1, "main/t:old"), ("b", 1, "main/t:old"), ("c", 1, "main")])
    b = make_run([("a", 1, "main/t:new"), ("b", 2, "main/t:new"), ("c", 1, "main")], 1)
    pairs = align(a, b)
    assert [told(pair) for pair in pairs] == [(1, 1), (2, 2), (3, 3)]
    assert [pair.is_moved for pair in pairs] == [True, False, False]
