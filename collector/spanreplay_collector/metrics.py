"""Counters and gauges of the collector, in the Prometheus text format.

No label ever contains a run, a user or a prompt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

PREFIX: Final = "spanreplay_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

MEANING: Final[dict[str, str]] = {
    "received_requests_total": "export requests acknowledged, by transport",
    "received_spans_total": "spans acknowledged",
    "received_bytes_total": "bytes of OTLP acknowledged, after decompression",
    "refused_requests_total": "export requests not acknowledged, by reason",
    "invalid_spans_total": "spans refused inside an accepted request: their ids are not valid",
    "discarded_requests_total": "metrics and logs requests answered and thrown away, by signal",
    "log_groups_total": "group commits: one fsync each",
    "log_write_errors_total": "writes of the log that failed; their senders were told to retry",
    "log_damaged_records_total": "records of the log that could not be read back",
    "loaded_spans_total": "spans handed to the store",
    "kept_apart_spans": "spans that came again with other content since the start; the first stay",
    "removed_runs_total": "runs removed because of their age",
    "load_retries_total": "loads that failed and were tried again",
    "rejected_records_total": "records that the store refuses for good, kept in the folder `rejected`",
    "phoenix_sent_spans_total": "spans that Phoenix accepted",
    "phoenix_dropped_spans_total": "spans that Phoenix will not show, by reason",
    "phoenix_dropped_bytes_total": "bytes of the log skipped because Phoenix was too slow or away too long",
    "phoenix_retries_total": "requests to Phoenix tried again",
    "inflight_bytes": "bytes of requests being received now",
    "log_bytes": "bytes of the log on disk",
    "loader_lag_bytes": "acknowledged bytes that the store does not have yet",
    "phoenix_breaker_open": "1 while Phoenix refuses our token and nothing is sent",
}
"""All metric names with their help texts; names not ending in `_total` are gauges."""

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """A registry of named numbers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], int] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter. Raises: KeyError for a name missing from MEANING."""
        if name not in MEANING:
            raise KeyError(name)
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + amount

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Publish a number that is read on each scrape. Raises: KeyError for a name missing from MEANING."""
        if name not in MEANING:
            raise KeyError(name)
        with self._lock:
            self._gauges[name] = read

    def value(self, name: str, **labels: str) -> int:
        """The value of a counter; without labels, the sum over all its labels."""
        wanted = tuple(sorted(labels.items()))
        with self._lock:
            return sum(
                count
                for (counted, having), count in self._counters.items()
                if counted == name and (not wanted or having == wanted)
            )

    def render(self) -> str:
        """All counters and gauges in the Prometheus text format."""
        with self._lock:
            counters = sorted(self._counters.items())
            gauges = sorted(self._gauges.items())
        lines: list[str] = []
        described = ""
        for (name, labels), count in counters:
            if name != described:
                lines += _describe(name, "counter")
                described = name
            inside = ",".join(f'{key}="{_escape(value)}"' for key, value in labels)
            lines.append(f"{PREFIX}{name}{'{' + inside + '}' if inside else ''} {count}")
        for name, read in gauges:
            lines += [*_describe(name, "gauge"), f"{PREFIX}{name} {read():g}"]
        return "\n".join(lines) + "\n"


def _describe(name: str, kind: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {MEANING[name]}", f"# TYPE {PREFIX}{name} {kind}"]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
