"""The result of a suite of units: the worst unit decides, each unit has a line, and one line is the total."""

from __future__ import annotations

import json

import pytest

from spanreplay.report.json import parse
from spanreplay.report.shape import Verdict
from spanreplay.report.suite import decide, describe, describe_all, describe_groups, group, make_error, render_json


def _verdict(word: str, **fields: object) -> Verdict:
    return parse(json.dumps({"schema": "divergence/1", "verdict": word, "run_id": "01", **fields}))


@pytest.mark.parametrize(
    ("words", "worst"),
    [
        (["identical", "identical"], "identical"),
        (["identical", "incomplete"], "incomplete"),
        (["incomplete", "diverged", "identical"], "diverged"),
        (["diverged", "tampered"], "tampered"),
        (["tampered", "error"], "error"),
    ],
)
def test_the_worst_unit_decides(words: list[str], worst: str) -> None:
    """A suite is identical only if all its units are."""
    assert decide([_verdict(word) for word in words]) == worst


def test_a_unit_has_a_line_with_its_reason() -> None:
    """The line has the verdict, the run, and the first cause, error or reason."""
    cause = {"kind": "changed_call", "boundary": "http:response", "message": "it differs"}
    lines = [
        describe(_verdict("identical")),
        describe(_verdict("diverged", divergences=[cause])),
        describe(_verdict("incomplete", reasons=["a hole"])),
        describe(make_error("02", "app", "no verdict")),
    ]
    assert lines == [
        "identical    01",
        "diverged     01  changed_call at http:response: it differs",
        "incomplete   01  a hole",
        "error        02  no verdict",
    ]


def _diverged(run_id: str, path: str, boundary: str = "tool:refund", kind: str = "changed_call") -> Verdict:
    cause = {"kind": kind, "boundary": boundary, "message": run_id, "code": "agent.py:7 pay", "diff": [{"path": path}]}
    return _verdict("diverged", run_id=run_id, divergences=[cause])


def test_n12_units_that_differ_alike_are_one_group() -> None:
    """By what differs first, where and in which member, whatever its place in a list; the largest group first."""
    verdicts = [
        _diverged("01", "$.arguments.orders[0].amount"),
        _verdict("identical"),
        _diverged("02", "$", "http:response"),
        _diverged("03", "$.arguments.orders[17].amount"),
        make_error("04", "app", "no verdict: killed after 12 s"),
        make_error("05", "app", "no verdict: killed after 31 s"),
        _diverged("06", "$.arguments.orders[2].amount"),
    ]
    assert [(each.kind, each.boundary, each.path, each.runs) for each in group(verdicts)] == [
        ("changed_call", "tool:refund", "arguments.orders[*].amount", ("01", "03", "06")),
        ("error", "", "no verdict: killed after N s", ("04", "05")),
        ("changed_call", "http:response", "$", ("02",)),
    ]
    assert describe_groups(verdicts)[0] == (
        "  3 units: changed_call tool:refund: arguments.orders[*].amount  agent.py:7 pay  e.g. 01"
    )
    assert describe_groups([_verdict("identical"), _diverged("01", "$")]) == []
    assert json.loads(render_json(verdicts, 1, 1))["groups"][0]["runs"] == ["01", "03", "06"]


def test_a_suite_has_a_line_and_json() -> None:
    """The line counts each verdict and the starts; the JSON contains every verdict."""
    verdicts = [_verdict("identical"), make_error("02", "app", "no verdict"), _verdict("identical")]
    assert describe_all(verdicts, 1, 1500) == "3 units: 2 identical, 1 error; 1 start of the application, 1.5 s"
    found = json.loads(render_json(verdicts, 1, 1500))
    assert (found["schema"], found["verdict"], found["counts"]) == ("suite/1", "error", {"error": 1, "identical": 2})
    assert [unit["run_id"] for unit in found["units"]] == ["01", "02", "01"]
