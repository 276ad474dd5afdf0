"""Resolution of calls: every step of the cascade, never live by default, at constant cost in long runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model.call import Outcome, Recording
from spanreplay.model.errors import ReplayMiss
from spanreplay.replayer.compare import findings as findings_module
from spanreplay.replayer.compare import taint as taint_module
from spanreplay.replayer.index import RecordingIndex
from spanreplay.replayer.resolve.plan import Plan
from support.replay_calls import Asked, Asker, record_calls, seal, served


def missed(asker: Asker, asked: Asked) -> str:
    """Make a call that is missed; return the message."""
    with pytest.raises(ReplayMiss) as caught:
        asker.ask(asked)
    return str(caught.value)


def kinds(asker: Asker) -> list[str]:
    """The kinds of the divergences so far."""
    return [d.kind for d in asker.session.divergences]


def with_outcome(recording: Recording, seq: int, outcome: Outcome) -> Recording:
    """The recording with one call's outcome changed, sealed again."""
    calls = tuple(dataclasses.replace(c, outcome=outcome.value) if c.seq == seq else c for c in recording.calls)
    return seal(Recording(recording.root, calls))


# ── The steps, in their order ───────────────────────────────────────────────────────────────────────
def test_same_slot_and_key_is_exact() -> None:
    """Identical calls in one lane get their answers in the order in which they were recorded."""
    asker = Asker(record_calls([Asked(1), Asked(1), Asked(2)]))
    assert [served(asker, Asked(x)) for x in (1, 1, 2)] == [1, 2, 3]
    assert asker.session.counts == {**asker.session.counts, "served": 3, "exact": 3, "moved": 0}
    assert kinds(asker) == []


def test_n1_identical_calls_are_told_apart_by_their_lane() -> None:
    """Of identical calls in two lanes each lane gets its own answer, whoever asks first."""
    asker = Asker(record_calls([Asked(1, lane="main/t:a#1"), Asked(1, lane="main/t:a#2")]))
    assert served(asker, Asked(1, lane="main/t:a#2")) == 2
    assert served(asker, Asked(1, lane="main/t:a#1")) == 1
    assert asker.session.counts["exact"] == 2


def test_provider_call_id_finds_a_call_in_another_slot() -> None:
    """A call with an equal call id and key is exact, although order and lane differ."""
    asker = Asker(record_calls([Asked(1, call_id="call_a"), Asked(1, call_id="call_b")]))
    assert served(asker, Asked(1, call_id="call_b", lane="main/t:new#1")) == 2
    assert served(asker, Asked(1, call_id="call_a", lane="main/t:new#1")) == 1
    assert (asker.session.counts["exact"], kinds(asker)) == (2, [])


def test_call_id_with_another_key_is_not_served() -> None:
    """Different arguments with a known call id are not equal."""
    asker = Asker(record_calls([Asked(1, call_id="call_a")]))
    missed(asker, Asked(2, call_id="call_a", lane="main/t:new#1"))
    assert kinds(asker) == ["extra_call"]


def test_equal_key_elsewhere_is_moved() -> None:
    """A call that was made in another lane is served, and reported with its recorded lane."""
    asker = Asker(record_calls([Asked(1), Asked(2)]))
    assert served(asker, Asked(2)) == 2
    assert served(asker, Asked(1)) == 1
    assert kinds(asker) == ["moved", "moved"]
    assert "it was call 2 in main" in asker.session.divergences[0].message


def test_moved_takes_the_earliest_unused_call() -> None:
    """Of several equal calls elsewhere with the same answer, the first unused one is served."""
    recording = record_calls([Asked(1, lane="a"), Asked(1, lane="b"), Asked(1, lane="c")])
    calls = tuple(dataclasses.replace(c, response='{"value":7}') for c in recording.calls)
    asker = Asker(seal(Recording(recording.root, calls)))
    assert served(asker, Asked(1, lane="b")) == 2
    assert [served(asker, Asked(1, lane="z")) for _ in range(2)] == [1, 3]
    assert kinds(asker) == ["moved", "moved"]


def test_moved_prefers_its_own_lane_then_a_renamed_one() -> None:
    """A call of this lane comes first, then one of a lane whose path differs only in a name."""
    lanes = ["main/t:fetch#1", "main/t:fetch#2", "main/t:fetch#3"]
    asker = Asker(record_calls([Asked(1, lane=lane) for lane in lanes]))
    assert [served(asker, Asked(1, lane=f"main/t:get#{n}")) for n in (3, 1, 2)] == [3, 1, 2]
    own = Asker(record_calls([Asked(1, lane="b"), Asked(1, lane="a"), Asked(1, lane="a")]))
    own.session.index.take(own.session.recording.calls[1])
    assert served(own, Asked(1, lane="a")) == 3


@pytest.mark.parametrize("on_change", ["stop", "serve"])
def test_s65_ambiguous_is_not_guessed(on_change: str) -> None:
    """If two recorded calls fit equally and gave different answers, none is served unless the plan allows it."""
    asker = Asker(record_calls([Asked(1, lane="a"), Asked(1, lane="b")]), Plan(on_change=on_change))
    if on_change == "serve":
        assert served(asker, Asked(1, lane="z")) == 1
    else:
        assert "call 1 in a and call 2 in b fit equally" in missed(asker, Asked(1, lane="z"))
    assert kinds(asker) == ["ambiguous"]


def test_s65_boundary_renamed_is_named() -> None:
    """An equal request under a name that was never recorded is the recorded call, renamed, and is not served."""
    asker = Asker(record_calls([Asked({"a": 1}), Asked({"a": 2})]))
    served(asker, Asked({"a": 1}))
    assert "the same request was recorded as tool:f, call 2" in missed(asker, Asked({"a": 2}, name="g"))
    assert kinds(asker) == ["boundary_renamed"]


def test_s65_boundary_that_is_recorded_too_is_not_renamed() -> None:
    """Calling another known tool with the same arguments is an extra call, never a rename."""
    asker = Asker(record_calls([Asked(1, name="delete_staging"), Asked(9, name="delete_production")]))
    missed(asker, Asked(1, name="delete_production"))
    assert kinds(asker) == ["changed_call"]
    again = Asker(record_calls([Asked(9, name="delete_production"), Asked(1, name="delete_staging")]))
    served(again, Asked(9, name="delete_production"))
    missed(again, Asked(1, name="delete_production"))
    assert kinds(again) == ["extra_call"]
    assert again.session.divergences[0].candidates[0].why_rejected == "arguments.x differs, and it was already served"


@pytest.mark.parametrize(
    ("recorded", "now", "kind"),
    [
        ({"n": 1}, {"n": "1"}, "type_changed"),
        ({"n": 1}, {"n": 1.0}, None),
        ({"n": [1]}, {"n": {"$type": "tuple", "items": [1]}}, "type_changed"),
        ({"n": 1}, {"n": "2"}, "changed_call"),
        ({"n": 1, "m": 2}, {"n": "1", "m": 3}, "changed_call"),
        ({"n": None}, {}, "changed_call"),
    ],
    ids=["text", "same_number", "tuple", "other_value", "one_of_two", "gone"],
)
def test_s65_type_changed_is_the_same_value_in_another_type(recorded: Any, now: Any, kind: str | None) -> None:
    """1 and '1' differ in type; any other value is a changed call; 1 and 1.0 have one key."""
    asker = Asker(record_calls([Asked(recorded)]))
    if kind is None:
        served(asker, Asked(now))
    else:
        missed(asker, Asked(now))
    assert kinds(asker) == ([kind] if kind else [])


# ── Nearest candidates ──────────────────────────────────────────────────────────────────────────────
def test_s65_candidates_say_why_each_was_rejected() -> None:
    """A call without an answer lists the nearest recorded ones, at most three, each with the reason."""
    recording = record_calls(
        [Asked("sell 100"), Asked("sell 200"), Asked("buy", name="g"), *[Asked(n) for n in range(40)]]
    )
    asker = Asker(recording)
    served(asker, Asked("sell 100"))
    missed(asker, Asked("sell 201"))
    (found,) = asker.session.divergences
    assert [(c.seq, c.why_rejected) for c in found.candidates[:2]] == [
        (2, "arguments.x differs"),
        (1, "arguments.x differs, and it was already served"),
    ]
    assert len(found.candidates) == 3
    assert [c.score for c in found.candidates] == sorted((c.score for c in found.candidates), reverse=True)


def test_candidates_of_an_answered_call_say_so() -> None:
    """A call made once more than recorded lists the call that it repeats."""
    asker = Asker(record_calls([Asked(1)]))
    served(asker, Asked(1))
    missed(asker, Asked(1))
    (candidate,) = asker.session.divergences[0].candidates
    assert (candidate.seq, candidate.score, candidate.why_rejected) == (1, 1.0, "it was already served")


# ── Ignored differences ─────────────────────────────────────────────────────────────────────────────
def test_s35_ignored_difference_of_a_served_call_is_kept_with_its_span() -> None:
    """Fields that the key leaves out are still compared; differences are shown and don't affect the verdict."""
    recording = record_calls([Asked(1)])
    calls = (dataclasses.replace(recording.calls[0], request='{"arguments":{"x":1},"note":"then"}'),)
    asker = Asker(seal(Recording(recording.root, calls)))
    served(asker, Asked(1))
    (found,) = asker.session.findings.ignored
    assert [(d.path, d.recorded, d.now) for d in found.diff] == [("note", "then", "(absent)")]
    assert found.recorded_span_id == recording.calls[0].span_id
    assert kinds(asker) == []


def test_s28_same_slot_with_another_key_is_changed_and_stops() -> None:
    """A call whose arguments differ is refused with the location of the difference, and is not tried again."""
    asker = Asker(record_calls([Asked({"n": 1}), Asked({"n": 2})]))
    message = missed(asker, Asked({"n": 3}))
    assert "arguments.x.n differs" in message
    assert "lane main" in message
    (divergence,) = asker.session.divergences
    assert [(d.path, d.recorded, d.now) for d in divergence.diff] == [("arguments.x.n", 1, 3)]
    assert "--on-change serve" in divergence.hint
    assert asker.session.is_stopped


def test_s28_on_change_serve_answers_by_position() -> None:
    """With on_change=serve the changed call gets the answer of its slot, and is still reported."""
    asker = Asker(record_calls([Asked(1), Asked(2)]), Plan(on_change="serve"))
    assert [served(asker, Asked(x)) for x in (8, 2)] == [1, 2]
    assert kinds(asker) == ["changed_call"]
    assert not asker.session.is_stopped


def test_s28_on_change_live_goes_live_only_for_the_changed_call() -> None:
    """With on_change=live a changed call runs live and is counted; equal ones are still served."""
    asker = Asker(record_calls([Asked(1), Asked(2)]), Plan(on_change="live"))
    crossing = asker.ask(Asked(8))
    assert crossing.served is None
    assert crossing.is_live_by_plan
    assert served(asker, Asked(2)) == 2
    assert (asker.session.counts["live"], kinds(asker)) == (1, ["changed_call"])


@pytest.mark.parametrize("on_change", ["stop", "serve", "live"])
def test_s27_call_that_was_never_recorded_is_extra(on_change: str) -> None:
    """An extra call is refused under every on_change, because no recorded call changed."""
    asker = Asker(record_calls([Asked(1)]), Plan(on_change=on_change))
    served(asker, Asked(1))
    assert "the recording has no such call" in missed(asker, Asked(1))
    assert missed(asker, Asked(1, name="g"))
    assert kinds(asker) == ["extra_call", "extra_call"]


def test_missing_calls_are_those_that_nobody_asked_for() -> None:
    """Calls that are left over at the end are missing, in recorded order."""
    asker = Asker(record_calls([Asked(1), Asked(2), Asked(3)]))
    served(asker, Asked(1))
    missing, covered = asker.session.unplayed()
    assert ([c.seq for c in missing], covered) == ([2, 3], 0)


def test_children_of_a_served_call_are_covered_at_any_depth() -> None:
    """Calls that were made inside a served one are neither missing nor expected."""
    recording = record_calls([Asked("outer"), Asked("inner"), Asked("innermost"), Asked("after")])
    parents = {2: 1, 3: 2}
    calls = tuple(dataclasses.replace(c, parent=parents.get(c.seq, -1)) for c in recording.calls)
    asker = Asker(seal(Recording(recording.root, calls)))
    served(asker, Asked("outer"))
    missing, covered = asker.session.unplayed()
    assert ([c.seq for c in missing], covered) == ([4], 2)


# ── Incomplete recordings ───────────────────────────────────────────────────────────────────────────
def test_s48_killed_run_ends_at_its_frontier() -> None:
    """After the last call of a killed run nothing is extra, because the recording just ends there."""
    asker = Asker(record_calls([Asked(1)], manifest={}))
    served(asker, Asked(1))
    assert "the recording ends before this call" in missed(asker, Asked(2))
    assert asker.session.has_reached_frontier
    assert kinds(asker) == []


def test_s48_call_that_never_ended_is_the_frontier() -> None:
    """A call that was started and never finished can't be served, and is not counted as served."""
    recording = with_outcome(record_calls([Asked(1)]), 1, Outcome.OPEN)
    asker = Asker(recording)
    assert "ends inside this call" in missed(asker, Asked(1))
    assert asker.session.has_reached_frontier
    assert asker.session.is_stopped
    assert asker.session.counts == {**asker.session.counts, "served": 0, "exact": 0}


@pytest.mark.parametrize(
    "manifest", [{"calls": 1, "holes": ["call 1 (tool:f): value unserializable at $.a"]}, {"calls": 1, "truncated": 1}]
)
def test_s27_extra_call_behind_a_recorded_end_is_extra_although_there_is_a_hole(manifest: dict[str, Any]) -> None:
    """A run with a hole that nevertheless ended has no frontier, so one more call is extra."""
    asker = Asker(record_calls([Asked(1)], manifest=manifest))
    served(asker, Asked(1))
    missed(asker, Asked(2))
    assert kinds(asker) == ["extra_call"]
    assert not asker.session.has_reached_frontier


@pytest.mark.parametrize("manifest", [{"calls": 2}, {"calls": 1, "dropped": 1}], ids=["lost", "dropped"])
def test_s48_call_that_may_have_been_lost_is_the_frontier(manifest: dict[str, Any]) -> None:
    """If the manifest says that calls are missing, a call without a record may be one of them."""
    asker = Asker(record_calls([Asked(1)], manifest=manifest))
    missed(asker, Asked(2, name="g"))
    assert (asker.session.has_reached_frontier, kinds(asker)) == (True, [])


# ── Live by plan ────────────────────────────────────────────────────────────────────────────────────
def test_s2_live_boundaries_are_paired_and_the_rest_is_served() -> None:
    """A live call is paired with its recorded one, which then is not missing; others are served."""
    asker = Asker(record_calls([Asked(1), Asked(1, name="g")]), Plan(live=("tool:f",)))
    live = asker.ask(Asked(1))
    assert (live.served, live.is_live_by_plan) == (None, True)
    assert live.paired is not None
    assert served(asker, Asked(1, name="g")) == 2
    assert asker.session.unplayed() == ([], 0)
    assert kinds(asker) == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(Asked(9), "changed_call"), (Asked(1, name="f", lane="z"), None), (Asked(1, kind="http"), "extra_call")],
    ids=["changed", "elsewhere", "extra"],
)
def test_live_calls_are_compared_with_the_recording(asked: Asked, expected: str | None) -> None:
    """A live call that differs from the recorded one is reported; one that moved is the same call."""
    asker = Asker(record_calls([Asked(1)]), Plan(live=("*:*",)))
    asker.ask(asked)
    assert kinds(asker) == ([expected] if expected else [])


def settle(recorded: str, now: str, outcome: Outcome = Outcome.OK) -> Asker:
    """Settle one live call with the output `now`, recorded as `recorded`."""
    recording = record_calls([Asked(1), Asked(2, name="g")])
    calls = (dataclasses.replace(recording.calls[0], response=recorded), recording.calls[1])
    asker = Asker(seal(Recording(recording.root, calls)), Plan(live=("tool:f",)))
    asker.ask(Asked(1)).close(outcome, now)
    return asker


def http(body: str, ms: int = 5, date: str = "today", status: int = 200) -> str:
    """An HTTP response as recorded."""
    return (f'{{"status":{status},"headers":[["date","{date}"]],"chunks":[[{ms},{body!r}]],"end":"complete"}}').replace(
        "'", '"'
    )


@pytest.mark.parametrize(
    ("recorded", "now", "paths"),
    [
        ('{"value":{"a":1}}', '{"value":{"a":1}}', []),
        ('{"value":{"a":1}}', '{"value":{"a":2}}', ["value.a"]),
        (http("hello"), http("hello", ms=900, date="tomorrow"), []),
        (http("hello"), http("hallo"), ["body"]),
        (http("hello"), http("hello", status=500), ["status"]),
        ("not json", "not json either", ["$"]),
    ],
    ids=["same", "value", "http_times", "http_body", "http_status", "text"],
)
def test_output_of_a_live_call_is_compared(recorded: str, now: str, paths: list[str]) -> None:
    """The output of a live call is compared, except for the times and headers of an HTTP exchange."""
    asker = settle(recorded, now)
    assert [d.path for found in asker.session.divergences for d in found.diff] == paths
    assert kinds(asker) == (["output_changed"] if paths else [])


def test_live_call_that_fails_now_is_an_output_that_changed() -> None:
    """Another outcome is a change, and is named first."""
    asker = settle('{"value":1}', '{"error":{}}', Outcome.ERROR)
    assert asker.session.divergences[0].diff[0].path == "outcome"


# ── Laws ────────────────────────────────────────────────────────────────────────────────────────────
asked_calls = st.builds(
    Asked,
    st.integers(0, 3),
    name=st.sampled_from(["f", "g"]),
    lane=st.sampled_from(["main", "main/t:a#1"]),
    call_id=st.sampled_from(["", "call_a", "call_b"]),
)
plans = st.builds(
    Plan,
    stub=st.sampled_from([(), ("tool:*",), ("tool:g",)]),
    live=st.sampled_from([(), ("tool:f",), ("tool:*",), ("llm:*",)]),
    on_change=st.sampled_from(["stop", "serve", "live"]),
)


@given(st.lists(asked_calls, max_size=8), st.lists(asked_calls, max_size=10), plans, st.booleans())
def test_s27_nothing_ever_goes_live_by_itself(
    recorded: list[Asked], now: list[Asked], plan: Plan, is_killed: bool
) -> None:
    """A call is served, or missed, or live because the plan says so for this very call."""
    recording = record_calls(recorded, manifest={} if is_killed else None)
    asker = Asker(recording, plan)
    taken: list[int] = []
    for one in now:
        boundary = f"{one.kind}:{one.name}"
        try:
            crossing = asker.ask(one)
        except ReplayMiss:
            assert not plan.is_live(boundary)
            continue
        if crossing.served is None:
            is_changed = bool(asker.session.divergences) and asker.session.divergences[-1].kind == "changed_call"
            assert plan.is_live(boundary) or (plan.on_change == "live" and is_changed)
            assert crossing.is_live_by_plan
        else:
            assert not plan.is_live(boundary)
            if crossing.served.key != crossing.key.hex or crossing.served.boundary != boundary:
                assert plan.on_change == "serve"
            taken.append(crossing.served.seq)
    assert len(set(taken)) == len(taken)


@given(st.lists(asked_calls, max_size=12))
def test_s20_the_same_calls_are_served_in_order(calls: list[Asked]) -> None:
    """If the replay makes the same calls, it gets every answer once, in order, with nothing to report."""
    asker = Asker(record_calls(calls))
    assert [served(asker, one) for one in calls] == list(range(1, len(calls) + 1))
    assert (kinds(asker), asker.session.unplayed()) == ([], ([], 0))


class Counted(dict[Any, Any]):
    """A dictionary that counts its lookups."""

    reads = 0

    def get(self, key: Any, default: Any = None) -> Any:
        """Count a lookup."""
        Counted.reads += 1
        return super().get(key, default)


def _work(calls: int, ask: Callable[[int], Asked]) -> int:
    index = RecordingIndex(record_calls([Asked(n) for n in range(calls)]))
    index._slots = Counted({place: Counted(numbered) for place, numbered in index._slots.items()})
    index._by_call_id = Counted(index._by_call_id)
    index._by_key = Counted(index._by_key)
    asker = Asker(Recording(record_calls([]).root, ()), Plan(on_change="serve"))
    asker.session.index = index
    before = Counted.reads
    for n in range(calls):
        asker.ask(ask(n))
    return (Counted.reads - before) // calls


@pytest.mark.parametrize(
    "ask",
    [lambda n: Asked(n), lambda n: Asked(n, lane="z"), lambda n: Asked(-n - 1)],
    ids=["exact", "moved", "changed"],
)
def test_resolving_does_not_cost_more_in_a_long_run(
    ask: Callable[[int], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes as many lookups in a run of 10,000 calls as in one of 100, for every step of the cascade."""
    monkeypatch.setattr(findings_module, "DIVERGENCES_MAX", 10)
    monkeypatch.setattr(taint_module, "NEW_TEXTS_MAX", 10)
    assert _work(10_000, ask) == _work(100, ask)
