"""Keeps a process's recorder within its limits: while it exceeds one, new units are not recorded.

    SPANREPLAY_CPU_LIMIT     share of one CPU that the recorder may use (for example 0.2); unset: no limit
    SPANREPLAY_QUEUE_LIMIT   share of the spool's capacity that may be filled (0.9 by default)

A unit that has begun is recorded to its end. Each step is counted and logged once. The recorder accepts new units again
after a pause, once the measure is calm. The pause doubles each time and is short again after a long calm period.
"""

from __future__ import annotations

import _thread  # its locks are never patched
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config
from spanreplay.model.own_threads import make_lock, unnumbered_threads
from spanreplay.recording.sampling import own_cpu

if TYPE_CHECKING:
    from spanreplay.recording.spool.directory import Usage

__all__ = ["CPU", "QUEUE", "Governor", "Limits", "read_limits"]

logger = logging.getLogger(__name__)

CPU, QUEUE = "cpu", "queue"
CPU_SETTING: Final = "SPANREPLAY_CPU_LIMIT"
QUEUE_SETTING: Final = "SPANREPLAY_QUEUE_LIMIT"
WINDOW_S: Final = 2.0
"""Time over which a share is measured."""
PAUSE_S: Final = 5.0
PAUSE_MAX_S: Final = 80.0
CALM: Final = 0.7
"""A measure below this fraction of its limit is calm."""
STEPS_KEPT: Final = 20


@dataclass(frozen=True)
class Limits:
    """Limits of a process's recorder; None: no limit."""

    cpu: float | None = None
    queue: float | None = None


@dataclass(frozen=True)
class Step:
    """One change: recording of new units stops or resumes."""

    at_s: float
    is_recording: bool
    why: str


class Governor:
    """Decides for each new unit of a process whether it is recorded. Thread-safe."""

    def __init__(self, limits: Limits, now: Callable[[], float] = monotonic) -> None:
        self.limits = limits
        self._now = now
        self._lock = make_lock()
        self._passed: dict[str, float] = {}
        """Exceeded limit → its last measure."""
        self._pause_s = PAUSE_S
        self._changed_at = float("-inf")
        self.steps_down = 0
        self._steps: list[Step] = []

    @property
    def passed(self) -> str:
        """The exceeded limit that keeps new units from being recorded; '' while they are recorded."""
        return next(iter(self._passed), "")

    def note(self, limit: str, measured: float) -> None:
        """Take a measure of one limit; may stop or resume the recording of new units."""
        allowed = self.limits.cpu if limit == CPU else self.limits.queue
        if allowed is None:
            return
        with self._lock:
            now, was_passed = self._now(), bool(self._passed)
            if measured > allowed:
                self._passed[limit] = measured
                if not was_passed:
                    is_soon = now - self._changed_at < self._pause_s + PAUSE_MAX_S
                    self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S) if is_soon else PAUSE_S
                    self._step(now, is_recording=False, why=_describe(limit, measured, allowed))
            elif limit in self._passed and measured < allowed * CALM and now - self._changed_at >= self._pause_s:
                del self._passed[limit]
                if not self._passed:
                    self._step(now, is_recording=True, why=_describe(limit, measured, allowed))

    def _step(self, now: float, *, is_recording: bool, why: str) -> None:
        self._changed_at = now
        self.steps_down += not is_recording
        self._steps = [*self._steps, Step(now, is_recording, why)][-STEPS_KEPT:]
        if is_recording:
            logger.warning("new units are recorded again: %s", why)
        else:
            logger.warning("new units are not recorded, for %.0f s at least: %s", self._pause_s, why)

    def describe(self) -> dict[str, Any]:
        """For the manifest: how often recording stopped, and the reasons of the last times."""
        if not self.steps_down:
            return {}
        return {"steps_down": self.steps_down, "steps": [step.why for step in self._steps if not step.is_recording]}


def _describe(limit: str, measured: float, allowed: float) -> str:
    if limit == CPU:
        return f"the recorder takes {measured:.2f} of a processor, {CPU_SETTING} is {allowed:g}"
    return f"the spool holds {measured:.2f} of what it may, {QUEUE_SETTING} is {allowed:g}"


class Watch:
    """Measures for a governor, in a thread of its own that starts with the first unit of a process."""

    def __init__(self, governor: Governor, usage: Callable[[], Usage]) -> None:
        self._governor = governor
        self._usage = usage
        self._is_watching = False
        self._pause = _thread.allocate_lock()
        self._pause.acquire()

    def look(self) -> None:
        """Check the spool's size as far as this process's writers know it; cheap enough for each unit."""
        limit = self._governor.limits.queue
        if limit is not None:
            filled = self._usage().known_bytes / config.SPOOL_BYTES_MAX
            if filled > limit:
                self._governor.note(QUEUE, filled)
        if self._governor.limits.cpu is not None or self._governor.passed:
            self._begin()

    def _begin(self) -> None:
        if self._is_watching:
            return
        self._is_watching = True
        own_cpu.METER.is_on = self._governor.limits.cpu is not None
        try:
            with unnumbered_threads():
                _thread.start_new_thread(self._run, ())  # keeps the program's thread count unchanged
        except RuntimeError:  # the interpreter is shutting down
            return

    def _run(self) -> None:
        threads = own_cpu.OwnThreads()
        own_cpu.METER.take()
        threads.take()
        while True:
            begun = monotonic()
            self._pause.acquire(timeout=WINDOW_S)
            spent_ns = own_cpu.METER.take() + threads.take()
            self._governor.note(CPU, spent_ns / 1e9 / (monotonic() - begun))
            if QUEUE in self._governor._passed:
                self._governor.note(QUEUE, self._usage().measure() / config.SPOOL_BYTES_MAX)


def read_limits(environ: Mapping[str, str] = os.environ) -> Limits:
    """The limits of this process; an unusable value is logged once and means no limit."""
    return Limits(*(_read(name, config.read_setting(name, environ)) for name in (CPU_SETTING, QUEUE_SETTING)))


@cache
def _read(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        logger.error("%s=%r can't be used: it is not a share like 0.2; there is no limit", name, text)
        return None
    return value
