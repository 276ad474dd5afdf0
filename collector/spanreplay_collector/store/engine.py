"""Connections to ClickHouse, embedded (chDB) or over HTTP, through clickhouse-connect alone."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

from spanreplay.model.errors import ConfigError, StoreError, StoreLocked
from spanreplay.model.how_to_install import install_command
from spanreplay.model.private import make_private
from spanreplay_collector.store.cluster import apply_cluster_settings

__all__ = ["Engine", "StoreAddress", "parse_address"]

DATABASE: Final = "spanreplay"
CLIENTS_MAX: Final = 16
"""Maximum number of concurrent queries; further ones wait."""
CONNECT_TIMEOUT_S: Final = 5
QUERY_TIMEOUT_S: Final = 120
SCHEMA_DIR: Final = Path(__file__).parents[1] / "schema"

# The driver logs a traceback for each attempt while a server is down; we raise the error, the caller reports it once.
_driver_logger = logging.getLogger("clickhouse_connect")
if _driver_logger.level == logging.NOTSET:
    _driver_logger.setLevel(logging.ERROR)

_UNKNOWN_TABLE: Final = 60
_UNKNOWN_DATABASE: Final = 81
_REFUSED: Final = frozenset({192, 193, 194, 497, 516})
"""ClickHouse error codes for a wrong user, a wrong password or missing privileges."""


@dataclass(frozen=True)
class StoreAddress:
    """The address of a store; its `str()` contains no password."""

    scheme: str
    host: str
    port: int
    user: str
    password: str
    path: str
    database: str

    def __str__(self) -> str:
        if self.scheme == "chdb":
            return f"chdb://{self.path}"
        return f"{self.scheme}://{self.host}:{self.port}/{self.database}"

    def __repr__(self) -> str:
        return f"StoreAddress({str(self)!r})"


def parse_address(url: str) -> StoreAddress:
    """Parse a store's URL. Raises: ConfigError, without the URL, which may contain a password.

    `chdb:///absolute/directory[?database=name]` or `http[s]://[user:password@]host[:port][/database]`.
    """
    if url.startswith("chdb:"):
        return _parse_embedded(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ConfigError("the store's URL cannot be read", hint=_URL_HINT) from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"a store's URL cannot begin with {parts.scheme!r}", hint=_URL_HINT)
    return StoreAddress(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or (8443 if parts.scheme == "https" else 8123),
        user=unquote(parts.username or "default"),
        password=unquote(parts.password or ""),
        path="",
        database=_checked_name(unquote(parts.path.strip("/")) or DATABASE),
    )


_URL_HINT: Final = "use chdb:///absolute/directory or http://user:password@host:8123/database"


def _parse_embedded(url: str) -> StoreAddress:
    """Parse a chdb URL; the directory is taken literally, `%` and `#` are ordinary characters."""
    path, _, database = url.removeprefix("chdb://").partition("?database=")
    if not Path(path).is_absolute():
        raise ConfigError("the directory of an embedded store must be absolute", hint=_URL_HINT)
    if "?" in path or "\0" in path:
        raise ConfigError("the directory of an embedded store cannot have a `?` in its name", hint=_URL_HINT)
    return StoreAddress("chdb", "", 0, "", "", str(Path(path).resolve()), _checked_name(database or DATABASE))


def _checked_name(database: str) -> str:
    if not (database.isascii() and database.isidentifier()):
        raise ConfigError(f"{database!r} is not a database name", hint="use letters, digits and underscores")
    return database


def _make_directory(path: Path) -> None:
    """Make an embedded store's directory accessible to its owner only; leave one owned by another user unchanged."""
    if not path.exists() or path.stat().st_uid == os.geteuid():
        make_private(path)


def _is_locked(status_file: Path) -> bool:
    """Whether a process holds the lock that chDB takes on its directory; chDB's own errors don't always say so."""
    try:
        with status_file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class Engine:
    """A bounded pool of clients; each client is used by one thread at a time.

    Thread-safe. Driver errors are raised as StoreError or StoreLocked.
    """

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._free: list[Client] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(CLIENTS_MAX)
        self._is_closed = False

    @contextmanager
    def client(self, *, is_server_level: bool = False) -> Iterator[Client]:
        """Borrow a client that uses the store's database, or no database (to create it)."""
        with self._slots:
            client = self._take()
            client.database = None if is_server_level else self.address.database
            try:
                yield client
            except BaseException as exc:
                client = self._replaced(client)
                if isinstance(exc, ClickHouseError):
                    raise self._explained(exc) from exc
                raise
            finally:
                self._give_back(client)

    def close(self) -> None:
        """Close every client; one in use is closed when it is returned. Idempotent."""
        with self._lock:
            self._is_closed = True
            clients, self._free = self._free, []
        for client in clients:
            client.close()

    def _take(self) -> Client:
        with self._lock:
            if self._is_closed:
                raise StoreError(f"the store at {self.address} is closed")
            if self._free:
                return self._free.pop()
        return self._connect()

    def _give_back(self, client: Client) -> None:
        with self._lock:
            if not self._is_closed:
                self._free.append(client)
                return
        client.close()

    def _replaced(self, client: Client) -> Client:
        """Replace a chDB client after an error; return any other client unchanged.

        A chDB handle whose query failed after its first output gives that output to the next query (26.9).
        The new handle is opened before the old one is closed, so that the directory's lock is never released.
        """
        if self.address.scheme != "chdb":
            return client
        with suppress(StoreError):
            fresh = self._connect()
            client.close()
            return fresh
        return client

    def _connect(self) -> Client:
        address = self.address
        try:
            if address.scheme == "chdb":
                _make_directory(Path(address.path))
                return clickhouse_connect.get_client(
                    interface="chdb",
                    path=address.path,
                    # A packaged file: all handles of a process must name the same config file.
                    chdb_options={"config-file": str(SCHEMA_DIR / "chdb.xml")},
                )
            client = clickhouse_connect.get_client(
                interface=address.scheme,
                host=address.host,
                port=address.port,
                username=address.user,
                password=address.password,
                connect_timeout=CONNECT_TIMEOUT_S,
                send_receive_timeout=QUERY_TIMEOUT_S,
                # A session would allow one query at a time; a parameter in the URL has a length limit.
                autogenerate_session_id=False,
                form_encode_query_params=True,
            )
            apply_cluster_settings(client)
            return client
        except ClickHouseError as exc:
            raise self._explained(exc) from exc
        except ImportError as exc:
            raise StoreError(
                "an embedded store needs chDB, which is not installed",
                hint=f"{install_command('embedded')}, or name a ClickHouse server",
            ) from exc
        except OSError as exc:
            raise StoreError(f"the directory {address.path!r} cannot be used: {exc.strerror}") from exc

    def _explained(self, exc: ClickHouseError) -> StoreError:
        """Reword a driver error: its own text may quote stored content."""
        text = str(exc)
        if "initializing EmbeddedServer" in text and _is_locked(Path(self.address.path) / "status"):
            return StoreLocked(
                f"another process has the store at {self.address} open",
                hint="an embedded store belongs to one process: stop the other one (`spanreplay up`?) "
                "or ask it through SPANREPLAY_ENDPOINT",
            )
        if "cannot connect with different path" in text:
            return StoreError(
                f"this process has another embedded store open; it cannot open {self.address} as well",
                hint="close the other store first, or use one directory and several databases (?database=…)",
            )
        code = getattr(exc, "code", None)
        if code in (_UNKNOWN_DATABASE, _UNKNOWN_TABLE):
            return StoreError(f"the store at {self.address} has no tables of ours yet", hint="run `spanreplay migrate`")
        if code in _REFUSED:
            return StoreError(
                f"the store at {self.address} refused user {self.address.user!r}",
                hint="check user, password and rights in the store's URL",
            )
        if isinstance(exc, OperationalError) and code is None and self.address.scheme != "chdb":
            return StoreError(
                f"no ClickHouse server answers at {self.address}", hint="start it, or check the store's URL"
            )
        name = getattr(exc, "name", None) or type(exc).__name__
        return StoreError(f"the store at {self.address} failed: {name} (code {code})")
