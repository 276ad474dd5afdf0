"""The search for the earlier units that a unit needs, and that of a suite for all of its units."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.cli import suite
from spanreplay.cli.agent.launch import Agent
from spanreplay.cli.one_start import Terms
from spanreplay.cli.runs import earlier, lacking
from spanreplay.cli.runs.lacking import judge_lacking
from spanreplay.cli.runs.needed import NEEDED_MAX, iter_tries
from spanreplay.cli.runs.units import Unit, group_by_process
from spanreplay.model.call import RootRecord
from spanreplay.model.errors import SourceError
from spanreplay.report.json import parse
from spanreplay.report.shape import SCHEMA, Verdict


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=5), st.booleans())
def test_p4_the_units_that_are_needed_are_found_among_all(count: int, wanted: set[int], is_enough: bool) -> None:
    """Up to NEEDED_MAX of them exactly; of more, all since the last of these, in few tries; none where all fail."""
    units = [str(each) for each in range(count)]
    needed = {str(each) for each in wanted if each < count} or {"0"}
    tries = iter_tries(units)
    tried = [next(tries)]
    while True:
        try:
            tried.append(tries.send(is_enough and needed <= set(tried[-1])))
        except StopIteration as end:
            found: tuple[str, ...] = end.value
            break
    assert all(list(each) == sorted(each, key=int) for each in tried)
    if not is_enough:
        assert (found, tried) == ((), [tuple(units)])
        return
    assert found in tried
    assert needed <= set(found)
    assert len(tried) <= 1 + NEEDED_MAX * (math.ceil(math.log2(count)) + 1)
    if len(needed) <= NEEDED_MAX:
        assert set(found) == needed


def _verdict(run: str, word: str, boundary: str = "http:get", units: Sequence[str] = (), served: int = 0) -> Verdict:
    cause = {"kind": "extra_call", "boundary": boundary, "downstream": False}
    stated: dict[str, Any] = {"schema": SCHEMA, "verdict": word, "run_id": run, "app": "a", "reasons": []}
    stated["counts"] = {"served": served}
    stated["divergences"] = [cause] if word == "diverged" else []
    stated["warm_up"] = {"before": 9, "replayed": len(units), "units": [{"run_id": each, "why": ""} for each in units]}
    return parse(json.dumps(stated))


class _World:
    """Units u0, u1, … of one process, what each of them needs, and how often it was asked."""

    def __init__(self, needs: Mapping[int, set[int]], sessions: Sequence[str], boundaries: Mapping[int, str]) -> None:
        self.names = [f"u{at}" for at in range(len(sessions))]
        self.units = [
            Unit(name, RootRecord(name, session_id=session), "process")
            for name, session in zip(self.names, sessions, strict=True)
        ]
        self.before = {name: [each.root for each in self.units[:at]] for at, name in enumerate(self.names)}
        self.needs = {f"u{at}": {f"u{each}" for each in needed} for at, needed in needs.items()}
        self.boundaries = {f"u{at}": boundary for at, boundary in boundaries.items()}
        self.rounds: list[dict[str, tuple[str, ...]]] = []

    def judge(self, tries: Mapping[str, Sequence[str]]) -> dict[str, Verdict]:
        self.rounds.append({run: tuple(ids) for run, ids in tries.items()})
        return {run: self._judge(run, ids) for run, ids in tries.items()}

    def _judge(self, run: str, ids: Sequence[str]) -> Verdict:
        needed = self.needs.get(run, set())
        boundary = self.boundaries.get(run, "http:get")
        return _verdict(run, "identical" if needed <= set(ids) else "diverged", boundary, ids, len(needed & set(ids)))

    def settle(self) -> dict[str, list[str] | None]:
        """Unit → the earlier units after which it is identical; None if it stays diverged."""
        alone = [self._judge(name, ()) for name in self.names]
        verdicts = self.verdicts = judge_lacking(self.units, alone, self.before, self.judge)
        assert [each["run_id"] for each in verdicts] == self.names
        return {
            each["run_id"]: [unit["run_id"] for unit in each["warm_up"]["units"]]
            if each["verdict"] == "identical"
            else None
            for each in verdicts
        }


def test_p4_n12_what_one_unit_of_a_group_needs_is_tried_for_the_others() -> None:
    """A client made by u3: found for u4 in log2 rounds, then tried for all others in one."""
    world = _World({at: {3} for at in range(4, 40)}, [""] * 40, {})
    assert world.settle() == {f"u{at}": ["u3"] if at > 3 else [] for at in range(40)}
    assert [each["warm_up"].get("is_needed") for each in world.verdicts[3:6]] == [None, True, None]
    assert [len(each) for each in world.rounds[:-1]] == [1] * (len(world.rounds) - 1)
    assert len(world.rounds) < 8
    assert world.rounds[-1] == {f"u{at}": ("u3",) for at in range(5, 40)}


def test_p4_n12_units_of_a_session_begin_behind_those_of_their_session() -> None:
    """The history of a conversation: found with the first try, for each session its own."""
    sessions = [f"s{at % 3}" for at in range(30)]
    needs = {at: set(range(at % 3, at, 3)) for at in range(3, 30)}
    world = _World(needs, sessions, {})
    assert world.settle() == {f"u{at}": [f"u{each}" for each in range(at % 3, at, 3)] for at in range(30)}
    assert [len(each) for each in world.rounds] == [1, 26]


def test_p4_n12_units_that_need_others_are_tried_after_all_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the limit lets; the others stay diverged."""
    needs = {5: {4}, 6: {4, 0}, 7: {4, 1}, 8: {4, 2}}
    assert _World(needs, [""] * 9, {}).settle()["u8"] == [f"u{at}" for at in range(8)]
    monkeypatch.setattr(lacking, "REPLAYS_MAX", 13)
    found = _World(needs, [""] * 9, {}).settle()
    assert found["u6"] == [f"u{at}" for at in range(6)]
    assert found["u7"] == [f"u{at}" for at in range(7)]
    assert found["u8"] is None


def test_n12_a_true_difference_costs_three_replays_for_each_group() -> None:
    """A change that breaks 100 units in two ways: of each, three are tried after all earlier ones; all stay so."""
    world = _World({at: {-1} for at in range(100)}, [""] * 100, {at: f"tool:t{at % 2}" for at in range(100)})
    assert [run for run, found in world.settle().items() if found is not None] == []
    assert [sorted(each) for each in world.rounds] == [["u1", "u2"], ["u98", "u99"], ["u50", "u51"]]


def test_p4_n12_a_unit_with_a_reason_of_its_own_does_not_speak_for_its_group() -> None:
    """The first of a group stays diverged after all earlier units; what the others need is found all the same."""
    world = _World({3: {-1}, 5: {4}, 6: {4}, 7: {1}}, [""] * 8, {})
    found = world.settle()
    assert found["u3"] is None
    assert [found[each] for each in ("u5", "u6", "u7")] == [
        [f"u{at}" for at in range(5)],
        [f"u{at}" for at in range(6)],
        ["u1"],
    ]


def test_p4_n12_a_unit_that_differs_for_two_reasons_is_named_for_the_one_that_its_state_leaves() -> None:
    """What is missing and what was changed: after the earlier units it gets further, and that verdict is its own."""
    world = _World({at: {0, 1, -1} for at in range(2, 5)}, [""] * 5, {})
    assert [run for run, found in world.settle().items() if found is None] == ["u2", "u3", "u4"]
    assert [len(each["warm_up"]["units"]) for each in world.verdicts] == [0, 0, 2, 2, 2]
    assert [sorted(each) for each in world.rounds] == [["u2"], ["u3", "u4"], ["u3", "u4"]]


def test_p4_each_worker_of_a_run_has_a_start_of_its_own() -> None:
    """Units of two workers name the same process, which is the run of both, with another root lane."""
    env = {"process": "0" * 32, "start": 1, "calls": 1, "before": 0}
    units = [
        Unit(f"u{at}", RootRecord(f"u{at}", env={"unit": {**env, "root": f"main/p:worker#{at % 2}"}}), "0" * 32)
        for at in range(4)
    ]
    assert [[unit.run_id for unit in group] for group in group_by_process(units)] == [["u0", "u2"], ["u1", "u3"]]


def test_n12_an_earlier_unit_that_cannot_be_read_costs_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The units keep the verdicts that they have alone, and why nothing more is known is said."""

    def fail(*given: object) -> list[Verdict]:
        raise SourceError("it is damaged")

    alone = [_verdict("u0", "diverged")]
    monkeypatch.setattr(suite, "_write_files", lambda *given: [])
    monkeypatch.setattr(suite, "replay_units", lambda *given: (alone, 1))
    monkeypatch.setattr(earlier, "find_for_each", lambda *given: {})
    monkeypatch.setattr(suite, "judge_lacking", fail)
    terms = Terms(Agent(("python",)), 1, 1, None)
    units = [Unit("u0", RootRecord("u0"), "process")]
    found = suite._replay_process(Mock(), "process", units, terms, earlier.AUTO, tmp_path)
    assert found == (alone, 1)
    assert "that can't be told: it is damaged" in capsys.readouterr().err


def test_p4_units_without_earlier_ones_are_not_asked_about() -> None:
    """Neither identical units nor a first one that diverges; nothing is replayed again."""
    world = _World({0: {-1}}, [""] * 3, {})
    assert world.settle() == {"u0": None, "u1": [], "u2": []}
    assert world.rounds == []
