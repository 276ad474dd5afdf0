"""The user of a unit: given by a callback, by headers, or by baggage, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spanreplay.units.caller import find_names, look_at_caller
from support.in_process import MemoryProcessor, make_run


def name_it(given: Mapping[str, Any]) -> object:
    """A callback that returns its input."""
    return given.get("answer")


HERE = f"{__name__}:name_it"


def _who(headers: Mapping[str, str], **given: Any) -> tuple[str, str]:
    run = make_run(MemoryProcessor())
    look_at_caller(run, [(name.encode(), value.encode()) for name, value in headers.items()], lambda: given)
    return run.who.user, run.who.session


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANREPLAY_USER_HEADER", "X-User, x-other")
    monkeypatch.setenv("SPANREPLAY_SESSION_HEADER", "x-session")


def test_p6_the_first_header_that_is_there_names_the_user() -> None:
    """Headers are checked in the order of the setting, and before baggage; names are case-insensitive."""
    assert find_names() == ("baggage", "traceparent", "x-user", "x-other", "x-session")
    carried = {"baggage": "user.id=b,session.id=t"}
    assert _who({"x-other": "o", "X-USER": "u", "x-session": "s", **carried}) == ("u", "s")
    assert _who({"x-other": "o", **carried}) == ("o", "t")
    assert _who(carried) == ("b", "t")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("u", ("u", "s")),
        (7, ("7", "s")),
        ({"user": "u"}, ("u", "s")),
        ({"user": "u", "session": "t"}, ("u", "t")),
        (None, ("h", "s")),
        ({}, ("h", "s")),
        ([], ("h", "s")),
    ],
    ids=str,
)
def test_p6_a_callback_goes_before_headers(
    answer: object, found: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback gives a user, or user and session; anything it doesn't give comes from the headers."""
    monkeypatch.setenv("SPANREPLAY_WHO", HERE)
    assert _who({"x-user": "h", "x-session": "s"}, answer=answer) == found


@pytest.mark.parametrize("place", ["no_such_module:f", f"{__name__}:missing", f"{__name__}:HERE", "without"])
def test_p6_a_callback_that_is_not_there_is_said_once(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong setting changes nothing, and one warning reports it."""
    monkeypatch.setenv("SPANREPLAY_WHO", place)
    for _ in range(2):
        assert _who({"x-user": "h"}) == ("h", "")
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["SPANREPLAY_WHO"]


def test_p6_a_header_that_holds_a_credential_names_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A token is never used as a user, whatever the setting says: it would be searchable."""
    monkeypatch.setenv("SPANREPLAY_USER_HEADER", "authorization,x-user")
    assert _who({"authorization": "Bearer t", "x-user": "u"}) == ("u", "")
    assert "authorization holds a credential" in caplog.text
