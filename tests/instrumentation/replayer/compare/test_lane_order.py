"""The order of a lane's calls, and of calls that equal lanes exchange."""

from __future__ import annotations

import pytest

from spanreplay.model.call import ALONE, CallRecord
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
    assert order.note_exchange("main/t:f", call(5, 6)) is None
    assert order.note_exchange("main/t:f", call(1, 8)) is None
    assert order.note_exchange("main/t:f", call(2, 4)) == call(5, 6)
    assert order.note_exchange("main/t:g", call(2, 4)) is None
