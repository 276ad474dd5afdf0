"""The order of a lane's calls, and of calls that equal lanes exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spanreplay.model.call import ALONE, BIRTHS, CallRecord
from spanreplay.replayer.compare.lane_order import LaneOrder


def call(seq: int, end_seq: int, effect: str = "write", lane: str = "main", *, is_alone: bool = False) -> CallRecord:
    """A recorded call that began and ended at these clocks."""
    return CallRecord(
        run_id="0" * 32,
        seq=seq,
        end_seq=end_seq,
        kind="tool",
        name=f"f{seq}",
        lane=lane,
        index=0,
        key="",
        keyspec="tool/1",
        request="",
        response="",
        outcome="ok",
        effect=effect,
        meta={ALONE: True} if is_alone else {},
    )


@pytest.mark.parametrize(
    ("first", "second", "is_late"),
    [
        (call(3, 4), call(1, 2), True),
        (call(1, 2), call(3, 4), False),
        (call(3, 4, "read"), call(1, 2), True),
        (call(3, 4), call(1, 2, "read"), True),
        (call(3, 4, "read"), call(1, 2, "read"), False),
        (call(3, 4), call(1, 2, lane="other"), False),
        (call(3, 4), call(1, 2, is_alone=True), False),
    ],
    ids=["late", "in order", "behind a look", "a late look", "two looks", "of another lane", "of a reporting tool"],
)
def test_p12_a_call_behind_one_that_it_came_before_is_late(
    first: CallRecord, second: CallRecord, is_late: bool
) -> None:
    """Two calls that only read may change places."""
    order = LaneOrder()
    assert order.note("main", first) is None
    assert order.note("main", second) == (first if is_late else None)


def test_p12_a_call_that_is_left_out_makes_no_other_late() -> None:
    """Nor does one that is late: the next ones are compared with what was made last in the recorded order."""
    order = LaneOrder()
    assert [order.note("main", call(seq, seq + 1)) for seq in (1, 5, 7)] == [None] * 3
    assert order.note("main", call(3, 4)) == call(7, 8)
    assert order.note("main", call(9, 10)) is None


def test_p12_only_calls_that_did_not_overlap_have_an_order_between_lanes() -> None:
    """Of two equal tasks at once, either may begin first."""
    order = LaneOrder()
    made = [("main/t:f#1", call(5, 6, lane="main/t:f#3")), ("main/t:f#2", call(1, 8, lane="main/t:f#1"))]
    assert [order.note_exchange("main/t:f", *each) for each in made] == [None, None]
    early = call(2, 4, lane="main/t:f#2")
    assert order.note_exchange("main/t:f", "main/t:f#3", early) == made[0][1]
    assert order.note_exchange("main/t:g", "main/t:g#1", early) is None


BORN = {"main/t:f#1": [2], "main/t:g#1": [6], "main/t:f#1/t:h#1": [2, 3]}
"""When lanes were made."""


def placed(seq: int, end_seq: int, lane: str, effect: str = "write") -> CallRecord:
    """A recorded call, the first of its lane."""
    return replace(call(seq, end_seq, effect, lane), meta={BIRTHS: BORN[lane]} if lane in BORN else {})


@pytest.mark.parametrize(
    ("first", "clock", "second", "births", "is_late"),
    [
        (placed(3, 4, "main/t:f#1"), 1, placed(1, 2, "main"), (), True),
        (placed(4, 5, "main/t:f#1"), 1, placed(3, 6, "main"), (), False),
        (placed(5, 6, "main"), 1, placed(3, 4, "main/t:f#1"), (1,), True),
        (placed(5, 6, "main"), 2, placed(3, 4, "main/t:f#1"), (1,), False),
        (placed(4, 5, "main"), 1, placed(3, 6, "main/t:f#1"), (1,), False),
        (placed(7, 8, "main/t:g#1"), 1, placed(3, 4, "main/t:f#1"), (1,), True),
        (placed(7, 8, "main/t:g#1"), 1, placed(3, 4, "main/t:f#1/t:h#1"), (1, 5), True),
        (placed(7, 8, "main/t:g#1"), 3, placed(3, 4, "main/t:f#1/t:h#1"), (1, 5), False),
        (placed(4, 5, "main/t:f#1/t:h#1"), 1, placed(3, 9, "main/t:f#1"), (0,), True),
        (placed(7, 8, "main/t:g#1", "read"), 1, placed(3, 4, "main/t:f#1", "read"), (1,), False),
        (placed(7, 8, "other/t:g#1"), 1, placed(3, 4, "main/t:f#1"), (1,), False),
    ],
    ids=[
        "before the task was made", "while the task ran", "behind the task", "behind the task, which was made before",
        "beside the task", "in a task made later", "in a task of one made later", "beside a task of one", "in a task",
        "two looks", "of another process",
    ],
)  # fmt: skip
def test_p12_what_comes_before_a_lane_is_made_comes_before_its_calls(
    first: CallRecord, clock: int, second: CallRecord, births: tuple[int, ...], is_late: bool
) -> None:
    """Where nothing says so, calls of two lanes have no order."""
    order = LaneOrder([first, second])
    assert order.note(first.lane, first, clock, BORN.get(first.lane, ())) is None
    assert order.note(second.lane, second, clock + 1, births) == (first if is_late else None)


def test_p12_equal_threads_that_exchange_what_they_start_have_an_order() -> None:
    """Two threads of one function, one after the other: the tasks that they start have different names."""
    paid = replace(call(1, 2, lane="main/th:f#1/t:pay#1"), meta={BIRTHS: [0, 1]})
    told = replace(call(4, 5, lane="main/th:f#2/t:tell#1"), meta={BIRTHS: [3, 4]})
    order = LaneOrder([paid, told])
    assert order.note_exchange("main/th:f/t:tell", "main/th:f#1/t:tell#1", told, 1, (0, 1)) is None
    assert order.note_exchange("main/th:f/t:pay", "main/th:f#2/t:pay#1", paid, 4, (3, 4)) == told
    order = LaneOrder([paid, told])
    assert order.note_exchange("main/th:f/t:tell", "main/th:f#1/t:tell#1", told, 1, (0, 1)) is None
    assert order.note_exchange("main/th:f/t:pay", "main/th:f#2/t:pay#1", paid, 4, (0, 2)) is None


@pytest.mark.parametrize("births", [None, 7, ["2"], [True], {"0": 1}, [9] * 9], ids=repr)
def test_p12_a_recording_that_states_no_births_gives_no_order(births: object) -> None:
    """It is data from a stranger."""
    first = replace(call(7, 8, lane="main/t:g#1"), meta={BIRTHS: births})
    order = LaneOrder([first])
    assert order.note(first.lane, first, 1, (0,)) is None
    assert order.note("main/t:f#1", call(3, 4, lane="main/t:f#1"), 2, (1,)) is None
