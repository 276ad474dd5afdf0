"""Posts one OTLP request with the standard library: other HTTP clients are instrumented.

An instrumented client would record its own delivery, deliver that record, and so on.
"""

from __future__ import annotations

import email.utils
import http.client
import re
import ssl
import zlib
from dataclasses import dataclass
from time import time
from typing import Final
from urllib.parse import urlsplit

from spanreplay.recording.spool.limits import SHIP_REPLY_BYTES_MAX, SHIP_RETRY_AFTER_MAX_MS
from spanreplay.recording.spool.target import Target

__all__ = ["COLLECTOR_HEADER", "PHOENIX_HEADER", "Reply", "Sender", "parse_phoenix_url"]

COLLECTOR_HEADER: Final = "x-spanreplay-collector"
"""Header that only a spanreplay collector sends from `/healthz`."""

PHOENIX_HEADER: Final = "x-spanreplay-phoenix"
"""Header with the address of the Phoenix in which a collector shows its spans."""
_URL: Final = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(?:/[A-Za-z0-9._~/-]*)?")
_URL_CHARACTERS_MAX: Final = 200
_FAILURES: Final = (OSError, http.client.HTTPException, ValueError)
# Errors on a connection that the server closed while it was idle.
_STALE: Final = (
    http.client.RemoteDisconnected,
    http.client.CannotSendRequest,
    BrokenPipeError,
    ConnectionResetError,
    ConnectionAbortedError,
)


@dataclass(frozen=True)
class Reply:
    """The server's reply; status 0 and `error` if there was none."""

    status: int
    error: str = ""
    retry_after_ms: int = 0
    body: bytes = b""
    phoenix_url: str = ""


def parse_phoenix_url(text: str | None) -> str:
    """The address of Phoenix that a collector states; empty if it is not a plain URL."""
    text = (text or "").strip().rstrip("/")
    return text if len(text) <= _URL_CHARACTERS_MAX and _URL.fullmatch(text) else ""


def parse_retry_after(text: str | None) -> int:
    """The wait in milliseconds that a Retry-After header asks for, bounded; 0 if it asks for none."""
    if not text:
        return 0
    text = text.strip()
    if text.isdecimal() and len(text) < 10:
        seconds = float(text)
    else:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time()
        except (ValueError, TypeError, OverflowError, IndexError):
            return 0
    return max(0, min(int(seconds * 1000), SHIP_RETRY_AFTER_MAX_MS))


class Sender:
    """One kept-alive connection to a target; used by one thread at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._parts = urlsplit(target.url)
        self._connection: http.client.HTTPConnection | None = None
        self._headers = {
            "content-type": "application/x-protobuf",
            "user-agent": "spanreplay",
            **target.headers,
        }
        if target.is_gzip:
            self._headers["content-encoding"] = "gzip"

    def post(self, body: bytes, timeout_s: float) -> Reply:
        """Send one request. Never raises on network or server errors."""
        if self._target.is_gzip:
            packer = zlib.compressobj(level=1, wbits=31)
            body = packer.compress(body) + packer.flush()
        is_reused = self._connection is not None
        try:
            try:
                return self._post(body, timeout_s)
            except _STALE:
                if not is_reused:
                    raise
                self.close()
                return self._post(body, timeout_s)
        except _FAILURES as exc:
            self.close()
            return Reply(0, type(exc).__name__)

    def is_collector(self, timeout_s: float) -> bool | None:
        """Whether a spanreplay collector answers at the target; None if nothing answers. Sends no span."""
        path = self._parts.path.removesuffix("/v1/traces") + "/healthz"
        try:
            connection = self._connect(timeout_s)
            try:
                connection.request("GET", path, headers={"user-agent": "spanreplay"})
                return connection.getresponse().getheader(COLLECTOR_HEADER) is not None
            finally:
                connection.close()
        except _FAILURES:
            return None

    def close(self) -> None:
        """Close the connection; a later post opens a new one. In a forked child only its copy is closed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _post(self, body: bytes, timeout_s: float) -> Reply:
        if self._connection is None:
            self._connection = self._connect(timeout_s)
        connection = self._connection
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        path = self._parts.path or "/"
        if self._parts.query:
            path += "?" + self._parts.query
        connection.request("POST", path, body, self._headers)
        response = connection.getresponse()
        text = response.read(SHIP_REPLY_BYTES_MAX)
        retry_after_ms = parse_retry_after(response.getheader("retry-after"))
        if not response.isclosed() or response.will_close:
            self.close()
        phoenix_url = parse_phoenix_url(response.getheader(PHOENIX_HEADER))
        return Reply(response.status, "", retry_after_ms, text, phoenix_url)

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        host = self._parts.hostname or ""
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, self._parts.port or 80, timeout=timeout_s)
        context = ssl.create_default_context(cafile=self._target.certificate or None)
        if self._target.client_certificate:
            context.load_cert_chain(self._target.client_certificate, self._target.client_key or None)
        return http.client.HTTPSConnection(host, self._parts.port or 443, timeout=timeout_s, context=context)
