"""Interpretation of a collector's answer."""

from __future__ import annotations

import pytest

from spanreplay.recording.spool.post import parse_phoenix_url


@pytest.mark.parametrize(
    ("stated", "taken"),
    [
        ("http://127.0.0.1:6006", "http://127.0.0.1:6006"),
        ("https://phoenix.example.com/prefix/", "https://phoenix.example.com/prefix"),
        ("http://[::1]:6006", "http://[::1]:6006"),
        (None, ""),
        ("javascript:alert(1)", ""),
        ("http://user:secret@phoenix", ""),
        ("http://phoenix\x1b[2J", ""),
        ("http://phoenix/?q=1", ""),
        ("http://" + "a" * 200, ""),
    ],
)
def test_phoenix_address_is_a_plain_url_or_nothing(stated: str | None, taken: str) -> None:
    """A Phoenix address is shown on a terminal only if it is a URL without a password."""
    assert parse_phoenix_url(stated) == taken
