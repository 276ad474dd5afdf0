"""Map bearer tokens to tenants."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from spanreplay.model.errors import AccessDenied, ConfigError
from spanreplay_collector import limits

DEFAULT_TENANT: Final = "default"


@dataclass(frozen=True)
class Token:
    """A token as the collector stores it: only the hash of the secret."""

    tenant: str
    sha256: bytes = field(repr=False)
    expires_at_s: float | None = None
    may_erase: bool = False
    """Whether it may remove recorded runs; an agent's token should not."""

    def __post_init__(self) -> None:
        if not 0 < len(self.tenant.encode()) <= limits.TENANT_BYTES_MAX:
            raise ConfigError(f"a tenant's name has 1 to {limits.TENANT_BYTES_MAX} bytes, not {self.tenant[:40]!r}")

    @classmethod
    def of(
        cls,
        secret: str,
        tenant: str = DEFAULT_TENANT,
        *,
        expires_at_s: float | None = None,
        may_erase: bool = False,
    ) -> Token:
        """Create a token from a secret."""
        return cls(tenant, hashlib.sha256(secret.encode()).digest(), expires_at_s, may_erase)


@dataclass(frozen=True)
class TlsFiles:
    """PEM files; with `client_ca` every client needs a certificate signed by it."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class Authenticator:
    """Finds the tenant of a request; without tokens every request belongs to `default`."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tuple(tokens)

    @property
    def is_open(self) -> bool:
        """Whether requests need no token."""
        return not self._tokens

    def find_tenant(self, authorization: str | None) -> str:
        """The tenant of an Authorization header. Raises: AccessDenied."""
        return self.find_token(authorization).tenant

    def find_token(self, authorization: str | None) -> Token:
        """The token of an Authorization header; if none is needed, one that may do everything. Raises: AccessDenied.

        Every token is compared, in constant time, so that the response time reveals nothing.
        """
        if not self._tokens:
            return Token(DEFAULT_TENANT, b"", may_erase=True)
        scheme, _, secret = (authorization or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise AccessDenied("a bearer token is required", hint="set OTEL_EXPORTER_OTLP_HEADERS")
        shown = hashlib.sha256(secret.strip().encode("utf-8", "surrogateescape")).digest()
        found: Token | None = None
        for token in self._tokens:
            if hmac.compare_digest(token.sha256, shown):
                found = token
        if found is None:
            raise AccessDenied("the bearer token is not known here")
        if found.expires_at_s is not None and time.time() >= found.expires_at_s:
            raise AccessDenied("the bearer token has expired")
        return found


def load_tokens(path: Path) -> tuple[Token, ...]:
    """Load tokens from a JSON file: a list of {"tenant", "token" or "sha256", optional "expires", "erase"}.

    `expires` is ISO 8601; `erase` is true for a token that may remove runs.

    Raises: ConfigError, naming the invalid entry.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read tokens from {str(path)!r}: {exc}") from exc
    if not isinstance(entries, list):
        raise ConfigError(f"{str(path)!r} is not a JSON list of tokens")
    return tuple(_read_entry(entry, f"entry {place} of {str(path)!r}") for place, entry in enumerate(entries))


def _read_entry(entry: object, where: str) -> Token:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not an object")
    try:
        expires = entry.get("expires")
        expires_at_s = datetime.fromisoformat(str(expires).replace("Z", "+00:00")).timestamp() if expires else None
        may_erase = entry.get("erase", False)
        if not isinstance(may_erase, bool):
            raise ValueError("erase is not true or false")
        if "sha256" in entry:
            digest = bytes.fromhex(str(entry["sha256"]))
            if len(digest) != 32:
                raise ValueError("sha256 is not 64 hexadecimal digits")
            return Token(str(entry["tenant"]), digest, expires_at_s, may_erase)
        secret, tenant = str(entry["token"]), str(entry["tenant"])
        return Token.of(secret, tenant, expires_at_s=expires_at_s, may_erase=may_erase)
    except (KeyError, ValueError) as exc:
        raise ConfigError(f"{where} cannot be used: {exc!r}", hint='it needs "tenant" and "token"') from exc


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, has_tokens: bool, tls: TlsFiles | None, is_plaintext_allowed: bool) -> None:
    """Refuse to listen on the network without access control. Raises: ConfigError."""
    if is_loopback(host):
        return
    if not has_tokens and not (tls and tls.client_ca):
        raise ConfigError(
            f"refusing to listen on {host!r}: anybody on the network could write recordings",
            hint="give tokens (or TLS with a client CA), or listen on 127.0.0.1",
        )
    if tls is None and not is_plaintext_allowed:
        raise ConfigError(
            f"refusing to listen on {host!r} without TLS: tokens and recordings would be readable on the way",
            hint="give a TLS certificate and key, or allow plaintext where a proxy or mesh adds TLS",
        )
