"""Who may ask: bearer tokens, held as hashes, each naming a tenant."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from spanreplay.errors import ConfigError
from spanreplay_service.limits import TOKEN_CHARS_MAX, TOKENS_MAX

TENANT_DEFAULT: Final = "default"
_HEX_CHARS: Final = 64


@dataclass(frozen=True)
class TokenEntry:
    """One accepted token: its SHA-256, whose it is, and until when (epoch seconds; 0: for ever)."""

    digest: bytes = field(repr=False)
    tenant: str
    expires_s: float = 0.0


def hash_token(token: str) -> bytes:
    """SHA-256 of a token. Tokens are long and random, so no slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True)
class Tokens:
    """The tokens that a service accepts; none at all means that everyone is the default tenant."""

    entries: tuple[TokenEntry, ...] = ()
    now_s: Callable[[], float] = field(default=time.time, repr=False, compare=False)

    def find_tenant(self, authorization: str) -> str | None:
        """The tenant of an `Authorization` value, or None if it is refused.

        Compares with every entry in constant time: how long it takes tells nothing about a token.
        """
        if not self.entries:
            return TENANT_DEFAULT
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > TOKEN_CHARS_MAX:
            return None
        digest = hash_token(token.strip())
        tenant: str | None = None
        for entry in self.entries:
            is_same = hmac.compare_digest(entry.digest, digest)
            if is_same and (not entry.expires_s or self.now_s() < entry.expires_s):
                tenant = entry.tenant
        return tenant


def single_token(token: str, tenant: str = TENANT_DEFAULT) -> Tokens:
    """One token for one tenant; an empty token means none is needed."""
    return Tokens((TokenEntry(hash_token(token), tenant),)) if token else Tokens()


def _parse_line(line: str, where: str) -> TokenEntry:
    tenant, *rest = line.split()
    if not 1 <= len(rest) <= 2:
        raise ConfigError(f"{where}: expected `tenant sha256-of-token [expiry]`")
    digest = rest[0].removeprefix("sha256:")
    try:
        raw = bytes.fromhex(digest)
        expires = datetime.fromisoformat(rest[1].replace("Z", "+00:00")) if len(rest) == 2 else None
    except ValueError as exc:
        raise ConfigError(f"{where}: bad hash or expiry") from exc
    if len(digest) != _HEX_CHARS:
        raise ConfigError(f"{where}: the SHA-256 of a token has {_HEX_CHARS} hexadecimal characters")
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=timezone.utc)
    return TokenEntry(raw, tenant, expires.timestamp() if expires else 0.0)


def parse_tokens(lines: Iterable[str], where: str = "tokens") -> Tokens:
    """Tokens from lines `tenant sha256-of-token [ISO 8601 expiry]`; # starts a comment.

    Raises: ConfigError, naming the line and never its content; also if there is no token at all.
    """
    entries: list[TokenEntry] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        if len(entries) == TOKENS_MAX:
            raise ConfigError(f"{where}: more than {TOKENS_MAX} tokens")
        entries.append(_parse_line(text, f"{where}, line {number}"))
    if not entries:
        raise ConfigError(f"{where}: no tokens in it")
    return Tokens(tuple(entries))


def load_tokens(path: Path) -> Tokens:
    """Tokens from a file. Raises: ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the tokens in {str(path)!r}: {exc}") from exc
    return parse_tokens(text.splitlines(), str(path))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tokens: Tokens) -> None:
    """Refuse to answer strangers. Raises: ConfigError for a public address without tokens."""
    if not tokens.entries and not is_loopback(host):
        raise ConfigError(
            f"listening on {host!r} without a token would show every recording to the network",
            hint="set SPANREPLAY_TOKEN, or listen on 127.0.0.1",
        )
