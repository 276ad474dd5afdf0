"""Which cause leads where nothing ties one to the difference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from spanreplay.replayer.compare.blame import Blame
from spanreplay.replayer.divergence import Diff, Divergence

FOLDER = {"name": "folder", "recorded": "/app", "now": "/home/me/app"}


def _explain(
    drift: list[dict[str, str]],
    differing: list[str],
    *diff: Diff,
    seeds: tuple[str, str] = ("", ""),
    tokens: Any = None,
) -> Any:
    """The divergence at a call with these differing parts, explained."""
    redactor = SimpleNamespace(fingerprint="")
    given = {
        "calls": [],
        "index": None,
        "findings": SimpleNamespace(ignored=[]),
        "hidden": SimpleNamespace(explain=lambda *_: ()),
        "run": SimpleNamespace(
            environment={"hash_seed": seeds[1]}, redactor=redactor, written=None, environment_read=None
        ),
        "env": {"hash_seed": seeds[0]},
        "differing": differing,
        "drift": drift,
        "live": [],
        "tokens": tokens or {},
    }
    divergence = Divergence(kind="output_changed", boundary="tool:look", message="it differs", diff=diff)
    return cast("Any", Blame(**cast("Any", given))).explain([divergence])[0]


def test_s28_another_python_leads_and_a_folder_comes_last() -> None:
    """Names of folders are translated; the standard library of another minor version makes other calls."""
    python = {"name": "python", "recorded": "3.10.13", "now": "3.13.0"}
    found = _explain([FOLDER, python, {"name": "openai", "recorded": "1", "now": "2"}], ["TONE"])
    assert [cause.ref for cause in found.causes] == ["python", "TONE", "openai", "folder"]
    assert found.cause == "python was 3.10.13, now it is 3.13.0"
    assert not found.hint


def test_s28_another_patch_of_python_does_not_lead() -> None:
    """A variable that differs is likelier."""
    python = {"name": "python", "recorded": "3.13.1", "now": "3.13.0"}
    assert _explain([FOLDER, python], ["TONE"]).causes[0].ref == "TONE"
    assert _explain([FOLDER], []).causes[0].ref == "folder"


@pytest.mark.parametrize(
    ("then", "now", "is_order"),
    [("{'a', 'b'}", "{'b', 'a'}", True), ("/data/in", "/data/in/", False), ("a b", "a c", False)],
)
def test_n2_only_another_order_of_words_may_come_from_hashes(then: str, now: str, is_order: bool) -> None:
    """Other characters between the same words are something else."""
    found = _explain([], [], Diff("arguments.path", then, now), seeds=("1", "2"))
    assert [cause.kind for cause in found.causes] == (["hash_seed"] if is_order else [])


def test_s43_a_token_in_place_of_a_variable_is_named() -> None:
    """Where a part of it is in the change it leads, and the hint says what to do; else it comes last."""
    tokens = {"rdx-mrclkhklmqtprcpzk": "OPENAI_API_KEY", "rdx-qqqqqqqqqqqqqqqqq": "OTHER_KEY"}
    found = _explain([FOLDER], ["USER"], Diff("env.KEY", "sk-", "rdx-mrc"), tokens=tokens)
    assert found.cause == "the agent was given a token in place of OPENAI_API_KEY, which redaction hides"
    assert found.hint == "set OPENAI_API_KEY here"
    beside = _explain([FOLDER], ["USER"], Diff("arguments.length", "51", "21"), tokens=tokens)
    assert [cause.ref for cause in beside.causes] == ["USER", "folder", "OPENAI_API_KEY"]
    assert not beside.hint
