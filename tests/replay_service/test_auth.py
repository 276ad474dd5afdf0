"""Tokens: who is let in, and as whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanreplay.errors import ConfigError
from spanreplay_service import auth

DIGEST = auth.hash_token("s3cret").hex()


def test_r6_a_token_names_its_tenant() -> None:
    """The right token gives its tenant; wrong, missing and malformed ones give none."""
    tokens = auth.parse_tokens([f"acme {DIGEST}", f"other sha256:{auth.hash_token('t').hex()}  # note"])
    assert tokens.find_tenant("Bearer s3cret") == "acme"
    assert tokens.find_tenant("bearer t") == "other"
    refused = [
        "",
        "Bearer ",
        "Bearer S3cret",
        "s3cret",
        "Basic s3cret",
        f"Bearer {DIGEST}",
        "Bearer " + "x" * 5000,
    ]
    assert [tokens.find_tenant(value) for value in refused] == [None] * len(refused)


def test_r6_an_expired_token_is_refused() -> None:
    """A token is accepted until its expiry and not after it."""
    entries = auth.parse_tokens([f"acme {DIGEST} 2026-11-21T12:00:00Z"]).entries
    assert auth.Tokens(entries, now_s=lambda: 1_795_262_399.0).find_tenant("Bearer s3cret") == "acme"
    assert auth.Tokens(entries, now_s=lambda: 1_795_262_400.0).find_tenant("Bearer s3cret") is None


def test_no_tokens_means_the_default_tenant() -> None:
    """Without tokens, everyone who can connect is the default tenant."""
    assert auth.single_token("").find_tenant("") == auth.TENANT_DEFAULT
    assert auth.single_token("t").find_tenant("") is None


def test_tokens_are_not_shown() -> None:
    """What is held of a token is its hash, and even that is not in a repr."""
    shown = repr(auth.single_token("s3cret"))
    assert "s3cret" not in shown
    assert DIGEST not in shown


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["# nothing"], "no tokens"),
        (["acme"], "line 1: expected"),
        (["acme abc"], "line 1: bad hash"),
        (["acme abcd"], "64 hexadecimal"),
        (["", f"acme {DIGEST} soon"], "line 2: bad hash or expiry"),
        ([f"acme {DIGEST} 2026-01-01 more"], "expected"),
        ([f"t{n} {DIGEST}" for n in range(10_001)], "more than 10000"),
    ],
    ids=["empty", "no hash", "odd", "short", "expiry", "more", "many"],
)
def test_a_bad_token_file_is_refused_without_showing_it(lines: list[str], message: str) -> None:
    """The error names the line and never what stands in it."""
    with pytest.raises(ConfigError, match=message) as caught:
        auth.parse_tokens(lines)
    assert DIGEST not in str(caught.value)


def test_token_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing or binary file is a ConfigError that names it."""
    binary = tmp_path / "tokens"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (binary, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=path.name):
            auth.load_tokens(path)
    binary.write_text(f"acme {DIGEST}\n", encoding="utf-8")
    assert auth.load_tokens(binary).find_tenant("Bearer s3cret") == "acme"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    """On loopback the service may run open."""
    auth.check_exposure(host, auth.Tokens())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_a_public_address_needs_a_token(host: str) -> None:
    """Anywhere else it refuses to start without a token, and starts with one."""
    with pytest.raises(ConfigError, match="without a token"):
        auth.check_exposure(host, auth.Tokens())
    auth.check_exposure(host, auth.single_token("t"))
