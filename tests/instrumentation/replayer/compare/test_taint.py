"""Tainting: one cause is reported once, and its consequences are counted as downstream."""

from __future__ import annotations

import pytest

from spanreplay.replayer.compare import findings as findings_module
from spanreplay.replayer.compare import taint as taint_module
from spanreplay.replayer.resolve.plan import Plan
from support.replay_calls import Asked, Asker, record_calls, served


def test_one_cause_is_reported_once_in_its_lane() -> None:
    """After its first divergence a lane's others are downstream; those of another lane are separate causes."""
    lanes = ["main/t:a#1", "main/t:b#1"]
    recording = record_calls([Asked(n, lane=lane) for lane in lanes for n in range(3)])
    asker = Asker(recording, Plan(on_change="serve"))
    for n in range(3):
        for lane in lanes:
            asker.ask(Asked(n + 10, lane=lane))
    assert [d.lane for d in asker.session.divergences if not d.is_downstream] == lanes
    assert len(asker.session.divergences) == 6


def test_child_lanes_are_downstream_of_their_parent() -> None:
    """A lane that was created below a tainted one is tainted."""
    recording = record_calls([Asked(1), Asked(1, lane="main/t:a#1")])
    asker = Asker(recording, Plan(on_change="serve"))
    asker.ask(Asked(2))
    asker.ask(Asked(3, lane="main/t:a#1"))
    assert [d.is_downstream for d in asker.session.divergences] == [False, True]


def test_child_lanes_that_began_before_are_not_downstream_of_their_parent() -> None:
    """A lane that was already running when its parent diverged has its own cause."""
    recording = record_calls([Asked(0, lane="main/t:a#1"), Asked(1), Asked(1, lane="main/t:a#1")])
    asker = Asker(recording, Plan(on_change="serve"))
    served(asker, Asked(0, lane="main/t:a#1"))
    asker.ask(Asked(2))
    asker.ask(Asked(3, lane="main/t:a#1"))
    assert [d.is_downstream for d in asker.session.divergences] == [False, False]


def test_lanes_beside_a_tainted_one_stay_strict_when_their_parent_is_tainted_by_it() -> None:
    """A tainted lane taints its parent when it ends, but not the parent's other lanes that began before."""
    lanes = ["main/t:a#1", "main/t:b#1"]
    recording = record_calls(
        [*[Asked(0, lane=lane) for lane in lanes], Asked(1, lane=lanes[0]), Asked(1), Asked(1, lane=lanes[1])]
    )
    asker = Asker(recording, Plan(on_change="serve"))
    for lane in lanes:
        served(asker, Asked(0, lane=lane))
    for lane in (lanes[0], "main", lanes[1]):
        asker.ask(Asked(9, lane=lane))
    assert [(d.lane, d.is_downstream) for d in asker.session.divergences] == [
        (lanes[0], False),
        ("main", True),
        (lanes[1], False),
    ]
    assert asker.session.divergences[1].downstream_of == asker.session.divergences[0].seq


def test_text_that_a_changed_call_carries_on_taints_other_lanes() -> None:
    """A call in another lane that repeats a changed text is downstream, not a cause."""
    recording = record_calls([Asked("sell 1,000 worth", lane="main/t:a#1"), Asked("plan: sell 1,000 worth", lane="b")])
    asker = Asker(recording, Plan(on_change="serve"))
    asker.ask(Asked("sell 1,000 shares", lane="main/t:a#1"))
    asker.ask(Asked("plan: sell 1,000 shares", lane="b"))
    assert [d.is_downstream for d in asker.session.divergences] == [False, True]


def test_what_taints_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored texts and divergences are limited; the total goes on counting."""
    monkeypatch.setattr(taint_module, "NEW_TEXTS_MAX", 5)
    monkeypatch.setattr(findings_module, "DIVERGENCES_MAX", 7)
    asker = Asker(record_calls([Asked("x" * 20, lane=str(n)) for n in range(20)]), Plan(on_change="serve"))
    for n in range(20):
        asker.ask(Asked(f"{n:020}", lane=str(n)))
    assert len(asker.session.findings.taint.texts) == 5
    assert (len(asker.session.divergences), asker.session.findings.divergences_total) == (7, 20)
