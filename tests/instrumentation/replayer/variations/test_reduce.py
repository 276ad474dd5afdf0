"""Reducing a recording: what the effect does not need is left out, and the result counts and hashes its own calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from spanreplay.model.call import Recording
from spanreplay.recording.bundle import load_file
from spanreplay.recording.derived import derive, describe_origin, pack_recording, with_calls
from spanreplay.recording.seal.check import find_tampering
from spanreplay.replayer.variations.reduce import Reducer
from support.recordings import make_incident
from support.runs import make_call, make_recording, make_run_id

RUN = make_run_id()


def record(*responses: Any) -> Recording:
    """A recording of calls of a tool with these answers."""
    calls = tuple(
        make_call(RUN, number, response=json.dumps(each), kind="tool", name="t", index=number - 1)
        for number, each in enumerate(responses, start=1)
    )
    return with_calls(make_recording(RUN, 1), calls)


def reduce(recording: Recording, has_effect: Callable[[list[Any]], bool], tries: int = 10_000) -> tuple[list[Any], int]:
    """What is left of the answers, and the number of questions."""

    def keep(candidate: Recording) -> Recording | None:
        assert find_tampering(candidate) == ""
        assert candidate.completeness().is_complete
        return candidate if has_effect([json.loads(call.response) for call in candidate.calls]) else None

    reducer = Reducer(recording, keep, tries, lambda number: None)
    return [json.loads(call.response) for call in reducer.reduce().calls], reducer.tries


def test_w4_calls_that_are_not_needed_are_left_out() -> None:
    """Two of thirty-two calls are needed: they stay, in order, after far fewer questions than there are subsets."""
    left, tries = reduce(
        record(*({"value": n} for n in range(1, 33))), lambda found: {"value": 5} in found and {"value": 21} in found
    )
    assert left == [{"value": 5}, {"value": 21}]
    assert tries < 100


def test_w4_fields_elements_and_texts_are_left_out() -> None:
    """Of an answer only the path to what is needed stays: a number that may be anything is 0, a text is cut off."""
    value = {
        "orders": [{"id": n, "note": f"order {n} needs care"} for n in range(20)],
        "page": 3,
        "more": {"a": [1, 2]},
    }

    def has_effect(found: list[Any]) -> bool:
        orders = found[0]["value"].get("orders", [])
        return "page" in found[0]["value"] and any(each.get("note", "").startswith("order 7") for each in orders)

    left, _ = reduce(record({"value": value}), has_effect)
    assert left == [{"value": {"orders": [{"note": "order 7"}], "page": 0}}]


def test_w4_streams_lose_events() -> None:
    """Of a streamed answer the events that are needed stay, with [DONE]."""
    chunks = [[n, f'data: {{"n":{n},"text":"x"}}\n\n'] for n in range(1, 9)] + [[9, "data: [DONE]\n\n"]]
    answer = {"status": 200, "headers": [], "chunks": chunks, "end": "complete"}
    left, _ = reduce(record(answer), lambda found: '"n":6' in json.dumps(found[0]["chunks"]).replace("\\", ""))
    assert "".join(chunk[1] for chunk in left[0]["chunks"]) == 'data: {"n":6}\n\ndata: [DONE]\n\n'


def test_w4_search_ends_at_its_limit() -> None:
    """After the last question the smallest recording so far is the result."""
    left, tries = reduce(record(*({"value": n} for n in range(8))), lambda found: True, tries=1)
    assert (len(left), tries) == (4, 1)


def test_w4_derived_recording_says_what_it_is() -> None:
    """It has an id and a root of its own, the same bytes each time, and names its origin; it is not tampered with."""
    original = make_incident()
    made = with_calls(original, original.calls[:2])
    small = derive(original, made, {"by": "minimize"})
    assert pack_recording(small) == pack_recording(derive(original, made, {"by": "minimize"}))
    assert small.run_id not in (original.run_id, derive(original, made, {"by": "fuzz"}).run_id)
    assert small.run_id[:12] == original.run_id[:12]
    assert find_tampering(small) == ""
    assert small.root.manifest["calls"] == 2
    assert describe_origin(small) == f"derived from {original.run_id} by minimize: it does not show what happened"
    assert describe_origin(original) == ""


def test_w4_derived_recording_is_read_back_whole(tmp_path: Any) -> None:
    """What is written to a file is what is read from it."""
    original = make_incident()
    small = derive(original, original, {"by": "minimize"})
    path = tmp_path / "small.replay"
    path.write_bytes(pack_recording(small))
    assert load_file(path) == small
