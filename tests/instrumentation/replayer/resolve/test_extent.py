"""How far a unit's recording goes: what background tasks of the start do further is no difference of the unit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spanreplay.model.call import Recording, RootRecord
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
    """Only where the recording does not say when its timers fired, and only if it had not ended by then."""
    assert _make(level).may_run_on(lane) is may
