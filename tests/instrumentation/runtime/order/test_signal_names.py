"""Names of signals in a recording, which may come from a stranger."""

from __future__ import annotations

import signal

import pytest

from spanreplay.runtime.lanes import Lane
from spanreplay.runtime.order.signal_names import IN_LOOP, Arrival, CodePlace, find_signals, name_signal


def test_n2_signals_of_a_lane_are_found_in_their_order() -> None:
    """What is named is found again: in the order of the clock, and only in its own lane."""
    lane, other = Lane("main"), Lane("main/px:1")
    names = [
        name_signal(lane, 15, "call.7"),
        name_signal(lane, 10, "a:b.py:<lambda>:12:345"),
        name_signal(other, 2, ""),
    ]
    found = find_signals({names[0]: 9, names[1]: 4, names[2]: 1, "main|returned|0": 2}, "main")
    assert [(each.clock, each.number) for each in found] == [(4, 10), (9, 15)]
    assert found[0].code == CodePlace("a:b.py", "<lambda>", 12, 345)
    assert (found[0].call, found[1].call, found[1].code) == (-1, 7, None)


@pytest.mark.parametrize("number", ["0", "-2", "x", "", "65536", str(signal.NSIG), "9" * 5000])
def test_n2_what_is_no_signal_is_left_out(number: str) -> None:
    """A number that no signal has does not reach the system."""
    assert find_signals({f"main|signal|0:{number}:loop": 1}, "main") == []


@pytest.mark.parametrize(
    "place", ["", IN_LOOP, "call.", "call.x", f"call.{'9' * 5000}", "a:b:c:d", f"a:b:{'1' * 5000}:1"]
)
def test_n2_place_that_nobody_knows_is_none(place: str) -> None:
    """A damaged place is neither a call nor a place in the code."""
    arrival = Arrival(1, 15, place)
    assert (arrival.call, arrival.code) == (-1, None)
