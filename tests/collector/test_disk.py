"""What runs take on disk: each model call repeats its conversation, which is stored once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pydoc_data.topics import topics
from typing import Final

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import CallRecord, Recording
from spanreplay.recording.otlp import otlp
from spanreplay_collector.store.store import Store
from support.runs import make_call, make_payload, make_recording, make_run_id
from support.stores import fresh_chdb_url

TENANT: Final = "acme"
RUNS: Final = 30
TOLD_CHARACTERS: Final = 1_500
"""Length of what a person or a tool says in a turn, and of the answer."""


@cache
def _prose() -> str:
    """The handbook of the Python language: prose and code that no test has written."""
    return "\n".join(topics[name] for name in sorted(topics))


def _say(rng: random.Random, characters: int = TOLD_CHARACTERS) -> str:
    start = rng.randrange(len(_prose()) - characters)
    return _prose()[start : start + characters]


def _make_run(number: int, turns: int) -> Recording:
    """Make an agent's run: each call of the model sends the instructions, the tools and the whole conversation."""
    rng = random.Random(number)
    run_id = make_run_id(number)
    names = [f"tool_{n}" for n in range(8)]
    tools = [{"type": "function", "function": {"name": name, "description": _say(rng, 300)}} for name in names]
    messages = [{"role": "system", "content": _say(rng, 4_000)}]
    calls: list[CallRecord] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": _say(rng)})
        answer = {"role": "assistant", "content": _say(rng)}
        body = {"model": "gpt-5", "messages": messages, "tools": tools}
        calls.append(
            make_call(
                run_id,
                turn,
                kind="llm",
                name="openai.chat.completions",
                key=f"{rng.getrandbits(256):064x}",
                request=json.dumps({"method": "POST", "url": "https://api.openai.com/v1", "body": body}),
                response=json.dumps({"status": 200, "body": {"choices": [{"message": answer}]}}),
            )
        )
        messages.append(answer)
    return replace(make_recording(run_id, calls=turns), calls=tuple(calls))


def _iter_spans(payload: bytes) -> Iterator[bytes]:
    for resource_spans in ExportTraceServiceRequest.FromString(payload).resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield span.SerializeToString()


def _store(store: Store, turns: int) -> tuple[int, int, int]:
    """Store runs of so many model calls; return the bytes of their spans, what is kept of them, and that on disk."""
    logical = 0
    for number in range(RUNS):
        payload = make_payload(_make_run(number, turns))
        logical += sum(len(span) for span in _iter_spans(payload))
        store.load(TENANT, [payload], f"run-{number}")
    with store._engine.client() as client:
        for table in ("spans", "blobs", "boundaries", "runs"):
            client.command(f"OPTIMIZE TABLE {table} FINAL")
        (sizes,) = client.query(
            "SELECT sum(data_uncompressed_bytes), sum(bytes_on_disk) FROM system.parts"
            " WHERE active AND database = currentDatabase()"
        ).result_rows
    return logical, int(sizes[0]), int(sizes[1])


def _check_read(store: Store, number: int, turns: int) -> None:
    """Assert that a run is read as it was stored, byte for byte."""
    read, expected = store.read_run(TENANT, make_run_id(number)), _make_run(number, turns)
    spans = sorted(span for payload in read for span in _iter_spans(payload))
    assert spans == sorted(_iter_spans(make_payload(expected)))
    assert otlp.build_recording(map(ExportTraceServiceRequest.FromString, read)) == expected


@pytest.mark.parametrize(("turns", "goal"), [(25, 35), (50, 60)])
def test_c3_a_run_takes_a_small_part_of_its_size(turns: int, goal: int) -> None:
    """Longer runs take relatively less; what is read is what was stored."""
    with Store.open(fresh_chdb_url()) as store:
        store.migrate()
        logical, _, on_disk = _store(store, turns)
        for number in (0, RUNS - 1):
            _check_read(store, number, turns)
    assert logical / on_disk >= goal


def test_s46_a_conversation_is_kept_once_however_often_it_is_sent() -> None:
    """Before any compression."""
    with Store.open(fresh_chdb_url()) as store:
        store.migrate()
        logical, kept, _ = _store(store, 20)
    assert logical / kept >= 5
