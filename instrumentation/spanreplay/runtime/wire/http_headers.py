"""Which headers of a request a call holds: all that the application may have set.

Headers set by the connection, the trace, the credentials or the SDK are left out and never compared: they differ with
machine, key or version, and are not the agent's. All others are compared (see `replayer.compare.beside`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from spanreplay.runtime.process.noted_effects import sees_effects
from spanreplay.runtime.run import Run

LISTED: Final = frozenset(
    {"accept", "anthropic-version", "content-type", "mcp-protocol-version", "openai-organization", "user-agent"}
)
"""Headers that every recording holds; differences in them are listed as ignored."""
CONNECTION: Final = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "http2-settings",
     "keep-alive", "origin", "proxy-connection", "sec-websocket-extensions", "sec-websocket-key",
     "sec-websocket-version", "te", "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip
CREDENTIALS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "api-key", "x-api-key", "x-goog-api-key"}
)
TRACE: Final = frozenset(
    {"traceparent", "tracestate", "baggage", "b3", "sentry-trace", "uber-trace-id", "x-cloud-trace-context"}
)
MADE_BY_SDKS: Final = (
    "x-stainless-", "x-goog-api-client", "amz-sdk-", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token",
    "x-amz-user-agent", "x-b3-", "x-datadog-", "x-amzn-trace-id", ":",
)  # fmt: skip
DRAWN: Final = re.compile(
    r"rdx-[\w-]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\d{4}-?\d\d-?\d\d[T ]\d\d:?\d\d(?::?\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT|\b\d{9,}(?:\.\d+)?\b|\bv?\d+(?:\.\d+)+[\w.+-]*"
    r"|\b(?=[\w+/-]*\d)(?=[\w+/-]*[A-Za-z])[\w+/-]{16,}={0,2}"
)
"""Ids, times, tokens and versions: values that are generated for each request, or identify the software."""
HEADERS_MAX: Final = 64
VALUE_CHARACTERS_MAX: Final = 4096
_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")
MORE: Final = "more-headers"
"""Stands for the headers beyond HEADERS_MAX: the hash of them all."""


@lru_cache(maxsize=1024)
def is_application(name: str) -> bool:
    """Whether a header, in lower case, may be the application's own."""
    return (
        name not in CONNECTION and name not in CREDENTIALS and name not in TRACE and not name.startswith(MADE_BY_SDKS)
    )


def select(run: Run, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers that a call holds; in a run without effects, only those that every recording holds."""
    sees_all = sees_effects(run)
    kept = []
    for name, value in headers:
        lower = name.lower()
        if lower in LISTED or (sees_all and is_application(lower)):
            kept.append((lower, value if len(value) <= VALUE_CHARACTERS_MAX else _cut(run, lower, value)))
    rest = kept[HEADERS_MAX:]
    return [*kept[:HEADERS_MAX], (MORE, _digest(run, rest))] if rest else kept


def _cut(run: Run, name: str, value: str) -> str:
    """The kept beginning of a long value, and its hash."""
    return f"{value[:VALUE_CHARACTERS_MAX]}… sha256 {_digest(run, [(name, value)])}"


def _digest(run: Run, headers: list[tuple[str, str]]) -> str:
    text = DRAWN.sub("*", repr(run.redactor.headers(headers)))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return digest.translate(_LETTERS)  # with digits in it, it would itself be taken for a generated value
