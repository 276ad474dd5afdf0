"""A store finds the same drift between equal requests as reading every recording in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spanreplay.model.call import Recording
from spanreplay.recording.model_drift import DriftQuery, DriftReport, fold_recordings, report_drift
from spanreplay_collector.store import drift
from spanreplay_collector.store.store import Store
from support.runs import START_NS, make_call, make_payload, make_recording, make_run_id
from support.stores import Front, fresh_chdb_url, fresh_database

TENANT = "acme"
HOUR_NS = 3_600_000_000_000
RUNS = 60


def make_run(number: int, dice: random.Random) -> Recording:
    """A run of four calls, an hour after the one before; in later runs other serving stacks answer."""
    base = make_recording(
        make_run_id(number),
        app=dice.choice(["refunds", "orders"]),
        start_ns=START_NS + number * HOUR_NS,
        replay_of="f" * 32 if number % 10 == 9 else "",
    )
    calls = []
    for call in base.calls:
        start_ns = base.root.start_ns + call.seq
        # Clock values leave gaps where something else happened: a call's number is its position, not its value
        call = make_call(base.run_id, call.seq * 5, start_ns=start_ns, span_id=f"{number * 64 + call.seq + 1:016x}")
        if dice.random() < 0.8:
            call = replace(call, kind="llm", name="openai.chat.completions", meta=make_meta(number, dice))
            call = replace(
                call, key=f"{call.meta['system_prompt_hash']:0>64}", outcome=dice.choice(["ok"] * 9 + ["error"])
            )
        calls.append(call)
    return Recording(base.root, tuple(calls))


def make_meta(number: int, dice: random.Random) -> dict[str, Any]:
    """A call's meta; a random number decides its key, and the key decides the model, fingerprint and temperature."""
    key = dice.randrange(8)
    meta: dict[str, Any] = {"model": "gpt-x", "system_prompt_hash": str(key)}
    meta["response_model"] = "gpt-x-2" if key == 1 and number > RUNS // 2 else "gpt-x-1"
    if key != 2:
        meta["fingerprint"] = "fp_2" if key in (3, 4) and number > RUNS // 2 else "fp_1"
    if key == 5 and number > RUNS // 3:
        meta["determinism"] = "engine=vllm-0.33.0; plan=aa"
    if key != 6:
        meta["temperature"] = 0.7 if key == 7 else 0.0
    if key != 0:
        meta["output_hash"] = f"out-{meta.get('fingerprint')}" if key < 6 else f"out-{dice.randrange(4)}"
    return meta


DICE = random.Random(24)
RECORDINGS = [make_run(number, DICE) for number in range(RUNS)]
QUERIES = {
    "everything": DriftQuery(),
    "since": DriftQuery(since_ns=START_NS + 20 * HOUR_NS),
    "until": DriftQuery(until_ns=START_NS + 40 * HOUR_NS),
    "both": DriftQuery(since_ns=START_NS + 10 * HOUR_NS, until_ns=START_NS + 50 * HOUR_NS),
    "app": DriftQuery(app="orders"),
    "replays": DriftQuery(include_replays=True),
    "nothing": DriftQuery(app="nobody"),
}


@pytest.fixture(scope="module", params=["chdb", "http"])
def filled(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store with all runs, each of them sent twice in different batches."""
    server: Front = request.getfixturevalue("front")
    url = fresh_chdb_url() if request.param == "chdb" else server.url(fresh_database())
    with Store.open(url) as store:
        store.migrate()
        for number, recording in enumerate(RECORDINGS):
            store.load(TENANT, [make_payload(recording)], f"t{number}")
        store.load(TENANT, [make_payload(r) for r in RECORDINGS], "again")
        store.load("other", [make_payload(RECORDINGS[0])], "other")
        yield store


def fold(query: DriftQuery) -> DriftReport:
    """The report from reading every recording."""
    return report_drift(fold_recordings(RECORDINGS, query))


@pytest.mark.parametrize("name", QUERIES)
def test_s25_store_finds_what_reading_every_recording_finds(filled: Store, name: str) -> None:
    """The store reports the same events with both spans, outputs with their cause, and amount looked at."""
    query = QUERIES[name]
    found = report_drift(filled.scan_drift(TENANT, query))
    expected = fold(query)
    assert found.events == expected.events
    assert found.outputs == expected.outputs
    assert replace(found.scan, found=()) == replace(expected.scan, found=())


def test_s24_recordings_have_every_kind_of_drift() -> None:
    """The recordings contain every change and every cause, so that the comparison means something."""
    found = fold(DriftQuery())
    assert {each.changed for each in found.events} >= {("response_model",), ("fingerprint",), ("determinism",)}
    assert {each.cause for each in found.outputs} == {"sampling", "fingerprint"}


def test_s24_another_tenant_has_no_part_in_it(filled: Store) -> None:
    """A tenant's report covers its own runs only."""
    scan = filled.scan_drift("other", DriftQuery())
    assert scan.runs <= 1
    assert report_drift(scan).events == ()


def test_s25_store_tells_other_stacks_before_mere_outputs(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no room for all keys, those with several serving stacks come first, and the rest is counted."""
    every = filled.scan_drift(TENANT, DriftQuery())
    stacked = {s.key for s in every.found if sum(s.key == other.key for other in every.found) > 1}
    monkeypatch.setattr(drift, "KEYS_FOUND_MAX", len(stacked))
    some = filled.scan_drift(TENANT, DriftQuery())
    assert {s.key for s in some.found} == stacked
    assert some.left_out == len({s.key for s in every.found}) - len(stacked) > 0
