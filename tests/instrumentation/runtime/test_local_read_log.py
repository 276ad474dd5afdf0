"""Local reads are stored compactly, and come back by lane, source and order."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model import config
from spanreplay.model.errors import DamagedRecording
from spanreplay.redact.sealing import seal, unseal
from spanreplay.runtime.lanes import Lane
from spanreplay.runtime.reads import SOURCES, ReadLog, collect
from spanreplay.seams.machine.clock import clock, entropy, randomness, uuids

KEY = b"k" * 32


def _same(value: Any) -> Any:
    return value


def make_log(holes: list[str] | None = None) -> ReadLog:
    """A log with a real seal."""
    return ReadLog(lambda content: seal(KEY, content), (holes if holes is not None else []).append)


steps = st.lists(
    st.tuples(
        st.sampled_from(["main", "main/t:a#1"]),
        st.one_of(
            st.tuples(st.just("time.time"), st.floats(0, 2**40)),
            st.tuples(st.just("time.time_ns"), st.integers(0, 2**70)),
            st.tuples(st.just("uuid.uuid4"), st.uuids()),
            st.tuples(st.just("os.urandom"), st.binary(max_size=40)),
        ),
        st.booleans(),
    ),
    max_size=40,
)


@given(steps)
def test_reads_come_back_in_order_whatever_call_carries_them(taken: list[Any]) -> None:
    """Each lane gets each source's values back in order, however the reads are spread over calls."""
    log, lanes, texts = make_log(), {"main": Lane("main"), "main/t:a#1": Lane("main/t:a#1")}, []
    expected: dict[tuple[str, str], list[Any]] = {}
    for path, (name, value), is_call in taken:
        assert log.read(lanes[path], SOURCES[name], partial(_same, value)) == value
        expected.setdefault((path, name), []).append(value)
        if is_call:
            texts.append(log.flush(lanes[path]))
    left = json.loads(json.dumps(log.finish()["reads"].get("left", [])))
    found = collect(reversed([t for t in texts if t]), left)
    unpacked: dict[tuple[str, str], list[Any]] = {}
    for (path, name), values in found.items():
        source = SOURCES[name]
        plain = [json.loads(unseal(KEY, v) or b"") if source.is_secret else v for _, v in sorted(values.items())]
        unpacked[(path, name)] = [source.unpack(v) for v in plain]
    assert unpacked == expected


def test_ns_reads_are_written_as_differences() -> None:
    """Ten thousand consecutive clock reads take a few bytes each."""
    log, lane = make_log(), Lane("main")
    for n in range(10_000):
        log.read(lane, SOURCES["time.time_ns"], partial(_same, 1_763_768_281_000_000_000 + 1000 * n))
    assert len(log.flush(lane)) < 10_000 * 6


def test_more_reads_than_the_limit_are_one_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit reads are not kept, and the recording states once that it is incomplete."""
    monkeypatch.setattr(config, "READS_PENDING_MAX", 3)
    holes: list[str] = []
    log, lane = make_log(holes), Lane("main")
    for _ in range(10):
        log.read(lane, SOURCES["time.time"], time.time)
    assert len(holes) == 1
    assert "main" in holes[0]
    assert log.finish()["reads"]["count"] == 3


@pytest.mark.parametrize("text", ["{", "[1]", '[["main",[["time.time","x",1]]]]', '[["main",[["t_ns",0,"x"]]]]'])
def test_damaged_reads_are_refused(text: str) -> None:
    """Reads that were altered are a damaged recording, not a crash."""
    with pytest.raises(DamagedRecording):
        collect([text], [])


@given(st.binary(max_size=200))
def test_sealed_values_open_with_their_key_only(content: bytes) -> None:
    """The key opens its sealed values; another key, or a changed text, opens nothing."""
    text = seal(KEY, content)
    assert unseal(KEY, text) == content
    assert unseal(b"o" * 32, text) is None
    assert unseal(KEY, text[:-4] + "AAAA") in (None, content if text.endswith("AAAA") else None)
    assert unseal(KEY, "no base64!") is None
    assert unseal(KEY, "") is None


def test_sealing_twice_gives_two_texts() -> None:
    """Equal secrets have different sealed forms."""
    assert seal(KEY, b"same") != seal(KEY, b"same")


def test_every_source_is_in_the_table() -> None:
    """Each module that reads registers its sources, and a source's name says where it comes from."""
    assert clock.NUMBERS["time"] is SOURCES["time.time"]
    assert randomness.SEED is SOURCES["random.seed"]
    for module, name in ((entropy, "os.urandom"), (uuids, "uuid.uuid4")):
        assert module.install is not None
        assert SOURCES[name].boundary == f"random:{name}"


def test_p8_lanes_that_make_no_more_calls_are_taken_along() -> None:
    """Reads of a lane after its last call go out with the next call of any lane, and none stay in memory."""
    log, main, texts, expected = make_log(), Lane("main"), [], {}
    for number in range(100):
        lane = main.child("t:work")
        expected[(lane.path, "time.time_ns")] = [number]
        log.read(lane, SOURCES["time.time_ns"], partial(_same, number))
        texts.append(log.flush(main))
        assert len(log._pending) <= 1
    found = collect([text for text in texts if text], log.finish()["reads"].get("left", []))
    assert {key: list(values.values()) for key, values in found.items()} == expected


def test_p8_reads_of_a_lane_that_is_taken_along_meanwhile_are_all_there() -> None:
    """A thread goes on reading in its lane while another lane's calls carry its reads away: none is lost."""
    log, main, texts, count = make_log(), Lane("main"), [], 5000
    lanes = [main.child("th:work") for _ in range(3)]

    def work(lane: Lane) -> None:
        for number in range(count):
            log.read(lane, SOURCES["time.time_ns"], partial(_same, number))

    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        texts.append(log.flush(main))
    for thread in threads:
        thread.join()
    found = collect([text for text in texts if text], log.finish()["reads"].get("left", []))
    for lane in lanes:
        assert [found[(lane.path, "time.time_ns")][number] for number in range(count)] == list(range(count))
