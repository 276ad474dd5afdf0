"""A unit's recording with the start of its process: complete, or it states what is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from spanreplay.model.call import CallRecord, Outcome, Recording, RootRecord
from spanreplay.model.errors import RunNotFound
from spanreplay.units.start import ORDER, has_units, with_start
from spanreplay.units.stated import find_unit

PROCESS, UNIT = "1" * 32, "2" * 32
WHOLE: Final = {"process": PROCESS, "start": 5, "calls": 2, "root": "main"}


def call(run_id: str, seq: int, lane: str, name: str = "ask", **fields: Any) -> CallRecord:
    """A call that ended at the next value of the Lamport clock."""
    made = CallRecord(
        run_id=run_id, seq=seq, kind="tool", name=name, lane=lane, index=0, key="", keyspec="tool/1", request="{}"
    )
    return replace(made, **{"outcome": Outcome.OK.value, "end_seq": seq + 1, "response": '{"value":1}', **fields})


def end_of_start(seq: int, lane: str, **order: Any) -> CallRecord:
    """The last call of a start."""
    return call(PROCESS, seq, f"{lane}/start", "start", kind="compute", meta={ORDER: order} if order else {})


def unit_of(clock: int, calls: int, root: str = "main") -> Recording:
    """A unit with one call."""
    env = {"unit": {"process": PROCESS, "start": clock, "calls": calls, "root": root}}
    manifest = {"calls": 1, "timers": {"unit|t": [12, -1]}, "steps": [11, 10, 1]}
    return Recording(RootRecord(UNIT, env=env, manifest=manifest), (call(UNIT, 10, "unit"),))


def process_of(*calls: CallRecord) -> Recording:
    """A process that is still running."""
    return Recording(RootRecord(PROCESS), calls)


def test_p4_the_workers_of_a_pool_are_those_of_the_start_too() -> None:
    """A pool made during the start has its recorded workers, whichever jobs the unit submits to it."""
    started = {"numbers": {"main/x:a#1": 1}}
    process = process_of(call(PROCESS, 1, "main"), end_of_start(3, "main", workers=started))
    unit = unit_of(5, 2)
    manifest = {**unit.root.manifest, "workers": {"numbers": {"unit/x:a#1": 2}}}
    unit = replace(unit, root=replace(unit.root, manifest=manifest))
    merged = with_start(unit, lambda run_id: process).recording.root.manifest["workers"]
    assert merged == {"numbers": {"main/x:a#1": 1, "unit/x:a#1": 2}}


def test_p4_the_start_comes_before_the_unit() -> None:
    """The start's calls and order are added, and nothing else; the unit's calls keep their numbers."""
    process = process_of(
        call(PROCESS, 1, "main/t:load#1"),
        end_of_start(3, "main", timers={"main|t": [2, -1]}, steps=[2, 1, 1]),
        call(PROCESS, 7, "main/t:poll#1"),
    )
    started = with_start(unit_of(5, 2), lambda run_id: {PROCESS: process}[run_id])
    assert [(c.seq, c.number) for c in started.recording.calls] == [(1, -1), (3, -2), (10, 1)]
    manifest = started.recording.root.manifest
    assert manifest["timers"] == {"main|t": [2, -1], "unit|t": [12, -1]}
    assert manifest["steps"] == [2, 1, 1, 11, 10, 1]
    assert started.recording.completeness().is_complete
    assert has_units(process)
    assert not has_units(started.recording) or started.is_unit


def test_p4_a_call_under_way_at_the_end_of_the_start_is_no_part_of_it() -> None:
    """No unit contains its end, so it can't be required; reads before it count."""
    reads = '[["main/t:poll#1",[["time.time",0,1.5]]]]'
    polling = call(PROCESS, 1, "main/t:poll#1", end_seq=8, reads=reads)
    started = with_start(unit_of(5, 2), lambda _: process_of(polling, end_of_start(3, "main")))
    assert [c.name for c in started.recording.calls] == ["start", "ask"]
    assert started.in_flight == {("main/t:poll#1", "tool:ask", 0)}
    assert started.recording.root.manifest["reads"]["left"] == [["main/t:poll#1", [["time.time", 0, 1.5]]]]
    assert started.recording.completeness().is_complete


def test_p4_the_start_of_a_worker_is_that_of_a_process_by_itself() -> None:
    """Of several workers only the unit's own is included, in the lanes of a process without workers."""
    first, second = "main/p:work#1", "main/p:work#2"
    process = process_of(
        call(PROCESS, 1, f"{first}/t:load#1"),
        call(PROCESS, 2, f"{second}/t:load#1"),
        end_of_start(4, second, lane_ends={f"{second}/th:x#1": 3}),
    )
    started = with_start(unit_of(5, 2, second), lambda _: process)
    assert [c.lane for c in started.recording.calls] == ["main/t:load#1", "main/start", "unit"]
    assert started.recording.root.manifest["lane_ends"] == {"main/th:x#1": 3}


LOST: Final = {
    "no run": (None, f"the start of its process, run {PROCESS}, is not here"),
    "a call less": (process_of(end_of_start(3, "main")), "1 of 2 calls of the start of its process are here"),
}


@pytest.mark.parametrize("case", LOST)
def test_p4_a_start_that_is_not_here_makes_a_unit_incomplete(case: str) -> None:
    """A replay without the start says so, and is never identical."""
    found, said = LOST[case]

    def load(run_id: str) -> Recording:
        if found is None:
            raise RunNotFound(run_id, hint="")
        return found

    reasons = with_start(unit_of(5, 2), load).recording.completeness().reasons
    assert said in reasons


@pytest.mark.parametrize("stated", [None, 3, {}, {"process": 1}, {**WHOLE, "start": "x"}, {**WHOLE, "process": "../x"}])
def test_p4_an_environment_of_a_stranger_is_no_unit(stated: Any) -> None:
    """An unreadable environment is ignored."""
    assert find_unit({"unit": stated}) is None
    alone = Recording(RootRecord(UNIT, env={"unit": stated}), ())
    assert with_start(alone, lambda _: pytest.fail("nothing is loaded")).recording is alone
