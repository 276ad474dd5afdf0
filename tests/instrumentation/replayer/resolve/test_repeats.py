"""Steps that are taken again from a checkpoint: which recorded call answers them."""

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
    """A run of which one step made two equal calls, and another one the same call."""
    run_id = make_run_id()
    calls = [make_call(run_id, seq, kind="tool", name="pay", key="k", lane=STEP) for seq in (1, 2)]
    other = make_call(run_id, 3, kind="tool", name="pay", key="k", lane="main/lg:4:report:pull.report")
    return replace(make_recording(run_id), calls=(*calls, other))


def test_s7_nothing_is_answered_twice_outside_of_a_repetition(recording: Recording) -> None:
    """A call that was made once more than recorded stays one, unless its step is taken again."""
    assert Repeats(recording).find(STEP, "tool:pay", "k") is None


def test_s7_a_step_that_is_taken_again_has_its_own_calls_in_order(recording: Recording) -> None:
    """Its n-th call is the n-th that the step made, from the first again after the last; counters do not matter."""
    repeats = Repeats(recording)
    again = "main/lg:7:act:pull.act/t:work#5"
    with repeating():
        found = [repeats.find(again, "tool:pay", "k") for _ in range(3)]
        assert [call.seq for call in found if call is not None] == [1, 2, 1]
        assert repeats.find("main/lg:9:report:pull.report", "tool:pay", "k") == recording.calls[2]


def test_s7_another_request_or_step_is_no_repetition(recording: Recording) -> None:
    """Where the key, the boundary or the node differ nothing is answered: it is a new call."""
    repeats = Repeats(recording)
    with repeating():
        assert repeats.find(STEP, "tool:pay", "other") is None
        assert repeats.find(STEP, "tool:refund", "k") is None
        assert repeats.find("main/lg:3:plan:pull.plan", "tool:pay", "k") is None
