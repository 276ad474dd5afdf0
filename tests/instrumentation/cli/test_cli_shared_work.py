"""Decide from the recordings and the first difference whether a unit shared work with concurrent units."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from spanreplay.cli.runs.shared_work import explain, explain_in_catalog
from spanreplay.model.call import Recording
from spanreplay.report.shape import Verdict
from support.runs import make_call, make_recording, make_run_id

PROCESS: Final = make_run_id()
MODEL: Final = "llm:ask"
_numbers: Final = itertools.count(1)


def _make(
    text: str, *asked: str, at: tuple[int, int] = (100, 200), process: str = PROCESS, where: str = "path"
) -> Recording:
    """A unit with this input text and these prompts to a model."""
    run_id = make_run_id(next(_numbers))
    rows: list[dict[str, Any]] = [{"kind": "http", "name": "request", "response": _place(text, where)}]
    if where == "body":
        content = json.dumps({"question": text, "headers": {"x-by": "nobody"}})
        rows.append({"kind": "http", "name": "body", "response": json.dumps({"text": content})})
    for each in asked:
        rows.append({"kind": "llm", "name": "ask", "request": json.dumps({"messages": [{"content": each}]})})
    rows.append({"kind": "http", "name": "response", "request": json.dumps({"body": text})})
    calls = tuple(make_call(run_id, 2 * at + 1, lane="unit", **row) for at, row in enumerate(rows))
    begin, end = at
    stated = {"process": process, "start": 0, "calls": 0, "root": "main", "before": 0}
    root = make_recording(run_id).root
    return Recording(replace(root, start_ns=begin, end_ns=end, env={"unit": stated}), calls)


def _place(text: str, where: str) -> str:
    path = {"path": f"/ask/{text.replace(' ', '%20')}", "query": "/ask", "body": "/ask"}[where]
    query = f"q={text.replace(' ', '+')}&n=5" if where == "query" else ""
    return json.dumps({"method": "POST", "path": path, "query": query, "headers": [["x-of", "everyone"]]})


def _judge(unit: Recording, kind: str, **first: Any) -> Verdict:
    """A verdict whose first difference is at the unit's first model call."""
    numbers = [call.number for call in unit.calls if call.boundary == MODEL]
    found: Any = {"kind": kind, "boundary": MODEL, "call": numbers[0] if numbers else 9, **first}
    return {"verdict": "diverged", "run_id": unit.run_id, "reasons": ["before"], "divergences": [found]}


@pytest.mark.parametrize("where", ["path", "query", "body"])
def test_p4_a_call_that_was_made_for_another_unit_is_named(where: str) -> None:
    """The call is named for the unit that made it for both, and for the one that now makes it itself."""
    first = _make("red fox", "Answer red fox; grey owl", where=where)
    second = _make("grey owl", where=where)
    diff = [{"path": "messages[0].content", "recorded": "Answer red fox; grey owl", "now": "Answer red fox"}]
    made = explain(_judge(first, "changed_call", diff=diff), first, [second])
    assert made["verdict"] == "incomplete"
    assert f"(llm:ask) was also made for run {second.run_id}, " in made["stopped"]
    assert made["reasons"] == [made["stopped"], "before"]
    made = explain(_judge(second, "extra_call"), second, [first])
    assert made["verdict"] == "incomplete"
    assert made["stopped"].startswith(
        f"run {first.run_id}, which its process served at the same time, also made llm:ask"
    )


@pytest.mark.parametrize("kind", ["missing_call", "order_stall"])
def test_p4_a_call_that_is_not_made_now_may_have_been_anothers(kind: str) -> None:
    """A stalled program may wait for a call of any concurrent unit, or for something that another unit provides."""
    first, second = _make("amber", "Answer birch"), _make("birch")
    assert explain(_judge(first, kind), first, [second])["verdict"] == "incomplete"
    is_stall = kind == "order_stall"
    assert explain(_judge(second, kind), second, [first])["verdict"] == ("incomplete" if is_stall else "diverged")


@pytest.mark.parametrize(
    ("recorded", "now", "other"),
    [
        ("Answer amber; birch", "Reply amber; birch", "birch"),  # both versions mention the other unit's text
        ("Answer amber; birches", "Answer amber", "birch"),  # not a whole word of the prompt
        ("Answer amber twice", "Answer amber", "birch"),
        ("Answer amber; amber", "Answer", "amber"),  # both units were given it
        ("Answer amber; ox", "Answer amber", "ox"),  # too short to be evidence
        ("Answer amber; everyone", "Answer amber", "birch"),  # only in a header
    ],
)
def test_p4_a_change_that_no_other_unit_explains_is_a_divergence(recorded: str, now: str, other: str) -> None:
    """The omitted text must be the other unit's input, and not this unit's."""
    unit = _make("amber", recorded)
    diff = [{"path": "messages[0].content", "recorded": recorded, "now": now}]
    verdict = _judge(unit, "changed_call", diff=diff)
    assert explain(verdict, unit, [_make(other, "Say everyone")]) is verdict


@pytest.mark.parametrize("kind", ["file_changed", "stdout_changed", "moved"])
def test_p4_only_calls_are_explained_by_other_units(kind: str) -> None:
    """Other kinds of differences and other verdicts stay unchanged."""
    unit, other = _make("amber", "Answer birch"), _make("birch", "Answer amber")
    verdict = _judge(unit, kind)
    assert explain(verdict, unit, [other]) is verdict
    refused: Verdict = {**_judge(unit, "missing_call"), "verdict": "tampered"}
    assert explain(refused, unit, [other]) is refused


def test_p4_a_unit_that_began_with_what_a_call_sent_does_not_explain_its_change() -> None:
    """A message that one unit publishes is the input of the next one: a changed message is no work for that one."""
    unit = _make("amber", "Note birch")
    call = next(call for call in unit.calls if call.boundary == MODEL)
    diff = [{"path": "messages[0].content", "recorded": "Note birch", "now": "Note BIRCH"}]
    verdict = _judge(unit, "changed_call", diff=diff)
    began = call.start_ns + 1
    assert explain(verdict, unit, [_make("birch", at=(began, began + 5))]) is verdict
    assert explain(verdict, unit, [_make("birch", at=(began - 2, began + 5))])["verdict"] == "incomplete"


def test_p4_the_name_of_a_job_is_no_value_of_its_input() -> None:
    """A text that has the word explains nothing."""
    unit, other = _make("amber", "Answer amber"), _make("Answer")
    other = replace(other, root=replace(other.root, app="Answer"))
    verdict = _judge(unit, "missing_call")
    assert explain(verdict, unit, [other]) is verdict


def test_p4_an_extra_call_has_to_be_at_the_same_boundary() -> None:
    """Another unit's call to another model explains nothing."""
    unit, other = _make("amber"), _make("birch", "Answer amber")
    assert explain(_judge(unit, "extra_call"), unit, [other])["verdict"] == "incomplete"
    assert explain(_judge(unit, "extra_call", boundary="tool:pay"), unit, [other])["verdict"] == "diverged"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "incomplete"),
        ({"at": (150, 300)}, "incomplete"),
        ({"at": (201, 300)}, "diverged"),  # began after this one had ended
        ({"at": (10, 99)}, "diverged"),  # ended before this one began
        ({"process": make_run_id(77)}, "diverged"),
    ],
)
def test_p4_units_of_another_time_or_process_share_nothing(changes: dict[str, Any], verdict: str) -> None:
    """Only units that the same process served at the same time are looked at in the catalog."""
    unit, other = _make("amber"), _make("birch", "Answer amber; birch", **changes)
    runs = {each.run_id: each for each in (unit, other, make_recording())}
    asked = []

    def search(query: Any) -> list[Any]:
        asked.append(query)
        return [SimpleNamespace(root=each.root) for each in runs.values()]

    catalog: Any = SimpleNamespace(search=search, load=runs.__getitem__)
    assert explain_in_catalog(_judge(unit, "extra_call"), catalog)["verdict"] == verdict
    assert [query.until_ns for query in asked] == [200]


def test_p4_a_unit_that_has_not_ended_may_share_with_all_later_ones() -> None:
    """The end of a unit whose worker was killed is unknown, so any later unit may share work with it."""
    unit, other = _make("amber"), _make("birch", "Answer amber; birch", at=(10, 10))
    killed = Recording(replace(other.root, manifest={}), other.calls)
    runs = {each.run_id: each for each in (unit, killed)}
    catalog: Any = SimpleNamespace(
        search=lambda _: [SimpleNamespace(root=each.root) for each in runs.values()], load=runs.__getitem__
    )
    assert explain_in_catalog(_judge(unit, "extra_call"), catalog)["verdict"] == "incomplete"
