"""The call that led to each run of a trace, and the command that starts each application."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import pytest

from spanreplay.cli.runs.exchanges import NewAnswer, Sent, compare_answers, compare_requests
from spanreplay.cli.runs.trace_links import answer_of, find_links, sort_called_first
from spanreplay.cli.trace import read_services
from spanreplay.model.call import CallRecord, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.replayer.resolve.plan import Plan, read_plan
from spanreplay.runtime.edits.apply_patch import patch_response
from spanreplay.runtime.edits.selector import parse_selector
from spanreplay.units.given import Answer, Given
from support.runs import make_call, make_recording, make_run_id

URL: Final = "http://stock:8000"


def _make(
    number: int, at: tuple[int, int], target: str, *requests: tuple[str, int, int], method: str = "GET"
) -> Recording:
    """The run of a request for a target, with the requests that it made: URL, start and end."""
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
    """Runs are matched by method, path, query and time; equal calls lead to one run each, in order."""
    first = _make(1, (0, 100), "/", (f"{URL}/a%20b?n=1", 10, 20), (f"{URL}/same", 30, 40), (f"{URL}/same", 50, 60))
    called = [_make(2, (12, 18), "/a b?n=1"), _make(4, (52, 58), "/same"), _make(3, (32, 38), "/same")]
    links = find_links([*called, first])
    calls = {2: 2, 3: 3, 4: 4}
    assert _show(links) == {make_run_id(run): (first.run_id, call) for run, call in calls.items()}
    assert [str(links[make_run_id(run)].selector) for run in calls] == ["http:*[2]", "http:*[3]", "http:*[4]"]
    assert [run.run_id for run in sort_called_first([first, *called], links)] == [make_run_id(n) for n in (2, 3, 4, 1)]


def test_p6_equal_calls_of_one_time_lead_to_a_run_each() -> None:
    """Equal concurrent calls are matched in the order in which they began."""
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
        _make(2, (21, 30), "/a"),  # began after the call was over
    ],
)
def test_p6_a_run_that_no_call_asked_for_has_no_caller(called: Recording) -> None:
    """A run with no matching call has no caller, and a run never calls itself."""
    first = _make(1, (0, 100), "/a", (f"{URL}/a", 10, 20))
    assert find_links([first, called]) == {}


def test_p6_a_chain_of_calls_is_replayed_from_its_end() -> None:
    """The deepest call comes first, whatever order they are given in."""
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
        ('{"arguments":{"status":200,"body":{"text":"yes"}}}', Answer(200, [], b"yes")),
        ('{"arguments":{"status":204}}', Answer(204, [], b"")),
        ('{"arguments":{"status":200,"body":{"base64":"AAE="}}}', Answer(200, [], b"\x00\x01")),
        ('{"arguments":{"status":200,"headers":[{"a":"b"}],"body":{"text":""}}}', Answer(200, [("a", "b")], b"")),
        ('{"arguments":{"status":200,"body":{"bytes":17,"sha256":"ab"}}}', None),
        ('{"arguments":{"body":{"text":"yes"}}}', None),
        ("not JSON", None),
    ],
)
def test_p6_the_recorded_answer_is_status_headers_and_body(request_text: str, answer: object) -> None:
    """The recorded answer has status, headers and body, and is None if the body was not kept."""
    run = make_recording(calls=0)
    call: CallRecord = make_call(run.run_id, 1, kind="http", name="response", request=request_text)
    assert answer_of(Recording(run.root, (call,))) == answer
    assert answer_of(run) is None


def test_p4_each_application_has_its_command_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is a path is resolved in its application's folder."""
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
    """A missing or invalid command is named before anything is started."""
    with pytest.raises(click.UsageError) as caught:
        read_services([_make(1, (0, 1), "/"), _make(2, (0, 1), "/")], commands, folders)
    assert caught.value.message == why


# ── what differs between two services ───────────────────────────────────────────────────────────────
ASKED: Final[dict[str, Any]] = {
    "method": "POST", "url": f"{URL}/price?cut=1", "headers": {"x-tenant": "t-1"}, "body": {"count": 2}
}  # fmt: skip


@pytest.mark.parametrize(
    ("now", "changed", "given"),
    [
        ({"body": {"count": 3}}, ["body"], Given("POST", "", [], b'{"count":3}')),
        ({"url": f"{URL}/cost?cut=1"}, ["path"], Given("POST", "/cost?cut=1", [], None)),
        ({"url": f"{URL}/price"}, ["query"], Given("POST", "/price", [], None)),
        ({"method": "PUT"}, ["method"], Given("PUT", "", [], None)),
        ({"headers": {"x-tenant": "t-2"}}, ["header x-tenant"], Given("POST", "", [("x-tenant", "t-2")], None)),
        ({"headers": {}}, ["header x-tenant"], Given("POST", "", [], None, ("x-tenant",))),
    ],
)
def test_p4_what_a_caller_asks_for_now_is_given(now: dict[str, Any], changed: list[str], given: Given) -> None:
    """Only the differences are given: for the rest the recording knows more, since it can reveal redacted values."""
    assert compare_requests(ASKED, {**ASKED, **now}) == Sent(given, changed)


def test_p4_a_request_as_recorded_is_not_given() -> None:
    """Nothing is given for an equal request, another host or a changed hidden header; a large body is reported."""
    assert compare_requests(ASKED, ASKED) is None
    assert compare_requests(ASKED, {**ASKED, "url": "http://elsewhere/price?cut=1"}) is None
    assert compare_requests(ASKED, {**ASKED, "headers": {**ASKED["headers"], "x-key": "rdx-abc"}}) is None
    large = {name: value for name, value in ASKED.items() if name != "body"}
    assert compare_requests(ASKED, {**large, "body_bytes": 17_000_000}) == "its body is too large to be kept"


@pytest.mark.parametrize(
    ("now", "changed", "value"),
    [
        (Answer(500, [("a", "1")], b"yes"), ["status 500 instead of 200"], (500, [], [], None)),
        (Answer(200, [("A", "2")], b"yes"), ["header a"], (200, [["a", "2"]], [], None)),
        (Answer(200, [], b"yes"), ["header a"], (200, [], ["a"], None)),
        (Answer(200, [("a", "1")], b"no"), ["body"], (200, [], [], "no")),
        (Answer(200, [("a", "1")], b"\xff"), ["body"], (200, [], [], {"b64": "/w=="})),
        (Answer(200, [("a", "1"), ("content-encoding", "gzip")], gzip.compress(b"no")), ["body"], (200, [], [], "no")),
    ],
)
def test_p4_an_answer_of_now_has_what_differs(
    now: Answer, changed: list[str], value: tuple[int, list[list[str]], list[str], Any]
) -> None:
    """Status, headers and body are given if they differ, the body unpacked as the caller's client gives it."""
    found = compare_answers(Answer(200, [("a", "1")], b"yes"), now, [])
    assert found == NewAnswer(dict(zip(("status", "headers", "without", "body"), value, strict=True)), changed)


def test_p4_an_answer_as_recorded_is_not_given() -> None:
    """A redacted value counts as unchanged unless the verdict says that it differs."""
    recorded = Answer(200, [("set-cookie", "id=rdx-abc"), ("date", "then")], b"rdx-abc")
    now = Answer(200, [("set-cookie", "id=secret"), ("date", "now")], b"secret")
    assert compare_answers(recorded, now, ["arguments.status"]) is None
    found = compare_answers(recorded, now, ["arguments.body.text"])
    assert found is not None
    assert found.changed == ["body"]


def test_p4_an_answer_takes_the_place_of_the_recorded_one_whole() -> None:
    """The new answer replaces the recorded one with its outcome; a plan carries it through a file."""
    answer = NewAnswer({"status": 500, "headers": [["a", "2"]], "without": ["b"], "body": "no"}, ["body"])
    plan = Plan().answered([answer.to_patch(parse_selector("http[1]"), "r1")])
    (patch,) = read_plan(plan.to_json()).patches
    assert patch == plan.patches[0]
    recorded = {"status": 200, "reason": "OK", "headers": [["A", "1"], ["B", "1"], ["c", "1"]], "chunks": [[7, "yes"]]}
    text, outcome = patch_response(json.dumps({**recorded, "end": "closed"}), "ok", [patch])
    headers = [["c", "1"], ["a", "2"]]
    now = {"status": 500, "reason": "Internal Server Error", "headers": headers, "chunks": [[7, "no"]]}
    assert json.loads(text) == {**now, "end": "complete"}
    assert outcome == "error"


def test_p4_a_plan_is_read_from_a_file(tmp_path: Path) -> None:
    """A plan may come from a file, because an environment variable has no room for answers."""
    (tmp_path / "plan.json").write_text(Plan(on_change="serve").to_json())
    assert read_plan(f"@{tmp_path / 'plan.json'}") == Plan(on_change="serve")
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_plan(f"@{tmp_path / 'other.json'}")
