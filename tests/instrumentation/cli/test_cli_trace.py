"""Which call led to which run of a trace, and which command starts which application."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import pytest

from spanreplay.cli.runs.trace_links import answer_of, find_links, sort_called_first
from spanreplay.cli.trace import read_services
from spanreplay.model.call import CallRecord, Recording
from support.runs import make_call, make_recording, make_run_id

URL: Final = "http://stock:8000"


def _make(
    number: int, at: tuple[int, int], target: str, *requests: tuple[str, int, int], method: str = "GET"
) -> Recording:
    """The run of a request for a target, which made requests: URL, begin and end."""
    run_id = make_run_id(number)
    path, _, query = target.partition("?")
    given = {"value": {"method": method, "path": path, "query_string": query}}
    calls = [
        make_call(run_id, 1, kind="http", name="request", response=json.dumps(given), start_ns=at[0], end_ns=at[0])
    ]
    for url, begin, end in requests:
        asked = json.dumps({"method": method, "url": url})
        seq = 2 * len(calls) + 1
        calls.append(make_call(run_id, seq, kind="http", name="GET stock", request=asked, start_ns=begin, end_ns=end))
    root = replace(make_recording(run_id).root, start_ns=at[0], end_ns=at[1], app=f"app-{number}")
    return Recording(root, tuple(calls))


def _show(links: Any) -> dict[str, tuple[str, int]]:
    return {run_id: (link.caller.run_id, link.call.number) for run_id, link in links.items()}


def test_p6_a_run_belongs_to_the_call_that_asked_for_it() -> None:
    """By method, path, query and time; of equal calls each leads to one run, in their order."""
    first = _make(1, (0, 100), "/", (f"{URL}/a%20b?n=1", 10, 20), (f"{URL}/same", 30, 40), (f"{URL}/same", 50, 60))
    called = [_make(2, (12, 18), "/a b?n=1"), _make(4, (52, 58), "/same"), _make(3, (32, 38), "/same")]
    links = find_links([*called, first])
    calls = {2: 2, 3: 3, 4: 4}
    assert _show(links) == {make_run_id(run): (first.run_id, call) for run, call in calls.items()}
    assert [links[make_run_id(run)].place for run in calls] == [2, 3, 4]
    assert [run.run_id for run in sort_called_first([first, *called], links)] == [make_run_id(n) for n in (2, 3, 4, 1)]


def test_p6_equal_calls_of_one_time_lead_to_a_run_each() -> None:
    """In the order in which they began."""
    first = _make(1, (0, 100), "/", (f"{URL}/same", 10, 60), (f"{URL}/same", 12, 60))
    called = [_make(2, (20, 50), "/same"), _make(3, (25, 50), "/same")]
    assert _show(find_links([first, *called])) == {make_run_id(2): (first.run_id, 2), make_run_id(3): (first.run_id, 3)}


@pytest.mark.parametrize(
    "called",
    [
        _make(2, (12, 18), "/b"),
        _make(2, (12, 18), "/a?n=2"),
        _make(2, (12, 18), "/a", method="POST"),
        _make(2, (9, 18), "/a"),  # began before the call
        _make(2, (21, 30), "/a"),  # began when the call was over
    ],
)
def test_p6_a_run_that_no_call_asked_for_has_no_caller(called: Recording) -> None:
    """Nor does a run call itself."""
    first = _make(1, (0, 100), "/a", (f"{URL}/a", 10, 20))
    assert find_links([first, called]) == {}


def test_p6_a_chain_of_calls_is_replayed_from_its_end() -> None:
    """The deepest first, whatever order they are given in."""
    runs = [
        _make(1, (0, 100), "/", (f"{URL}/b", 10, 90)),
        _make(2, (20, 80), "/b", (f"{URL}/c", 30, 70)),
        _make(3, (40, 60), "/c"),
    ]
    links = find_links(runs)
    assert [run.run_id for run in sort_called_first(runs, links)] == [run.run_id for run in reversed(runs)]


@pytest.mark.parametrize(
    ("request_text", "answer"),
    [
        ('{"arguments":{"status":200,"body":{"text":"yes"}}}', (200, "yes")),
        ('{"arguments":{"status":204}}', (204, "")),
        ('{"arguments":{"status":200,"body":{"base64":"AAE="}}}', None),
        ('{"arguments":{"body":{"text":"yes"}}}', None),
        ("not JSON", None),
    ],
)
def test_p6_the_recorded_answer_is_its_status_and_text(request_text: str, answer: object) -> None:
    """None where it has no text."""
    run = make_recording(calls=0)
    call: CallRecord = make_call(run.run_id, 1, kind="http", name="response", request=request_text)
    assert answer_of(Recording(run.root, (call,))) == answer
    assert answer_of(run) is None


def test_p4_each_application_has_its_command_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is a path is looked for in the folder of its application."""
    (tmp_path / "stock").mkdir()
    python = tmp_path / "stock" / "python3"
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    runs = [_make(1, (0, 1), "/"), _make(2, (0, 1), "/")]
    found = read_services(runs, ["app-1=python -m shop", "app-2=./python3 -m 'stock it'"], ["app-2=stock"])
    assert found["app-1"].folder == tmp_path
    assert found["app-2"].folder == tmp_path / "stock"
    assert [Path(word).name for word in found["app-2"].agent.argv] == ["python3", "-m", "stock it"]
    assert Path(found["app-2"].agent.argv[0]).parent == tmp_path / "stock"


@pytest.mark.parametrize(
    ("commands", "folders", "why"),
    [
        (["app-1=python a.py"], [], "say how it is started: --service app-2=CMD"),
        ([], [], "say how they are started: --service app-1=CMD --service app-2=CMD"),
        (["app-3=python a.py"], [], "the trace has no run of 'app-3'; its applications are app-1, app-2"),
        (["python a.py"], [], "--service 'python a.py' is not APP=CMD"),
        (["app-1=python a.py", "app-2=python 'a.py"], [], "--service app-2=python 'a.py: No closing quotation"),
        (["app-1=python a.py", "app-2=python a.py"], ["app-1=nowhere"], "--in app-1=nowhere: no such folder"),
    ],
)
def test_p4_a_command_that_is_missing_or_wrong_is_named(commands: list[str], folders: list[str], why: str) -> None:
    """Before anything is started."""
    with pytest.raises(click.UsageError) as caught:
        read_services([_make(1, (0, 1), "/"), _make(2, (0, 1), "/")], commands, folders)
    assert caught.value.message == why
