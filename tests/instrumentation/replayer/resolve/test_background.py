"""Calls and reads of background tasks while a unit runs: which recorded call answers them, and what is uncertain."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from spanreplay.model.call import ALONE, CallRecord, Outcome, Recording
from spanreplay.model.json_text import dump
from spanreplay.replayer.index import RecordingIndex
from spanreplay.replayer.resolve import background as resolved_background
from spanreplay.replayer.resolve.background import Background, Past
from spanreplay.runtime.reads import Source
from support.runs import make_call, make_recording, make_run_id

LANE: Final = "main/th:work#1"
RANDOM: Final = Source("random", "random.random")
CLOCK: Final = Source("clock", "time.time", to_ns=lambda at: int(at * 1e9))
RUN: Final = make_run_id()


def _make_call(seq: int, key: str, at_ns: int, lane: str = LANE, **reads: list[float]) -> CallRecord:
    """A call of the process, with reads of `random` and `time` as (first, value…)."""
    names = {"random": RANDOM.name, "time": CLOCK.name}
    rows = [[names[name], *values] for name, values in reads.items()]
    made = make_call(RUN, seq, kind="llm", name="ask", key=key, lane=lane)
    return replace(made, start_ns=at_ns, end_ns=at_ns, end_seq=seq + 1, reads=dump([[lane, rows]]) if rows else "")


def _make(
    calls: tuple[CallRecord, ...], *, is_ended: bool = True, pending: Any = None, is_loop: bool = False
) -> Background:
    """The background of a unit that ran from 100 to 200."""
    recording = make_recording(RUN)
    root = recording.root if is_ended else replace(recording.root, manifest={})
    past = Past(Recording(root, calls), 100, 200, pending or {}, is_loop)
    return Background(lambda: past)


def _make_session() -> Any:
    hidden = SimpleNamespace(reveal=lambda _, call: call)
    return SimpleNamespace(divergences=[], relocation=None, hidden=hidden, counts={}, stopped="")


def _ask(background: Background, session: Any, key: str, lane: str = LANE) -> str:
    """The response to a call of a lane; '' if there is none."""
    place = SimpleNamespace(path=lane)
    crossing: Any = SimpleNamespace(boundary="llm:ask", key_hex=key, lane=place, code="app.py:1 work", served=None)
    return crossing.served.span_id if background.serve(session, crossing) else ""


def test_p4_calls_of_the_units_time_are_served_once_each_in_their_order() -> None:
    """Calls from before or after the unit are not served; a call of the same lane is served first."""
    elsewhere = _make_call(3, "a", 120, "main/th:other#1")
    calls = (_make_call(1, "a", 50), elsewhere, _make_call(5, "a", 150), _make_call(7, "a", 250))
    background, session = _make(calls), _make_session()
    assert [_ask(background, session, "a") for _ in range(3)] == [calls[2].span_id, elsewhere.span_id, ""]
    assert session.counts == {"beside": 2}
    assert background.refused.startswith("the unit waits, perhaps for work beside it: llm:ask (lane main/th:work#1)")
    assert background.doubt == ""


def test_p4_a_loop_that_waits_for_its_message_gets_what_it_got_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last answer before the unit, again and again up to a limit; the first after it, if there is none."""
    monkeypatch.setattr(resolved_background, "_IDLE_MAX", 4)
    calls = (_make_call(1, "a", 20), _make_call(3, "a", 50), _make_call(5, "b", 250), _make_call(7, "b", 300))
    background, session = _make(calls, is_loop=True), _make_session()
    asked = [_ask(background, session, key) for key in ("a", "b", "a", "a", "a")]
    assert asked == [calls[1].span_id, calls[2].span_id, calls[1].span_id, calls[1].span_id, ""]
    assert background.doubt == (
        "while no message came, the loop made a call that has no answer in the run of its process: "
        "llm:ask (lane main/th:work#1), app.py:1 work"
    )


def test_p4_a_call_that_did_not_end_answers_nothing() -> None:
    """The call's process was killed before the call ended."""
    background = _make((replace(_make_call(1, "a", 150), outcome=Outcome.OPEN.value, end_seq=-1),))
    assert _ask(background, _make_session(), "a") == ""


def test_p4_what_a_lane_draws_around_its_call_is_what_it_drew_then() -> None:
    """Random values come before the call, if unused at the unit's start, and after it; clock values only after it."""
    earlier = _make_call(1, "before", 50, random=[0, 0.1])
    own = _make_call(3, "a", 150, random=[1, 0.2, 0.3], time=[0, 7.0])
    later = _make_call(5, "b", 250, random=[3, 0.4], time=[1, 8.0])
    background, session = _make((earlier, own, later), pending={LANE: {RANDOM.name: 1}}), _make_session()
    assert background.read(session, LANE, CLOCK) == ()
    assert background.read(session, LANE, RANDOM) == (0.3,)
    assert _ask(background, session, "a")
    assert (background.read(session, LANE, CLOCK), background.read(session, LANE, RANDOM)) == ((8.0,), (0.4,))
    assert background.doubt == ""


@pytest.mark.parametrize("pending", [{}, {LANE: {RANDOM.name: 2}}], ids=["too few", "too many"])
def test_p4_what_was_drawn_for_another_request_is_a_doubt(pending: Any) -> None:
    """Values drawn before the call don't match the recorded ones, which may have belonged to another unit."""
    background = _make((_make_call(1, "a", 150, random=[0, 0.1, 0.2, 0.3]),), pending=pending)
    session = _make_session()
    background.read(session, LANE, RANDOM)
    background.read(session, LANE, RANDOM)
    _ask(background, session, "a")
    assert background.doubt.startswith("what a task beside the unit drew before llm:ask")


def test_p4_what_is_not_written_yet_is_a_doubt_while_the_process_runs() -> None:
    """An ended process has written all its reads, so a missing one is certain; a running one may write more."""
    for is_ended in (True, False):
        background, session = _make((_make_call(1, "a", 150),), is_ended=is_ended), _make_session()
        _ask(background, session, "a")
        assert background.read(session, LANE, RANDOM) == ()
        assert background.doubt.endswith("" if is_ended else "is not written yet")
        assert bool(background.doubt) is not is_ended


def test_p4_a_difference_that_came_first_is_no_doubt() -> None:
    """An earlier difference remains a divergence; endless waiting is a doubt if a recorded call was not asked for."""
    calls = (_make_call(1, "a", 150),)
    for divergences in ([], ["first"]):
        background, session = _make(calls), _make_session()
        session.divergences = divergences
        background.wait_in_vain(session)
        assert bool(background.doubt) is not bool(divergences)
    asked, session = _make(calls), _make_session()
    _ask(asked, session, "a")
    asked.wait_in_vain(session)
    assert asked.doubt == ""


def test_p4_a_lane_that_an_earlier_unit_left_has_the_reads_of_its_recorded_name() -> None:
    """The lane gets the process's reads under its recorded name, which begin with a later number."""
    recorded = _make_call(1, "a", 150, "unit/th:work#1", random=[4, 0.5, 0.6])
    background, session = _make((recorded,)), _make_session()
    lane = "earlier#1/th:work#1"
    assert [background.read(session, lane, RANDOM) for _ in range(2)] == [(0.5,), (0.6,)]
    assert _ask(background, session, "a", lane)
    assert background.doubt == ""


def test_p4_a_lane_of_the_unit_is_answered_and_makes_it_incomplete() -> None:
    """A call of an earlier unit's task is answered; a request without a recorded call is neither doubt nor answer."""
    background, session = _make((_make_call(1, "a", 150, random=[0, 0.1], time=[0, 7.0]),)), _make_session()
    lane: Any = SimpleNamespace(path="unit/t:work#1")
    crossing: Any = SimpleNamespace(boundary="llm:ask", key_hex="b", lane=lane, code="", served=None)
    assert not background.serve_stray(session, crossing)
    assert (session.stopped, background.refused, background.strays) == ("", "", set())
    crossing.key_hex = "a"
    assert background.serve_stray(session, crossing)
    assert crossing.served is not None
    assert "`spanreplay replay --warm all`" in session.stopped
    assert background.strays == {"unit/t:work#1"}


def test_p4_where_the_process_is_not_here_nothing_is_answered() -> None:
    """The unit was exported without its process, so nothing is answered."""
    background, session = Background(), _make_session()
    assert _ask(background, session, "a") == ""
    assert background.read(session, LANE, RANDOM) == ()


def test_n4_a_lane_that_lacks_only_what_a_tool_asked_by_itself_is_whole() -> None:
    """The first call that should have been made is not that of a reporting tool alone."""
    alone, own = replace(_make_call(1, "a", 50), meta={ALONE: True}), _make_call(3, "b", 60)
    root = make_recording(RUN).root
    assert RecordingIndex(Recording(root, (alone,))).find_left(LANE) is None
    assert RecordingIndex(Recording(root, (alone, own))).find_left(LANE) == own
