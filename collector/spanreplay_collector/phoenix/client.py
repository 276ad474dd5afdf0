"""A small HTTP client for Phoenix: one persistent connection, a bearer token, no redirects, no proxies."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from spanreplay.model.errors import ConfigError
from spanreplay_collector import limits

_REPLY_BYTES_MAX = 4 * limits.MIB


@dataclass(frozen=True)
class Reply:
    """A response from Phoenix."""

    status: int
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


class PhoenixClient:
    """Requests to one Phoenix, one at a time; thread-safe.

    The URL may have a path, for a Phoenix served under a prefix. Raises: ConfigError if it is not an http(s) URL.
    """

    def __init__(self, url: str, token: str = "", *, timeout_s: float = limits.PHOENIX_TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{url!r} is not the address of a Phoenix server", hint="for example http://127.0.0.1:6006"
            )
        self.base = url.rstrip("/")
        self._parts = parts
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request and read the response, at most 4 MiB. Raises: OSError if Phoenix cannot be reached."""
        target = self._parts.path.rstrip("/") + path
        with self._lock:
            was_open = self._connection is not None
            try:
                return self._exchange(method, target, body, {**self._headers, **(headers or {})})
            except (http.client.HTTPException, OSError) as exc:
                self._drop_connection()
                if not was_open:
                    raise _as_os_error(exc) from exc
            # The server may have closed an idle connection: try once more on a new one.
            try:
                return self._exchange(method, target, body, {**self._headers, **(headers or {})})
            except (http.client.HTTPException, OSError) as exc:
                self._drop_connection()
                raise _as_os_error(exc) from exc

    def close(self) -> None:
        """Close the persistent connection."""
        with self._lock:
            self._drop_connection()

    def _exchange(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request(method, target, body, dict(headers))
        response = self._connection.getresponse()
        content = response.read(_REPLY_BYTES_MAX)
        if not response.isclosed():  # longer than the limit
            self._drop_connection()
        return Reply(response.status, content)

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _as_os_error(exc: Exception) -> OSError:
    return exc if isinstance(exc, OSError) else ConnectionError(f"{type(exc).__name__}: {exc}")
