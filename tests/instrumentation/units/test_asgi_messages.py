"""Scopes and bodies as values: whole, with the names that redaction goes by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model import config
from spanreplay.units.asgi_messages import PARTS, Body, build_scope, cut_body, describe_headers, describe_scope

SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/caf\u00e9",
    "raw_path": b"/caf%C3%A9",
    "query_string": b"a=1&a=2",
    "root_path": "",
    "headers": [(b"x-twice", b"1"), (b"x-twice", b"\xe9"), (b"cookie", b"a=b")],
    "client": ("127.0.0.1", 4711),
    "server": ("127.0.0.1", 80),
    "extensions": {"http.response.debug": {}},
}


def test_p4_a_scope_comes_back() -> None:
    """What is recorded of a scope makes the same scope; its state is the lifespan's, a copy."""
    state = {"pool": object()}
    built = build_scope(describe_scope({**SCOPE, "state": {}}), state)
    assert built == {**SCOPE, "state": state}
    assert built["state"] is not state


def test_p2_headers_stay_beside_their_names() -> None:
    """A credential is a member of its header's name, so that redaction knows it."""
    assert describe_headers([(b"Authorization", b"Bearer x")]) == [{"authorization": "Bearer x"}]


@given(st.lists(st.binary(max_size=20) | st.text(max_size=20).map(str.encode), min_size=1, max_size=5))
def test_p4_a_body_comes_back_in_its_parts(parts: list[bytes]) -> None:
    """Text or not, and wherever a character was cut in two."""
    body = Body()
    for part in parts:
        body.add(part)
    assert cut_body({**body.describe(), PARTS: body.lengths}) == parts


def test_p2_a_body_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it there are size and hash, which still tell one body from another."""
    monkeypatch.setattr(config, "BODY_BYTES_MAX", 8)
    described = []
    for last in (b"5678x", b"5678y"):
        body = Body()
        body.add(b"1234")
        body.add(last)
        assert not body.is_kept
        described.append(body.describe())
    assert described[0]["bytes"] == described[1]["bytes"] == 9
    assert described[0]["sha256"] != described[1]["sha256"]
