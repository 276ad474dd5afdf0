"""The agent's folders in texts are replaced by those of the recording."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from spanreplay.replayer.relocation import Relocation
from spanreplay.runtime.calls.spec import Spec

THEN = {"cwd": "/app", "home": "/root", "code": "/app/code"}
NOW = {"cwd": "/home/me/app", "home": "/home/me", "code": "/home/me/app/code"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in /home/me/app.", "in /app."),
        ("/home/me/app/code/x.py, /home/me/.ssh", "/app/code/x.py, /root/.ssh"),
        ("file:///home/me/app?x", "file:///app?x"),
        ("/home/me/app2 /home/me/app.bak /home/me/app-old", "/root/app2 /root/app.bak /root/app-old"),
        ("/srv/home/me/app ~/home/me /home/meyer", "/srv/home/me/app ~/home/me /home/meyer"),
        ("/app and /root stay", "/app and /root stay"),
    ],
    ids=["sentence", "longest", "url", "siblings", "others", "recorded"],
)
def test_s62_folders_are_found_as_whole_names(text: str, expected: str) -> None:
    """Only whole path components match, longest folder first; served texts already have the recorded folders."""
    assert Relocation(THEN, NOW).text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pid {now}", "pid 77"),
        ("app.{now}.tmp and app_{now}", "app.77.tmp and app_77"),
        (r'{{"a":{now},"b":"x\n{now}"}}', r'{{"a":77,"b":"x\n77"}}'),
        ("{now}0 0{now} a{now} {now}b", "{now}0 0{now} a{now} {now}b"),
    ],
    ids=["word", "name", "json", "others"],
)
def test_p10_the_number_of_the_process_is_the_recorded_one(text: str, expected: str) -> None:
    """A whole number only, also as part of a file's name, in JSON, and behind an escape there."""
    now = os.getpid()
    relocation = Relocation({}, {}, 77)
    assert relocation.text(text.format(now=now)) == expected.format(now=now)
    assert relocation.value({"a": [now, now + 1, str(now), True]}) == {"a": [77, now + 1, "77", True]}


def test_p10_a_recording_without_the_number_or_with_the_same_one_changes_nothing() -> None:
    """Older recordings have none."""
    assert not Relocation({}, {}, None)
    assert not Relocation({}, {}, os.getpid())
    assert not Relocation({}, {}, "77")


def test_p10_a_small_number_is_not_taken_for_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container a process may have a number that means something else in any text."""
    monkeypatch.setattr(os, "getpid", lambda: 57)
    monkeypatch.setattr("spanreplay.replayer.relocation._first", 7)
    relocation = Relocation({}, {}, 31337)
    assert relocation.text("57 apples, 7 pears") == "57 apples, 7 pears"
    assert relocation.is_number_away("process 31337 of 57, 577 more", "process 57 of 57, 577 more")
    assert relocation.is_number_away("31337 of 31337", "57 of 7")
    for then, now in (("57", "57"), ("31337", "31337"), ("31337", "58"), ("a 31337", "b 57"), ("313371", "57")):
        assert not relocation.is_number_away(then, now)
    assert relocation.text_towards("31337\n", "57\n") == "31337\n"
    assert relocation.text_towards("31338\n", "57\n") == "57\n"
    written = {"run.31337.lock": {"text": "57 31337", "sha256": "x"}}
    assert relocation.files(written, {"run.57.lock": {"text": "57 57", "sha256": "y"}}) == written


def test_s62_recorded_folder_within_one_of_now_is_kept() -> None:
    """A served text names the recorded folder, which may be below a folder that is a different one now."""
    relocation = Relocation({"cwd": "/tmp/app", "home": "/root"}, {"cwd": "/tmp/other", "home": "/tmp"})
    assert relocation.text("/tmp/app /tmp/other /tmp/x") == "/tmp/app /tmp/app /root/x"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/app/code/x.py", "/home/me/app/code/x.py"),
        ("/app/y.py", "/home/me/app/y.py"),
        ("/application/y.py", "/application/y.py"),
        ("<frozen os>", "<frozen os>"),
    ],
)
def test_s62_recorded_files_are_found_in_the_folders_of_now(path: str, expected: str) -> None:
    """The frames of a recorded stack name files whose lines are shown from where they are now."""
    assert Relocation(THEN, NOW).find_file(path) == expected


@pytest.mark.parametrize("is_ascii", [True, False])
def test_s62_folders_are_found_in_json(is_ascii: bool) -> None:
    """Folders are found after an escaped line break, and in any spelling of non-ASCII letters."""
    relocation = Relocation({"cwd": "/srv/é"}, {"cwd": "/home/zoë/b"})
    request = json.dumps({"a": ["x\n/home/zoë/b/c"]}, ensure_ascii=is_ascii)
    assert json.loads(relocation._json(request)) == {"a": ["x\n/srv/é/c"]}
    assert relocation.value({"/home/zoë/b": [1, None, "/home/zoë/b"]}) == {"/srv/é": [1, None, "/srv/é"]}


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (None, NOW),
        ({}, NOW),
        (NOW, NOW),
        ({"cwd": "/"}, {"cwd": "/app"}),
        ({"cwd": "/app"}, {"cwd": "/"}),
        ({"cwd": ""}, {"cwd": "/x"}),
    ],
    ids=["none", "older", "same", "root then", "root now", "empty"],
)
def test_s62_nothing_is_changed_where_no_folder_is_another(then: Any, now: dict[str, str]) -> None:
    """Nothing changes if the recording states no folders, the same ones, or the root, which is in every path."""
    relocation = Relocation(then, now)
    assert not relocation
    assert relocation.text("/ /home/me/app /x") == "/ /home/me/app /x"
    assert relocation.describe() == []


def test_s62_a_patched_call_has_the_recorded_names_too() -> None:
    """A plan that sets the value that is already there does not change a call's request."""

    def amend(_: Any) -> Spec:
        return Spec("llm", "ask", "read", "leaf/1", None, '{"arguments":{"where":"/home/me/app"}}', amend=amend)

    found = Relocation(THEN, NOW).spec(amend(()))
    assert found.amend is not None
    assert found.amend(()).request == found.request == '{"arguments":{"where":"/app"}}'


def test_s62_files_are_compared_by_what_they_would_have_said() -> None:
    """A text that differs only by the folder has the recorded digest; content that is not text stays as it is."""
    relocation = Relocation(THEN, NOW)
    then = {"a": {"sha256": "1", "text": "in /app"}, "/app/b": {"sha256": "2", "size": 3}}
    now = {"a": {"sha256": "9", "text": "in /home/me/app"}, "/home/me/app/b": {"sha256": "2", "size": 3}}
    assert relocation.files(then, now) == then
    assert relocation.files(then, {"a": {"sha256": "9", "text": "/home/me/app!"}})["a"]["sha256"] == "9"
