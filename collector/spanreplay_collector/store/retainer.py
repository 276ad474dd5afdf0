"""One thread that removes runs which are older than they are kept."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final, Protocol

from spanreplay.model.errors import StoreError
from spanreplay_collector.metrics import Metrics
from spanreplay_collector.store.retention import Retained

__all__ = ["AgingStore", "Retainer", "Retention"]

logger = logging.getLogger(__name__)

PAUSE_S: Final = 3600.0
RETRY_S: Final = 60.0
"""Pause after a pass that failed, e.g. because the store is away."""
_DAY_NS: Final = 86_400 * 1_000_000_000


@dataclass(frozen=True)
class Retention:
    """How long runs are kept: `keep_days` after their end (0: for ever), failures for ever unless told otherwise."""

    keep_days: int = 0
    keep_failures: bool = True


class AgingStore(Protocol):
    """The interface that a retainer needs of a store."""

    def remove_older(self, before_ns: int, *, keep_failures: bool = True) -> Retained:
        """Remove runs that ended before a time, unless pinned. Raises: StoreError, OSError."""
        ...


class Retainer:
    """Makes a pass at the start and then every hour; several collectors may do so over one store."""

    def __init__(self, store: AgingStore, metrics: Metrics, retention: Retention, *, pause_s: float = PAUSE_S) -> None:
        self._store = store
        self._metrics = metrics
        self._retention = retention
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="spanreplay-retainer", daemon=True)

    def start(self) -> None:
        """Start the thread, unless everything is kept."""
        if self._retention.keep_days:
            self._thread.start()

    def stop(self) -> None:
        """End the thread, after the pass that it may be making."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            is_done = self._make_pass()
            if self._stop.wait(self._pause_s if is_done else min(RETRY_S, self._pause_s)):
                return

    def _make_pass(self) -> bool:
        """Remove what is too old; return whether that worked. A failure is logged once."""
        before_ns = time.time_ns() - self._retention.keep_days * _DAY_NS
        try:
            removed = self._store.remove_older(before_ns, keep_failures=self._retention.keep_failures)
        except (StoreError, OSError) as exc:
            if not self._is_failing:
                logger.warning("old runs are not removed: %s; it is tried again", exc)
            self._is_failing = True
            return False
        except Exception:
            logger.exception("old runs are not removed; it is tried again")
            return False
        self._is_failing = False
        self._metrics.add("removed_runs_total", removed.runs)
        if removed.runs:
            logger.info("removed %d runs that ended more than %d days ago", removed.runs, self._retention.keep_days)
        return True
