"""`spanreplay show` prints a run call by call."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from spanreplay.cli.runs.preview import answer_of, asked_of, facts_of
from spanreplay.model.call import Outcome, Recording
from support.recordings import make_incident, write_spool
from support.runs import make_call, make_run_id

Invoke = Callable[..., Result]


def test_show_tree_tells_what_was_asked_and_answered(spanreplay: Invoke, data_dir: Path) -> None:
    """The tree has lanes, nested calls, models, parameters, tokens, inputs and outputs."""
    recording = make_incident()
    write_spool(data_dir, recording)
    result = spanreplay("show", recording.run_id[:13])
    assert result.exit_code == 0
    for expected in (
        f"run {recording.run_id}  trade-bot  ok",
        "agent.py  git 1a2b3c4d5e6f  Python 3.11.7",
        "├── main",
        "1 llm openai.chat.completions  gpt-5 → gpt-5-2026-10-01  T=0.7  812+45 tokens",
        "→ user: sell 1,000 worth",
        '← place_order({"notional": 190000})',
        "2 tool place_order  irreversible",
        "→ (notional=190000)",
        '← {"state": "filled"}',
        "└── 3 http POST broker",
        "→ POST http://127.0.0.1/orders",
        "└── main/report#1",
        "← Order filled: $190,000",
    ):
        assert expected in result.stdout
    assert "\x1b" not in result.stdout
    assert all(line == line.rstrip() for line in result.stdout.splitlines())


def test_show_json_holds_everything(spanreplay: Invoke, data_dir: Path) -> None:
    """Machines get the run, its completeness, and every call with its whole request and response."""
    recording = make_incident()
    write_spool(data_dir, recording)
    shown = json.loads(spanreplay("show", "latest", "--json").stdout)
    assert shown["run"]["run_id"] == recording.run_id
    assert shown["run"]["env"]["git_sha"] == "1a2b3c4d5e6f7a8b"
    assert shown["completeness"] == {"is_complete": True, "reasons": []}
    assert [c["seq"] for c in shown["calls"]] == [1, 2, 3, 4]
    assert shown["calls"][1]["request"] == {"args": [], "kwargs": {"notional": 190000}}
    assert shown["calls"][2]["parent"] == 2


def test_show_call_is_whole(spanreplay: Invoke, data_dir: Path) -> None:
    """One call is shown unabridged, its stream's chunks joined."""
    recording = make_incident()
    write_spool(data_dir, recording)
    result = spanreplay("show", "latest", "--call", "4")
    assert '"content": "sell 1,000 worth"' in result.stdout
    assert "lane      main/report#1 (main/report#1, number 1)" in result.stdout
    assert 'data: {"choices": [{"delta": {"content": "filled: $190,000"}}]}' in result.stdout
    one = json.loads(spanreplay("show", "latest", "--call", "2", "--json").stdout)
    assert one["response"] == {"value": {"state": "filled"}}


def test_show_escapes_what_a_recording_holds(spanreplay: Invoke, data_dir: Path) -> None:
    """A recording cannot drive the terminal of its reader, in any form of output."""
    hostile = "\x1b[2J\x07\u202e[bold]x[/bold]\x9b31m"
    recording = make_incident()
    calls = tuple(
        replace(c, name=hostile, code=hostile, request=json.dumps({"args": [hostile]}), response=hostile, kind="tool")
        for c in recording.calls
    )
    recording = Recording(replace(recording.root, app=hostile, user_id=hostile), calls)
    write_spool(data_dir, recording)
    for arguments in (("show", "latest"), ("show", "latest", "--call", "1"), ("show", "latest", "--json"), ("ls",)):
        shown = spanreplay(*arguments).stdout
        assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(shown), arguments
        assert "[bold]x[/bold]" in shown or arguments[0] == "ls"


def test_show_incomplete_run_says_why(spanreplay: Invoke, data_dir: Path) -> None:
    """A run that was killed is shown up to its end, with its holes."""
    recording = make_incident()
    last = replace(recording.calls[-1], outcome=Outcome.OPEN.value, response="", end_seq=-1)
    killed = Recording(replace(recording.root, manifest={}, outcome="open"), (*recording.calls[:-1], last))
    write_spool(data_dir, killed)
    shown = spanreplay("show", "latest").stdout
    assert "trade-bot  incomplete" in shown
    assert "incomplete: the run did not end" in shown
    assert "openai.chat.completions  open" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "0192f3a4"), "error: "),
        (("show", "latest"), "error: no recorded runs here"),
        (("show", "missing.replay"), "error: no such file: missing.replay"),
    ],
    ids=["unknown run", "no runs", "no file"],
)
def test_show_of_what_is_not_there_is_one_line(spanreplay: Invoke, arguments: tuple[str, ...], message: str) -> None:
    """Anything that cannot be found gives one line with a hint, and ends with 1."""
    result = spanreplay(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert "hint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_show_call_that_is_not_there_names_those_that_are(spanreplay: Invoke, data_dir: Path) -> None:
    """An invalid call number is answered with the valid ones."""
    write_spool(data_dir, make_incident())
    assert "has no call 99; its calls are 1 to 4" in spanreplay("show", "latest", "--call", "99").stderr


@pytest.mark.parametrize(
    ("changes", "asked", "answered"),
    [
        ({"request": "", "response": ""}, "", ""),
        ({"request": "not json", "response": "not json"}, '"not json"', '"not json"'),
        ({"request": '{"args": [1], "kwargs": {"a": "b"}}'}, '(1, a="b")', "2"),
        ({"response": '{"items": [1, 2], "end": "complete"}'}, None, "2 items: [1, 2]"),
        ({"response": '{"error": {"type": "KeyError", "message": "x"}}'}, None, "KeyError: x"),
        ({"kind": "llm", "request": '{"method": "POST", "url": "http://h/x", "body": [1]}'}, "[1]", "2"),
        ({"kind": "http", "response": '{"status": 503, "chunks": [[0, "busy"]]}'}, None, "503 busy"),
        ({"kind": "http", "response": '{"status": 204, "chunks": []}'}, None, "204"),
        ({"kind": "llm", "response": '{"status": 200, "chunks": "?"}'}, None, "200"),
        ({"kind": "llm", "request": "[[[]]]", "response": "[]"}, "[[[]]]", "[]"),
    ],
)
def test_show_preview_takes_any_json(changes: dict[str, str], asked: str | None, answered: str) -> None:
    """Any JSON in a recording gets a preview; nothing raises."""
    call = make_call(make_run_id(), 2, **changes)
    if asked is not None:
        assert asked_of(call) == asked
    assert answer_of(call) == answered


def test_show_facts_are_short() -> None:
    """Facts name the model that answered, parameters, tokens, and an unusual finish reason."""
    call = make_call(
        make_run_id(),
        1,
        meta={"model": "m", "response_model": "m", "seed": 3, "tokens_in": 1, "finish_reason": "length"},
    )
    assert facts_of(call) == ["m", "seed=3", "1+0 tokens", "length"]
