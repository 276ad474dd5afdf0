"""The login of the Phoenix that `spanreplay up` starts with a service that has tokens.

Phoenix has no tenants: without a login, anyone who reaches its port can read the traces of all tenants.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from spanreplay.model.errors import ConfigError
from spanreplay.model.private import make_private, open_trusted

ACCESS_FILE: Final = "access.json"
USER: Final = "admin@localhost"
_FILE_BYTES_MAX: Final = 4096


@dataclass(frozen=True)
class PhoenixAccess:
    """Phoenix's session secret, our token for it, and the password of its first user."""

    secret: str = field(repr=False)
    token: str = field(repr=False)
    password: str = field(repr=False)

    def environment(self, *, is_required: bool) -> dict[str, str]:
        """Phoenix's settings; the password is always set, so that it is valid if the login is enabled later."""
        first = {"PHOENIX_DEFAULT_ADMIN_INITIAL_PASSWORD": self.password}
        if not is_required:
            return first
        return {
            **first,
            "PHOENIX_ENABLE_AUTH": "true",
            "PHOENIX_SECRET": self.secret,
            "PHOENIX_ADMIN_SECRET": self.token,
        }


def load_or_create_access(directory: Path) -> PhoenixAccess:
    """Load the login of a Phoenix directory; created on first use, mode 0600. Raises: ConfigError."""
    path = make_private(directory) / ACCESS_FILE
    try:
        return _read(path) if os.path.lexists(path) else _create(path)
    except (OSError, ValueError, TypeError) as exc:
        raise ConfigError(
            f"cannot use the login of Phoenix in {str(path)!r}: {getattr(exc, 'strerror', None) or type(exc).__name__}",
            hint="restore the file, or remove the directory to begin with an empty Phoenix",
        ) from exc


def _read(path: Path) -> PhoenixAccess:
    with open_trusted(path, is_named=False) as stream:
        found: Mapping[str, str] = json.loads(stream.read(_FILE_BYTES_MAX))
    return PhoenixAccess(**found)


def _create(path: Path) -> PhoenixAccess:
    # Phoenix requires a digit and a lower-case letter in its secrets.
    secret, token = (f"a1{secrets.token_hex(24)}" for _ in range(2))
    made = PhoenixAccess(secret, token, secrets.token_urlsafe(15))
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(asdict(made), stream)
    part.replace(path)
    return made
