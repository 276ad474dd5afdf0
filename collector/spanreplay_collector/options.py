"""Options that all servers share: listening address, access control, store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import click

from spanreplay.model.config import read_setting
from spanreplay.model.errors import ConfigError
from spanreplay_collector.receive.auth import TlsFiles, Token, load_tokens
from spanreplay_collector.store.retainer import Retention

__all__ = [
    "PORT",
    "access_options",
    "add_credentials",
    "read_access",
    "read_retention",
    "read_store_url",
    "retention_options",
]

KEEP_DAYS_MIN: Final = 2
"""A collector takes for granted for a day that the store has what it wrote: see `Store._remember`."""
KEEP_DAYS_MAX: Final = 36_500

PORT: Final = click.IntRange(0, 65535)
_FILE: Final = click.Path(dir_okay=False, path_type=Path)
USER_VARIABLE: Final = "SPANREPLAY_STORE_USER"
PASSWORD_VARIABLE: Final = "SPANREPLAY_STORE_PASSWORD"  # noqa: S105 - the name of a variable

_ACCESS: Final = (
    click.option("--tokens", "tokens_file", type=_FILE, help="JSON list of {tenant, token or sha256, expires, erase}."),
    click.option("--tls-cert", type=_FILE, help="PEM certificate; with --tls-key."),
    click.option("--tls-key", type=_FILE, help="PEM private key."),
    click.option("--tls-client-ca", type=_FILE, help="Clients must show a certificate signed by this CA."),
    click.option(
        "--allow-plaintext",
        "is_plaintext_allowed",
        is_flag=True,
        help="Listen outside localhost without TLS: a proxy adds it.",
    ),
)

_RETENTION: Final = (
    click.option(
        "--keep-days",
        type=click.IntRange(KEEP_DAYS_MIN, KEEP_DAYS_MAX),
        metavar="N",
        help="Remove runs that ended more than N days ago, except pinned ones and failures; default: keep everything.",
    ),
    click.option("--drop-failures", is_flag=True, help="With --keep-days: remove runs that failed, too."),
)

Command = TypeVar("Command", bound=Callable[..., Any])


def access_options(command: Command) -> Command:
    """Add the options that `read_access` reads, and --allow-plaintext."""
    for option in reversed(_ACCESS):
        command = option(command)
    return command


def retention_options(command: Command) -> Command:
    """Add the options that `read_retention` reads."""
    for option in reversed(_RETENTION):
        command = option(command)
    return command


def read_retention(*, keep_days: int | None, drop_failures: bool) -> Retention:
    """Return how long runs are kept. Raises: ConfigError."""
    if drop_failures and not keep_days:
        raise ConfigError("--drop-failures goes with --keep-days")
    return Retention(keep_days or 0, keep_failures=not drop_failures)


def read_access(
    *, tokens_file: Path | None, tls_cert: Path | None, tls_key: Path | None, tls_client_ca: Path | None
) -> tuple[tuple[Token, ...], TlsFiles | None]:
    """Return the tokens (from the file and SPANREPLAY_TOKEN) and the TLS files. Raises: ConfigError."""
    if bool(tls_cert) != bool(tls_key) or (tls_client_ca and not tls_cert):
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    tokens = load_tokens(tokens_file) if tokens_file else ()
    own = read_setting("SPANREPLAY_TOKEN")
    if own:
        tokens = (*tokens, Token.of(own))
    return tokens, TlsFiles(tls_cert, tls_key, tls_client_ca) if tls_cert and tls_key else None


def read_store_url(url: str | None) -> str:
    """Return a server's URL with credentials from the environment. Raises: ConfigError if it names no server."""
    if not url or url.startswith("chdb:"):
        raise ConfigError(
            "this command needs a ClickHouse server: an embedded store belongs to one process",
            hint="--store http://host:8123/database, or run everything in one process with `spanreplay up`",
        )
    return add_credentials(url, os.environ)


def add_credentials(url: str, environ: Mapping[str, str]) -> str:
    """Add SPANREPLAY_STORE_USER and …_PASSWORD to a store's URL unless it names a user itself; pure.

    A password from a secret may contain any character; a deployment can't escape it for a URL, so it is done here.
    """
    user, password = environ.get(USER_VARIABLE, ""), environ.get(PASSWORD_VARIABLE, "")
    if url.startswith("chdb:") or not (user or password):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # opening the store reports the error
    if "@" in parts.netloc:
        return url
    netloc = f"{quote(user or 'default', safe='')}:{quote(password, safe='')}@{parts.netloc}"
    return urlunsplit(parts._replace(netloc=netloc))
