"""End of a unit's recording: further work of background tasks of the start is not a difference of the unit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spanreplay.model.call import CallRecord, Recording, RootRecord
from spanreplay.replayer.resolve.extent import Extent


def _make(level: str) -> Extent:
    manifest = {"level": level, "lane_ends": {"main/t:ended#1": 5}}
    session: Any = SimpleNamespace(recording=Recording(RootRecord("0" * 32, "app", manifest=manifest), ()))
    return Extent(session)


@pytest.mark.parametrize(
    ("level", "lane", "may"),
    [
        ("calls", "main/t:poll#1", True),
        ("calls", "main/t:ended#1", False),
        ("calls", "unit/t:work#1", False),
        ("full", "main/t:poll#1", False),
    ],
    ids=["a task of the start", "one that had ended", "a task of the unit", "where timers were recorded"],
)
def test_p4_a_task_of_the_start_may_run_on_where_its_timers_were_not_recorded(level: str, lane: str, may: bool) -> None:
    """A task may run on only if the recording lacks the times of its timers and the task had not ended by then."""
    assert _make(level).may_run_on(lane) is may


def _call(lane: str, seq: int) -> CallRecord:
    values: dict[str, Any] = {"run_id": "0" * 32, "kind": "tool", "name": "t", "index": 0, "outcome": "ok"}
    return CallRecord(lane=lane, seq=seq, end_seq=seq + 1, key="", keyspec="", request="", **values)


@pytest.mark.parametrize(
    ("lane", "may"),
    [
        ("main/t:woken#1", True),
        ("main/t:asleep#1", False),
        ("main/t:ended#1", False),
        ("main/t:given#1", False),
        ("main", False),
        ("unit/t:work#1", False),
    ],
)
def test_p4_a_task_that_a_timer_had_woken_may_run_on_where_timers_were_recorded(lane: str, may: bool) -> None:
    """A woken task's next step came in one loop iteration with the first request; a sleeping task stays asleep."""
    woken = {
        f"{name}|_set_result|0": [20, -1] for name in ("main", "main/t:woken#1", "main/t:ended#1", "unit/t:work#1")
    }
    timers = {**woken, "main/t:asleep#1|_set_result|0": [9, -1], "main/t:given#1|returned|0": [20, -1]}
    manifest = {"level": "full", "timers": timers, "lane_ends": {"main/t:ended#1": 25}}
    calls = tuple(_call(name, 10 + 2 * n) for n, name in enumerate(("main/t:woken#1", "main/t:asleep#1")))
    session: Any = SimpleNamespace(recording=Recording(RootRecord("0" * 32, "app", manifest=manifest), calls))
    assert Extent(session).may_run_on(lane) is may
