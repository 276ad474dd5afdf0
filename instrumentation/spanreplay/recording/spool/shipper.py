"""Delivers the spool to a collector from a daemon thread; the agent never waits for it.

The spool files are the queue: a dead collector costs only disk space, and the next process delivers
the files that one process leaves.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

from opentelemetry import context as otel_context

from spanreplay.model.config import SHIP_EXIT_TIMEOUT_MS, SHIP_INTERVAL_MS
from spanreplay.model.errors import SourceError
from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.model.private import is_plain_file
from spanreplay.recording.otlp.context_keys import SUPPRESSION
from spanreplay.recording.spool.courier import Courier, Delivery, ShipReport, adopt
from spanreplay.recording.spool.directory import REFUSED, SPOOL_SUFFIX, ack_path, iter_spool_files, spool_directory
from spanreplay.recording.spool.limits import (
    SHIP_BACKOFF_MAX_MS,
    SHIP_BACKOFF_MS,
    SHIP_REQUEST_TIMEOUT_MS,
    SHIP_SCAN_MS,
)
from spanreplay.recording.spool.post import Sender
from spanreplay.recording.spool.target import Target
from spanreplay.recording.spool.writer import open_files

__all__ = ["ShipReport", "Shipper", "ship_all"]

logger = logging.getLogger(__name__)

_NEVER = float("inf")
_TRIES_MAX = 10_000
# Outcomes after which the other files of the same pass need not be tried.
_ENDS_PASS = frozenset({Delivery.BUSY, Delivery.UNREACHABLE, Delivery.OUT_OF_TIME})

_claims: set[Path] = set()
_claims_lock = threading.RLock()


class _Pass:
    """One pass over every file that may be shipped; starts no threads and keeps no schedule."""

    def __init__(self, directory: Path, target: Target, *, ships_unmarked: bool) -> None:
        self.courier = Courier(Sender(target), target.url)
        self._directory = directory
        self._ships_unmarked = ships_unmarked
        self._were_own: set[Path] = set()

    def run(self, deadline: float, *, with_left: bool) -> Delivery:
        """Ship this process's files, then, if asked, those that dead processes left."""
        report = self.courier.report
        report.remaining = report.live = 0
        worst = Delivery.DRAINED
        own = set(open_files(self._directory))
        self._were_own |= own
        left = self._left(own) if with_left else []
        for path in [*sorted(own), *left]:
            if worst in _ENDS_PASS:
                report.remaining += 1
                continue
            delivery = self._ship(path, deadline, is_own=path in own)
            if delivery is not Delivery.DRAINED:
                report.remaining += 1
                worst = delivery
        if worst is Delivery.DRAINED:
            report.error = ""
        if with_left:
            self.courier.forget({*own, *left})
            self._were_own &= {*own, *left}
        return worst

    def close(self) -> None:
        """Close the connection."""
        self.courier.sender.close()

    def _left(self, own: set[Path]) -> list[Path]:
        """Files that this process is not writing; those that it wrote before come first."""
        paths = [p for p in iter_spool_files(self._directory) if p not in own]
        if self._ships_unmarked:
            refused = spool_directory(self._directory) / REFUSED
            paths += sorted(p for p in refused.glob(f"*{SPOOL_SUFFIX}") if is_plain_file(p))
        else:
            paths = [p for p in paths if ack_path(p).exists()]
        return sorted(paths, key=lambda p: p not in self._were_own)

    def _ship(self, path: Path, deadline: float, *, is_own: bool) -> Delivery:
        try:
            if is_own:
                return self._ship_own(path, deadline)
            with adopt(path) as is_adopted:
                if is_adopted:
                    return self.courier.ship_left(path, deadline)
                self.courier.report.live += path.exists()
                return Delivery.DRAINED
        except FileNotFoundError:
            return Delivery.DRAINED
        except (OSError, SourceError) as exc:
            self.courier.say(f"{path}:{type(exc).__name__}", "cannot ship %s: %s", path.name, exc)
            return Delivery.STUCK

    def _ship_own(self, path: Path, deadline: float) -> Delivery:
        with _claims_lock:
            if path in _claims:
                # Another shipper of this process is working on it.
                return Delivery.STUCK
            _claims.add(path)
        try:
            return self.courier.ship_own(path, deadline)
        finally:
            with _claims_lock:
                _claims.discard(path)


class Shipper:
    """Ships the spans that this process's writers append under a directory, and those that dead processes left.

    The thread starts at the first notify(). Nothing here raises into the agent; each cause of failure
    is logged once. A forked child has a shipper of its own. `interval_ms` is how long appends are
    collected before they are sent.
    """

    def __init__(self, directory: Path, target: Target, *, interval_ms: int = SHIP_INTERVAL_MS) -> None:
        self._directory = directory
        self._target = target
        self._interval_s = interval_ms / 1000
        # Our own generator, so that the agent's sequence of random numbers does not advance.
        self._random = random.Random()  # noqa: S311 - jitter, not a secret
        self._keep: Callable[[], None] | None = None
        self._is_withdrawn = False
        self._reset()
        _shippers.add(self)

    def _reset(self) -> None:
        # Re-entrant: a garbage collection inside notify() may end a span, which notifies again.
        self._wake = threading.Condition(threading.RLock())
        self._pass = _Pass(self._directory, self._target, ships_unmarked=False)
        self._thread: threading.Thread | None = None
        self._is_dirty = False
        self._is_stopped = self._is_withdrawn
        self._is_flushed = True
        self._flushes_wanted = 0
        self._flushes_done = 0
        self._flush_deadline = 0.0
        self._flush_at = 0.0
        self._failures = 0
        self._pass_at = _NEVER
        self._scan_at = 0.0
        self._not_before = 0.0

    @property
    def report(self) -> ShipReport:
        """A copy of the totals shipped so far."""
        return replace(self._pass.courier.report)

    def doubt(self, keep: Callable[[], None]) -> None:
        """Before sending anything, check that the target is a spanreplay collector; if it is not, ship nothing.

        In that case `keep` is called, on the shipper's thread.
        """
        if not self._is_withdrawn:
            self._keep = keep

    def notify(self) -> None:
        """Tell the shipper that something was appended. Starts the thread, returns at once, never raises."""
        if self._is_dirty:
            return
        with self._wake:
            self._is_dirty = True
            # While the collector is unavailable, the next try is already scheduled.
            if self._ensure_thread() and not self._failures:
                self._pass_at = min(self._pass_at, monotonic() + self._interval_s)
                self._wake.notify_all()

    def flush(self, timeout_ms: int = SHIP_EXIT_TIMEOUT_MS) -> bool:
        """Ship everything now; True if all is delivered, False at the timeout or if nothing answers.

        While the collector answers that it is busy, the flush continues until the timeout; if nothing
        answers it ends early, because the next process ships the rest.
        """
        deadline = monotonic() + timeout_ms / 1000
        with self._wake:
            if self._is_stopped:
                return self._is_flushed
            if not self._ensure_thread():
                return self._run_pass(deadline, with_left=True) is Delivery.DRAINED
            self._flushes_wanted += 1
            wanted = self._flushes_wanted
            self._flush_deadline = max(self._flush_deadline, deadline)
            self._wake.notify_all()
            is_done = self._wake.wait_for(lambda: self._flushes_done >= wanted, max(0.0, deadline - monotonic()))
            return is_done and self._is_flushed

    def shutdown(self, timeout_ms: int = SHIP_EXIT_TIMEOUT_MS) -> bool:
        """Flush and end the thread; idempotent. Close the writers first, so that their files are deleted."""
        is_flushed = self.flush(timeout_ms)
        with self._wake:
            self._is_stopped = True
            thread = self._thread
            self._wake.notify_all()
        if thread is None:
            self._pass.close()
        elif is_flushed:
            thread.join(1.0)
        return is_flushed

    def _ensure_thread(self) -> bool:
        if self._thread is None and not self._is_stopped:
            thread = threading.Thread(target=self._run, name="spanreplay-shipper", daemon=True)
            try:
                with unnumbered_threads():
                    thread.start()
            except RuntimeError:
                # The interpreter is shutting down: flush() works on the caller's thread.
                return False
            self._thread = thread
        return self._thread is not None

    def _due(self) -> float:
        """The time at which the next pass begins; the caller holds the lock."""
        if self._flushes_done < self._flushes_wanted:
            return max(self._not_before, self._flush_at)
        return max(self._not_before, min(self._pass_at, self._scan_at))

    def _run(self) -> None:
        # This thread's work is not part of the run: it counts neither as calls nor as leaks
        otel_context.attach(otel_context.set_value(SUPPRESSION, True))
        while True:
            with self._wake:
                while not self._is_stopped and (pause := self._due() - monotonic()) > 0:
                    if self._gives_up(monotonic() + pause):
                        self._end_flush(Delivery.BUSY, self._flushes_wanted)
                        continue
                    self._wake.wait(min(pause, threading.TIMEOUT_MAX))
                if self._is_stopped:
                    # A caller may still wait for a flush that was requested during the last pass.
                    self._end_flush(Delivery.DRAINED if self._is_withdrawn else Delivery.STUCK, self._flushes_wanted)
                    break
                wanted = self._flushes_wanted
                is_flush = self._flushes_done < wanted
                deadline = self._flush_deadline if is_flush else _NEVER
                with_left = is_flush or self._scan_at <= monotonic() or self._failures > 0
                self._is_dirty = False
                self._pass_at = _NEVER
            delivery = self._run_pass(deadline, with_left=with_left)
            with self._wake:
                self._plan_next(delivery, wanted, with_left=with_left)
        self._pass.close()

    def _gives_up(self, due: float) -> bool:
        """Whether a flush is pending whose deadline is before `due`; the caller holds the lock."""
        return self._flushes_done < self._flushes_wanted and due > self._flush_deadline

    def _run_pass(self, deadline: float, *, with_left: bool) -> Delivery:
        try:
            if self._keep is not None:
                is_ours = self._pass.courier.sender.is_collector(SHIP_REQUEST_TIMEOUT_MS / 1000)
                if is_ours is None:
                    return Delivery.UNREACHABLE
                if not is_ours:
                    self._withdraw(self._keep)
                    return Delivery.DRAINED
                self._keep = None
            return self._pass.run(deadline, with_left=with_left)
        except Exception as exc:  # noqa: BLE001 - nothing of ours may end the agent's thread
            self._pass.courier.say(f"pass:{type(exc).__name__}", "shipping failed: %s", type(exc).__name__)
            return Delivery.STUCK

    def _withdraw(self, keep: Callable[[], None]) -> None:
        with self._wake:
            self._is_withdrawn = self._is_stopped = True
        keep()
        self._pass.courier.say(
            "shared",
            "recordings stay on this machine: %s, to which the program exports its own spans, is no collector of "
            "spanreplay; name one with SPANREPLAY_COLLECTOR, or set it to none",
            self._target.url,
        )

    def _plan_next(self, delivery: Delivery, wanted: int, *, with_left: bool) -> None:
        """Schedule the next try after a pass; the caller holds the lock."""
        now = monotonic()
        if with_left:
            self._scan_at = now + SHIP_SCAN_MS / 1000
        if delivery is Delivery.DRAINED:
            self._failures = 0
            self._not_before = 0.0
        else:
            self._failures += 1
            backoff_ms = min(SHIP_BACKOFF_MS * 2 ** min(self._failures - 1, 16), SHIP_BACKOFF_MAX_MS)
            pause_ms = max(backoff_ms * self._random.uniform(0.5, 1.0), self._pass.courier.retry_after_ms)
            self._not_before = now + self._pass.courier.retry_after_ms / 1000
            self._pass_at = now + pause_ms / 1000
            self._scan_at = max(self._scan_at, self._pass_at)
            self._pass.courier.retry_after_ms = 0
            self._flush_at = self._pass_at
            if delivery is Delivery.BUSY and not self._gives_up(self._due()):
                return
        self._end_flush(delivery, wanted)

    def _end_flush(self, delivery: Delivery, wanted: int) -> None:
        if self._flushes_done < wanted:
            self._flushes_done = wanted
            self._is_flushed = delivery is Delivery.DRAINED
            self._wake.notify_all()

    def _reset_after_fork(self) -> None:
        """Reset in a forked child: its thread is gone, locks may be held, and the connection is the parent's."""
        self._pass.close()
        self._reset()


_shippers: weakref.WeakSet[Shipper] = weakref.WeakSet()


def _reset_after_fork() -> None:
    global _claims_lock
    _claims_lock = threading.RLock()
    _claims.clear()
    for shipper in list(_shippers):
        shipper._reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)


def ship_all(
    directory: Path, target: Target, *, timeout_ms: int = 60_000, told: Callable[[int], None] | None = None
) -> ShipReport:
    """Ship every file under a directory that no process is writing, on this thread.

    Includes files recorded without an endpoint, imported files and refused payloads.
    Files are deleted once the collector has them. While the collector answers that it is busy, shipping
    continues for at most `timeout_ms`; the report's `error` says why files remain. `told` is called with the
    number of files delivered so far.
    """
    work = _Pass(directory, target, ships_unmarked=True)
    work.courier.told = told
    deadline = monotonic() + timeout_ms / 1000
    pause = threading.Event()
    try:
        for tries in range(_TRIES_MAX):
            delivery = work.run(deadline, with_left=True)
            backoff_ms = min(SHIP_BACKOFF_MS * 2 ** min(tries, 16), SHIP_BACKOFF_MAX_MS)
            pause_ms = max(backoff_ms, work.courier.retry_after_ms)
            if delivery is not Delivery.BUSY or monotonic() + pause_ms / 1000 > deadline:
                break
            work.courier.retry_after_ms = 0
            pause.wait(pause_ms / 1000)
    finally:
        work.close()
    return work.courier.report
