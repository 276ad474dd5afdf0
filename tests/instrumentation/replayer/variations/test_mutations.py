"""Mutations: every field of an answer becomes a valid patch, and a seed always picks the same ones."""

from __future__ import annotations

import json

import pytest

from spanreplay.model.errors import ConfigError
from spanreplay.replayer.variations.mutations import find_mutations
from spanreplay.runtime.edits.apply_patch import patch_response
from spanreplay.runtime.edits.patch import parse_patch
from support.recordings import make_incident
from support.runs import make_call, make_recording, make_run_id

RUN = make_run_id()


def test_s35_every_field_of_an_answer_is_mutated_once() -> None:
    """Scalars of values, of JSON inside text and of bodies each get one patch, which changes exactly what it says."""
    recording = make_incident()
    found = find_mutations(recording, count=10_000)
    assert found
    assert len({m.patch for m in found}) == len(found)
    calls = {call.number: call for call in recording.calls}
    for mutation in found:
        call = calls[mutation.call]
        changed, _ = patch_response(call.response, call.outcome, [parse_patch(mutation.patch)])
        assert changed != call.response
        assert json.dumps(mutation.now, ensure_ascii=False) in mutation.patch


def test_s35_a_seed_picks_the_same_fields() -> None:
    """The same seed gives the same sample, which visits every call first and is listed in the order of the run."""
    recording = make_incident()
    first, again = (find_mutations(recording, count=3, seed=7) for _ in range(2))
    assert first == again
    assert [m.call for m in first] == sorted(m.call for m in first)
    every = {m.call for m in find_mutations(recording, count=10_000)}
    assert {m.call for m in find_mutations(recording, count=len(every))} == every


def test_s35_only_names_the_calls() -> None:
    """A selector with a number takes that call alone; an invalid one is refused."""
    recording = make_incident()
    kinds = {m.boundary.partition(":")[0] for m in find_mutations(recording, only="tool", count=100)}
    assert kinds == {"tool"}
    assert len({m.call for m in find_mutations(recording, only="*[1]", count=100)}) <= 1
    with pytest.raises(ConfigError):
        find_mutations(recording, only="llm[x]")


@pytest.mark.parametrize(
    ("response", "fields"),
    [
        ({"value": {"a": 1, "b": [True, None, "x"], "odd name": ""}}, {"a", "b[0]", "b[1]", "b[2]", '["odd name"]'}),
        ({"value": '{"inner": {"n": 2.5}}'}, {"inner.n"}),
        ({"value": 7}, {"(all of it)"}),
        ({"value": {"$type": "date", "fields": {"day": 3}}}, {"fields.day"}),
        ({"status": 200, "headers": [], "chunks": [[0, '{"a": {"b": 1}}']], "end": "complete"}, {"a.b"}),
        ({"status": 200, "headers": [], "chunks": [[0, "plain"]], "end": "complete"}, {"(all of it)"}),
        ({"status": 200, "headers": [], "chunks": [[0, {"b64": "AA=="}]], "end": "complete"}, set()),
        ({"items": [1, 2], "end": "complete"}, set()),
    ],
)
def test_s35_fields_of_each_shape(response: object, fields: set[str]) -> None:
    """Fields of an answer are recognised in each recorded shape."""
    base = make_recording(RUN, 1)
    call = make_call(RUN, 1, response=json.dumps(response), kind="tool", name="t")
    recording = type(base)(base.root, (call,))
    assert {m.field for m in find_mutations(recording, count=100)} == fields
