"""Deriving from an exception of native code which effect the kernel denied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spanreplay.replayer.resolve.guard import Guard
from spanreplay.replayer.sandbox.denied import Denied, find_denied


def _fail(text: str) -> BaseException:
    """An exception with this text, raised by native code."""
    with pytest.raises(ValueError, match=text) as caught:
        int(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "is_offline", "what"),
    [
        ("tcp connect error, Permission denied", True, "make no connection"),
        ("tcp connect error, Permission denied", False, "change no file"),
        ("Permission denied", True, "change no file"),
        ("connect, os error 13", True, "make no connection"),
    ],
)
def test_n14_a_refused_connection_is_told_from_a_file(text: str, is_offline: bool, what: str) -> None:
    """If the kernel denies connections at all, the words of the error tell them from files."""
    session: Any = SimpleNamespace(guard=Guard(is_offline=is_offline))
    run: Any = SimpleNamespace(overlay=None)
    found = find_denied(_fail(text), session, run, (), is_nameless=True)
    assert isinstance(found, Denied)
    assert found.message == f"native code failed with ValueError: this replay lets it {what}"
    assert found.is_connection == (what == "make no connection")
    assert find_denied(_fail("connect"), session, run, (), is_nameless=True) is None
