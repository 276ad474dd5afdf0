"""Scopes and bodies as values: complete, with the names that redaction uses."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, Final

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
    """A recorded scope gives the same scope again; its state is a copy of the lifespan's."""
    state = {"pool": object()}
    built = build_scope(describe_scope({**SCOPE, "state": {}}), state)
    assert built == {**SCOPE, "state": state}
    assert built["state"] is not state


def test_p2_headers_stay_beside_their_names() -> None:
    """A credential is a member with its header's name, so that redaction recognises it."""
    assert describe_headers([(b"Authorization", b"Bearer x")]) == [{"authorization": "Bearer x"}]


@given(st.lists(st.binary(max_size=20) | st.text(max_size=20).map(str.encode), min_size=1, max_size=5))
def test_p4_a_body_comes_back_in_its_parts(parts: list[bytes]) -> None:
    """A body comes back in its parts, whether it is text or not, and wherever a character was cut in two."""
    body = Body()
    for part in parts:
        body.add(part)
    assert cut_body({**body.describe(), PARTS: body.lengths}) == parts


def test_p2_a_body_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit only size and hash are kept, which still distinguish bodies."""
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


PLAIN: Final = b'{"answer": 7}' * 20


@pytest.mark.parametrize(
    ("content", "encoding", "found"),
    [
        (gzip.compress(PLAIN), "gzip", {"text": PLAIN.decode()}),
        (gzip.compress(PLAIN), "X-GZIP ", {"text": PLAIN.decode()}),
        (zlib.compress(PLAIN), "deflate", {"text": PLAIN.decode()}),
        (PLAIN, "gzip", {"text": PLAIN.decode()}),
        (PLAIN, "identity", {"text": PLAIN.decode()}),
        (b"\x0b\x02\x80", "br", {"bytes": 3}),
        (gzip.compress(PLAIN), "gzip, gzip", {"bytes": len(gzip.compress(PLAIN))}),
        (gzip.compress(b"a" * 100_000_000), "gzip", {"bytes": len(gzip.compress(b"a" * 100_000_000))}),
        (b"\x1f\x8b damaged", "gzip", {"bytes": 10}),
        (gzip.compress(PLAIN) + gzip.compress(PLAIN), "gzip", {"bytes": 2 * len(gzip.compress(PLAIN))}),
    ],
    ids=["gzip", "x-gzip", "deflate", "not yet", "identity", "br", "twice", "bomb", "damaged", "two members"],
)
def test_r1_a_compressed_body_is_unpacked_or_only_its_hash_is_kept(
    content: bytes, encoding: str, found: dict[str, Any]
) -> None:
    """Redaction sees everything that is kept."""
    body = Body()
    body.add(content)
    described = body.describe(encoding)
    assert {name: value for name, value in described.items() if name != "sha256"} == found
    assert ("sha256" in described) == ("bytes" in found)


def test_r1_the_beginning_of_a_compressed_body_is_unpacked() -> None:
    """The received part of a truncated stream is kept, as its text."""
    packing = zlib.compressobj(wbits=31)
    body = Body()
    body.add(packing.compress(PLAIN) + packing.flush(zlib.Z_SYNC_FLUSH))
    assert body.describe("gzip") == {"text": PLAIN.decode()}
