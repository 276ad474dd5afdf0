"""Who may write, and where the collector may listen."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from spanreplay.model.errors import AccessDenied, ConfigError
from spanreplay_collector.receive.auth import (
    Authenticator,
    TlsFiles,
    Token,
    check_exposure,
    is_loopback,
    load_tokens,
)

TLS = TlsFiles(Path("c"), Path("k"))
MTLS = TlsFiles(Path("c"), Path("k"), Path("ca"))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9", "[::1]"])
def test_r6_loopback_needs_no_token(host: str) -> None:
    """The collector works on a laptop without configuration."""
    assert is_loopback(host)
    check_exposure(host, has_tokens=False, tls=None, is_plaintext_allowed=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "collector.example"])
def test_r6_network_needs_tokens_and_tls(host: str) -> None:
    """Listening on an address that others can reach is refused without both, and the hint says what to do."""
    with pytest.raises(ConfigError, match="anybody on the network") as caught:
        check_exposure(host, has_tokens=False, tls=TLS, is_plaintext_allowed=False)
    assert "tokens" in caught.value.hint
    with pytest.raises(ConfigError, match="without TLS") as caught:
        check_exposure(host, has_tokens=True, tls=None, is_plaintext_allowed=False)
    assert "certificate" in caught.value.hint
    check_exposure(host, has_tokens=True, tls=TLS, is_plaintext_allowed=False)
    check_exposure(host, has_tokens=True, tls=None, is_plaintext_allowed=True)
    check_exposure(host, has_tokens=False, tls=MTLS, is_plaintext_allowed=False)


def test_r6_tokens_name_tenants() -> None:
    """Each token names its tenant; the scheme's case and surrounding spaces do not matter."""
    authenticator = Authenticator([Token.of("a", "one"), Token.of("b", "two")])
    assert authenticator.find_tenant("Bearer a") == "one"
    assert authenticator.find_tenant(" bearer  b ") == "two"
    for wrong in (None, "", "a", "Basic a", "Bearer", "Bearer A", "Bearer a b", "Bearer ü\udcff"):
        with pytest.raises(AccessDenied):
            authenticator.find_tenant(wrong)


def test_r6_token_keeps_no_secret() -> None:
    """Neither the secret nor its hash appears in a log line."""
    token = Token.of("hunter2", "one")
    assert "hunter2" not in repr(token)
    assert token.sha256.hex() not in repr(token)


def test_r6_tokens_from_a_file(tmp_path: Path) -> None:
    """A file may hold secrets or their hashes, with an optional expiry."""
    digest = hashlib.sha256(b"b").hexdigest()
    path = tmp_path / "tokens.json"
    path.write_text(
        json.dumps(
            [
                {"tenant": "one", "token": "a"},
                {"tenant": "two", "sha256": digest, "expires": "2999-01-01T00:00:00Z"},
                {"tenant": "three", "token": "c", "expires": "2001-01-01T00:00:00+02:00"},
            ]
        )
    )
    authenticator = Authenticator(load_tokens(path))
    assert authenticator.find_tenant("Bearer a") == "one"
    assert authenticator.find_tenant("Bearer b") == "two"
    with pytest.raises(AccessDenied, match="expired"):
        authenticator.find_tenant("Bearer c")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        '[{"tenant": "a"}]',
        '[{"token": "a"}]',
        '[{"tenant": "a", "sha256": "12"}]',
        '[{"tenant": "a", "token": "b", "expires": "soon"}]',
    ],
)
def test_r6_tokens_file_mistakes_are_named(tmp_path: Path, text: str) -> None:
    """An unusable file stops the start, and the error says where the mistake is."""
    path = tmp_path / "tokens.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"tokens\.json"):
        load_tokens(path)


def test_r6_token_expires_now() -> None:
    """A token is expired from its expiry time on."""
    authenticator = Authenticator([Token.of("a", expires_at_s=time.time())])
    with pytest.raises(AccessDenied, match="expired"):
        authenticator.find_tenant("Bearer a")
