"""Units that are replayed first are answered only from their own calls, and don't affect the judged unit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spanreplay.model.call import CallRecord, Outcome, Recording, RootRecord
from spanreplay.redact import Redactor
from spanreplay.replayer.index import RecordingIndex
from spanreplay.replayer.schedule.gate import OrderGate

KEY = "k" * 64


def call(seq: int, lane: str, **fields: Any) -> CallRecord:
    """A call that ended at the next value of the Lamport clock."""
    made = CallRecord(
        run_id="", seq=seq, kind="tool", name="ask", lane=lane, index=0, key=KEY, keyspec="tool/1", request='{"a":1}'
    )
    return replace(made, **{"outcome": Outcome.OK.value, "end_seq": seq + 1, "call_id": "c1", **fields})


def test_p4_a_call_is_never_answered_by_another_unit() -> None:
    """No position, call id, key or other name finds another unit's call; a unit's own calls are still found."""
    index = RecordingIndex(Recording(RootRecord(""), (call(6, "earlier#1"), call(9, "earlier#2/t:f#1"))))
    for lane in ("unit", "unit/t:f#1", "earlier#3"):
        assert index.find_exact((lane, "tool:ask", 0), KEY, "c1") is None
        assert index.find_moved((lane, "tool:ask", 0), KEY) is None
        assert index.find_renamed((lane, "tool:asked", 0), '{"a":1}') is None
        assert list(index.iter_near((lane, "tool:ask", 0))) == []
    moved = index.find_moved(("earlier#2", "tool:ask", 0), KEY)
    assert moved is not None
    assert (moved.call.lane, moved.rival) == ("earlier#2/t:f#1", None)
    renamed = index.find_renamed(("earlier#1/t:g#1", "tool:asked", 0), '{"a":1}')
    assert renamed is not None
    assert renamed.lane == "earlier#1"
    left = index.find_left("earlier#2")
    assert left is not None
    index.take(left)
    assert index.find_left("earlier#2") is None


def test_p4_completions_are_ordered_again_when_the_next_unit_begins() -> None:
    """A unit that diverged disabled the order; its missing completions are then skipped."""
    calls = [call(6, "earlier#1"), call(9, "unit"), call(11, "unit", index=1)]
    gate = OrderGate(calls, lambda seq: False)
    gate.open()
    assert gate.is_turn(12)
    gate.restart(8)
    assert not gate.is_open
    assert gate.is_turn(10)
    assert not gate.is_turn(12)
    gate.complete(10)
    assert gate.is_turn(12)


def test_s27_a_redactor_forgets_what_a_unit_has_taught_it() -> None:
    """Earlier knowledge stays, and texts seen since then are scanned again."""
    redactor = Redactor(b"k" * 32, "k").run()
    redactor.value({"password": "tulip-garden-77"})
    before = redactor.remember()
    redactor.value({"password": "winter-palace-99"})
    text = "from tulip-garden-77 to winter-palace-99"
    assert "tulip" not in redactor.text(text)
    assert "winter" not in redactor.text(text)
    redactor.go_back(before)
    assert "tulip" not in redactor.text(text)
    assert "winter-palace-99" in redactor.text(text)
