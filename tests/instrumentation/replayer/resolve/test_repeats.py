"""Steps that are repeated from a checkpoint: which recorded call answers them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spanreplay.model.call import Recording
from spanreplay.replayer.resolve.repeats import Repeats
from spanreplay.runtime.calls.repeating import repeating
from support.runs import make_call, make_recording, make_run_id

STEP = "main/lg:3:act:pull.act/t:work#1"


@pytest.fixture
def recording() -> Recording:
    """A run in which one step made two equal calls, and another step the same call."""
    run_id = make_run_id()
    calls = [make_call(run_id, seq, kind="tool", name="pay", key="k", lane=STEP) for seq in (1, 2)]
    other = make_call(run_id, 3, kind="tool", name="pay", key="k", lane="main/lg:4:report:pull.report")
    return replace(make_recording(run_id), calls=(*calls, other))


def test_s7_nothing_is_answered_twice_outside_of_a_repetition(recording: Recording) -> None:
    """A call that is made once more than recorded is not answered, unless its step is repeated."""
    assert Repeats(recording).find(STEP, "tool:pay", "k") is None


def test_s7_a_step_that_is_taken_again_has_its_own_calls_in_order(recording: Recording) -> None:
    """The step's n-th call is the recorded n-th, starting over after the last; counters in the path are ignored."""
    repeats = Repeats(recording)
    again = "main/lg:7:act:pull.act/t:work#5"
    with repeating():
        found = [repeats.find(again, "tool:pay", "k") for _ in range(3)]
        assert [call.seq for call in found if call is not None] == [1, 2, 1]
        assert repeats.find("main/lg:9:report:pull.report", "tool:pay", "k") == recording.calls[2]


def test_s7_another_request_or_step_is_no_repetition(recording: Recording) -> None:
    """If the key, the boundary or the node differs it is a new call, so nothing is answered."""
    repeats = Repeats(recording)
    with repeating():
        assert repeats.find(STEP, "tool:pay", "other") is None
        assert repeats.find(STEP, "tool:refund", "k") is None
        assert repeats.find("main/lg:3:plan:pull.plan", "tool:pay", "k") is None
