"""The result of a suite of units: the worst unit decides, each unit has a line, and one line is the total."""

from __future__ import annotations

import json

import pytest

from spanreplay.report.json import parse
from spanreplay.report.shape import Verdict
from spanreplay.report.suite import decide, describe, describe_all, make_error, render_json


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


def test_a_suite_has_a_line_and_json() -> None:
    """The line counts each verdict and the starts; the JSON contains every verdict."""
    verdicts = [_verdict("identical"), make_error("02", "app", "no verdict"), _verdict("identical")]
    assert describe_all(verdicts, 1, 1500) == "3 units: 2 identical, 1 error; 1 start of the application, 1.5 s"
    found = json.loads(render_json(verdicts, 1, 1500))
    assert (found["schema"], found["verdict"], found["counts"]) == ("suite/1", "error", {"error": 1, "identical": 2})
    assert [unit["run_id"] for unit in found["units"]] == ["01", "02", "01"]
