"""A unit's recording together with earlier units: one after another on one clock, each in its own root lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from spanreplay.model import config
from spanreplay.model.call import CallRecord, Outcome, Recording, RootRecord
from spanreplay.model.errors import RunNotFound
from spanreplay.model.lane_names import OF_EARLIER
from spanreplay.units.earlier import WarmRecording, with_earlier
from spanreplay.units.stated import is_before

PROCESS: Final = "0" * 32


def call(seq: int, lane: str = "unit", **fields: Any) -> CallRecord:
    """A call that ended at the next value of the Lamport clock."""
    made = CallRecord(
        run_id="", seq=seq, kind="tool", name="ask", lane=lane, index=0, key="", keyspec="tool/1", request="{}"
    )
    return replace(made, **{"outcome": Outcome.OK.value, "end_seq": seq + 1, "response": '{"value":1}', **fields})


def unit(before: int, *calls: CallRecord, process: str = PROCESS, **manifest: Any) -> Recording:
    """The n-th unit of a process whose start ended at 5."""
    env = {"unit": {"process": process, "start": 5, "calls": 0, "root": "main", "before": before}}
    root = RootRecord(f"{before + 1:032x}", env=env, manifest={"calls": len(calls), **manifest})
    return Recording(root, calls)


def warm(judged: Recording, *earlier: Recording) -> WarmRecording:
    """The judged unit with earlier ones, requested in this order."""
    found: Mapping[str, Recording] = {each.run_id: each for each in earlier}
    return with_earlier(judged, list(found), lambda run_id: found[run_id])


def test_p4_earlier_units_come_one_after_another_on_one_clock() -> None:
    """Overlapping clocks are shifted, lanes are renamed, and the judged calls keep their numbers."""
    first = unit(
        0,
        call(7, "unit/t:f#1", reads='[["unit/t:f#1",[["time.time",0,1.5]]]]', parent=6, clocks=(8,)),
        timers={"unit/t:f#1|t": [9, -1], "main|t": [3, -1]},
        steps=[9, 7, 2],
        lane_ends={"unit/t:f#1": 10},
        reads={"count": 1, "left": [["unit", [["time.time", 0, 2.5]]]]},
    )
    second = unit(1, call(7))
    judged = unit(2, call(8), timers={"unit|t": [9, -1]}, steps=[9, 8, 1], holes=[])
    made = warm(judged, second, first)
    assert [(each.run_id, each.lane, each.clock) for each in made.units] == [
        (first.run_id, "earlier#1", 5),
        (second.run_id, "earlier#2", 10),
    ]
    assert made.clock == 13
    assert [(c.lane, c.seq, c.end_seq, c.number) for c in made.recording.calls] == [
        ("earlier#1/t:f#1", 7, 8, OF_EARLIER),
        ("earlier#2", 12, 13, OF_EARLIER),
        ("unit", 16, 17, 1),
    ]
    assert (made.recording.calls[0].parent, made.recording.calls[0].clocks) == (6, (8,))
    assert made.recording.calls[0].reads == '[["earlier#1/t:f#1",[["time.time",0,1.5]]]]'
    manifest = made.recording.root.manifest
    assert manifest["timers"] == {"earlier#1/t:f#1|t": [9, -1], "main|t": [3, -1], "unit|t": [17, -1]}
    assert manifest["steps"] == [9, 7, 2, 17, 16, 1]
    assert manifest["lane_ends"] == {"earlier#1/t:f#1": 10}
    assert manifest["reads"]["left"] == [["earlier#1", [["time.time", 0, 2.5]]]]
    assert manifest["calls"] == 3
    assert made.completeness.is_complete


@pytest.mark.parametrize(("left", "is_left_out"), [(200, True), (90, True), (60, False)])
def test_p4_a_stream_that_outlasts_the_judged_units_last_call_is_left_out(left: int, is_left_out: bool) -> None:
    """Its client left only afterwards, so its replay would wait for ever; one that was left before is replayed."""
    stream = unit(0, replace(call(7, kind="http", name="disconnect"), start_ns=20, end_ns=left))
    slow = unit(1, replace(call(7), start_ns=20, end_ns=300))
    judged = unit(2, *(replace(call(seq), start_ns=start_ns) for seq, start_ns in ((8, 55), (10, 80))))
    judged = replace(judged, root=replace(judged.root, start_ns=50, end_ns=100))
    found = warm(judged, stream, slow).units
    assert [each.is_left_out for each in found] == [is_left_out, False]
    if is_left_out:
        assert found[0].why == "its client was still connected at this unit's last call"


def test_p4_an_incomplete_earlier_unit_does_not_make_the_judged_one_incomplete() -> None:
    """An earlier unit states its own reason."""
    broken = unit(0, call(7, outcome=Outcome.OPEN.value, end_seq=-1, response=""))
    made = warm(unit(1, call(8)), broken)
    assert made.completeness.is_complete
    assert made.units[0].reason.startswith("incomplete: call 1 (tool:ask) was started and never finished")


def test_p4_handovers_of_threads_follow_one_another() -> None:
    """The order of the earlier unit at a place precedes that of the judged one."""
    first = unit(0, call(7), handovers={"lanes": ["unit/x:a#1", "unit"], "places": {"stdout": [0, 2, 1, 1]}})
    judged = unit(1, call(8), handovers={"lanes": ["unit"], "places": {"stdout": [0, 3], "lock": [0, 1]}})
    assert warm(judged, first).recording.root.manifest["handovers"] == {
        "lanes": ["earlier#1/x:a#1", "earlier#1", "unit"],
        "places": {"stdout": [0, 2, 1, 1, 2, 3], "lock": [2, 1]},
    }


def test_p4_the_workers_of_a_pool_are_those_of_all_units() -> None:
    """The recorded workers of an earlier unit's jobs are kept too, since a job may leave state in its thread."""
    first = unit(0, call(7), workers={"numbers": {"unit/x:a#1": 1}, "counts": {"unit/x:a#1": 2}})
    judged = unit(1, call(8), workers={"numbers": {"unit/x:a#1": 2}})
    assert warm(judged, first).recording.root.manifest["workers"] == {
        "numbers": {"earlier#1/x:a#1": 1, "unit/x:a#1": 2},
        "counts": {"earlier#1/x:a#1": 2},
    }


def test_p4_only_earlier_units_of_the_same_process_are_taken() -> None:
    """A later unit, one of another process, the unit itself, and a run that is not here are left out."""
    judged = unit(2, call(8))
    assert is_before(unit(1), judged)
    assert not is_before(unit(3), judged)
    assert not is_before(judged, judged)
    assert not is_before(unit(1, process="f" * 32), judged)
    of_fork = replace(judged.root, env={"unit": {**judged.root.env["unit"], "worker": "e" * 32}})
    assert not is_before(unit(1), replace(judged, root=of_fork))

    def load(run_id: str) -> Recording:
        raise RunNotFound(run_id)

    assert warm(judged, unit(3), unit(1, process="f" * 32)).units == ()
    assert with_earlier(judged, ["1" * 32], load).recording.calls == judged.calls


def test_p4_of_too_many_bytes_the_latest_units_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the size limit the oldest units are left out."""
    monkeypatch.setattr(config, "WARM_UP_BYTES_MAX", 30)
    made = warm(unit(3, call(8)), *(unit(before, call(7)) for before in range(3)))
    assert [each.run_id for each in made.units] == [unit(before).run_id for before in (1, 2)]
