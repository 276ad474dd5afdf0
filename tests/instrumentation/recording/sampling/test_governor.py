"""The governor: measurements that stop the recording of new units and restart it, and the recorder's own CPU time."""

from __future__ import annotations

import sys
import threading
from time import thread_time_ns
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.recording.sampling import own_cpu
from spanreplay.recording.sampling.governor import CPU, PAUSE_S, QUEUE, Governor, Limits, read_limits
from spanreplay.recording.sampling.rules import Rules
from spanreplay.recording.sampling.tally import MEMBER, Tally

LIMITS: Final = Limits(cpu=0.2, queue=0.9)


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_n3_p8_it_steps_down_at_once_and_up_after_a_calm_pause(caplog: pytest.LogCaptureFixture) -> None:
    """Each change is logged once and counted; a second stop soon after the first lasts at least twice as long."""
    clock = Clock()
    governor = Governor(LIMITS, clock)
    governor.note(CPU, 0.19)
    assert governor.passed == ""
    for _ in range(3):
        governor.note(CPU, 0.4)
    assert governor.passed == CPU
    clock.now += PAUSE_S / 2
    governor.note(CPU, 0.0)
    assert governor.passed == CPU
    clock.now += PAUSE_S / 2
    governor.note(CPU, 0.19)
    assert governor.passed == CPU
    governor.note(CPU, 0.0)
    assert governor.passed == ""
    clock.now += 1
    governor.note(CPU, 0.3)
    clock.now += PAUSE_S
    governor.note(CPU, 0.0)
    assert governor.passed == CPU
    clock.now += PAUSE_S
    governor.note(CPU, 0.0)
    assert governor.passed == ""
    assert governor.describe()["steps_down"] == 2
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "new units are not recorded, for 5 s at least",
        "new units are recorded again",
        "new units are not recorded, for 10 s at least",
        "new units are recorded again",
    ]
    assert "SPANREPLAY_CPU_LIMIT is 0.2" in caplog.records[0].message


_NOTES: Final = st.lists(st.tuples(st.floats(0, 30), st.sampled_from([CPU, QUEUE]), st.floats(0, 2)), max_size=40)


@given(_NOTES)
def test_n3_p8_new_units_are_recorded_only_within_every_limit(notes: list[tuple[float, str, float]]) -> None:
    """For any sequence of measurements, no new unit is recorded while the last measurement exceeds its limit."""
    clock = Clock()
    governor = Governor(LIMITS, clock)
    last: dict[str, float] = {}
    for pause, limit, measured in notes:
        clock.now += pause
        governor.note(limit, measured)
        last[limit] = measured
        if last.get(CPU, 0) > 0.2 or last.get(QUEUE, 0) > 0.9:
            assert governor.passed
    for _ in range(2):
        clock.now += 1000
        for limit in (CPU, QUEUE):
            governor.note(limit, 0.0)
    assert governor.passed == ""
    assert len(governor.describe().get("steps", [])) <= 20


@pytest.mark.parametrize("text", ["much", "-1", "0", "nan", "inf"])
def test_n3_a_limit_that_can_not_be_used_is_said_and_is_none(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """An unusable limit gives one error that names the variable and the value, and there is no limit then."""
    for _ in range(2):
        assert read_limits({"SPANREPLAY_CPU_LIMIT": text, "SPANREPLAY_QUEUE_LIMIT": "0.5"}) == Limits(None, 0.5)
    assert sum(f"SPANREPLAY_CPU_LIMIT={text!r} can't be used" in record.message for record in caplog.records) == 1
    assert read_limits({}) == Limits(None, 0.9)


@own_cpu.measured
def _outer(spent: list[int]) -> None:
    _inner(spent)


@own_cpu.measured
def _inner(spent: list[int]) -> None:
    spent.append(sum(number * number for number in range(20_000)))


def test_n3_p8_what_the_recorder_takes_is_measured_once_and_only_where_there_is_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A measured part inside another is counted once, also if it raises; taking the total resets it."""
    meter = own_cpu.Meter()
    monkeypatch.setattr(own_cpu, "METER", meter)
    _outer([])
    assert meter.take() == 0
    meter.is_on = True
    begun = thread_time_ns()
    _outer([])
    alone = thread_time_ns() - begun
    assert 0 < meter.take() <= alone
    begun = thread_time_ns()
    with pytest.raises(AttributeError):
        _outer(None)  # type: ignore[arg-type]  # so that it raises
    assert 0 < meter.take() <= thread_time_ns() - begun
    assert meter.take() == 0


def test_n3_p8_own_threads_are_measured_and_no_others() -> None:
    """The recorder's threads are recognised by name; earlier CPU time is not counted again."""
    done, ending = threading.Event(), threading.Event()

    def work() -> None:
        _inner([])
        done.set()
        ending.wait()

    for name, is_own in (("program", False), ("spanreplay-test", True)):
        done.clear()
        ending.clear()
        threads = own_cpu.OwnThreads()
        threads.take()
        thread = threading.Thread(target=work, name=name)
        thread.start()
        done.wait()
        assert (threads.take() > 0) is (is_own and sys.platform == "linux")
        ending.set()
        thread.join()


def test_n3_p8_a_step_is_stated_although_no_unit_came_meanwhile() -> None:
    """The manifest says that a limit was exceeded even if no unit was left out because of it."""
    governor = Governor(LIMITS, Clock())
    tally = Tally(Rules(), governor)
    assert tally.for_manifest() == {}
    governor.note(CPU, 9.0)
    stated = tally.for_manifest()[MEMBER]
    assert (stated["steps_down"], stated["not_recorded"]) == (1, {})
