"""Futures of kafka-python as a recorded program sees them: what they end with is a call of its own."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.reads import make_loose
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.brokers.kafka.askers import asking_run
from spanreplay.seams.machine.brokers.kafka.calls import CLIENTS
from spanreplay.seams.machine.brokers.kafka.python_clients import State
from spanreplay.seams.machine.brokers.kafka.reports import Report, Reports
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_DONE: Final = make_loose("environment", "kafka.done")
_REAL: Final = logging.getLogger("kafka.future")


class _Ended:
    """What a future ended with."""

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value, self.error = value, error


class Recorded:
    """The behaviour of our futures; `make_future` adds the client's own class."""

    _real: Any
    _state: State
    _reports: Reports
    _ended: _Ended | None

    # ── How it ended ────────────────────────────────────────────────────────────────────────────────
    def get(self, timeout: float | None = None) -> Any:
        """Wait for the delivery and return the message's place. Raises: the client's errors."""
        if self._ended is None:
            run = asking_run(CLIENTS)
            if run is None:
                return None if self._real is None else self._real.get(timeout=timeout)
            self._await(run, timeout)
        ended = self._ended
        if ended is None:
            raise AssertionError("a future that has been waited for has ended")
        if ended.error is not None:
            raise ended.error
        return ended.value

    def _await(self, run: Run, timeout: float | None) -> None:
        real = self._real

        def live() -> Any:
            value = real.get(timeout=timeout)
            return [value, self._reports.count(run)]

        try:
            value, count = call_sync(lambda: self._state.describe("delivery", {}, Effect.READ), live)
        except Exception as exc:
            if real is None or real.is_done:
                self._ended = _Ended(None, exc)
            raise
        self._reports.wait(run, count)
        self._ended = _Ended(value, None)

    @property
    def is_done(self) -> bool:
        """Whether the delivery has succeeded or failed."""
        if self._ended is not None:
            return True
        real = self._real
        if asking_run(CLIENTS) is None:
            return bool(real is not None and real.is_done)
        return bool(read(_DONE, lambda: bool(real is not None and real.is_done)))

    def _look(self) -> _Ended | None:
        """Return how it ended; None if it has not."""
        if self._ended is None and self.is_done:
            with contextlib.suppress(Exception):  # it is kept as how it ended
                self.get(0)
        return self._ended

    @property
    def value(self) -> Any:
        """The message's place; None before it is known."""
        ended = self._look()
        return None if ended is None else ended.value

    @property
    def exception(self) -> BaseException | None:
        """Why the delivery failed; None if it has not."""
        ended = self._look()
        return None if ended is None else ended.error

    def succeeded(self) -> bool:
        """Whether the delivery has succeeded."""
        ended = self._look()
        return ended is not None and ended.error is None

    def failed(self) -> bool:
        """Whether the delivery has failed."""
        ended = self._look()
        return ended is not None and ended.error is not None

    def retriable(self) -> bool:
        """Whether the delivery has failed in a way that another attempt may not."""
        return self.failed() and bool(getattr(self.exception, "retriable", False))

    # ── Callbacks ───────────────────────────────────────────────────────────────────────────────────
    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Have a function called with the message's place."""
        return self._add("add_callback", functools.partial(f, *args, **kwargs) if args or kwargs else f)

    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Have a function called with the error."""
        return self._add("add_errback", functools.partial(f, *args, **kwargs) if args or kwargs else f)

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Have a function called with either."""
        self.add_callback(f, *args, **kwargs)
        return self.add_errback(f, *args, **kwargs)

    def chain(self, future: Any) -> Any:
        """Let another future end as this one."""
        self.add_callback(future.success)
        return self.add_errback(future.failure)

    def _add(self, how: str, callback: Callable[[Any], Any]) -> Any:
        run = asking_run(CLIENTS)
        if run is None:
            if self._real is not None:
                getattr(self._real, how)(callback)
            return self
        report = Report(run, lambda: self._state.describe("report", {}, Effect.READ))
        reports = self._reports

        def tell(value: Any) -> None:
            try:
                callback(value)
            except Exception:  # noqa: BLE001 -- as the client does
                _REAL.exception("Error processing %s", how.removeprefix("add_"))

        def live(value: Any) -> None:
            try:
                report.make(lambda: value, tell)
            finally:
                reports.note(run)

        if not is_replayed_here():
            getattr(self._real, how)(live)
        elif report.make_later(tell, lambda: reports.note(run)):
            reports.add(run)
        return self


@functools.cache
def _class_of(base: type) -> type:
    return type(base.__name__, (Recorded, base), {"__module__": base.__module__})


def make_future(base: type, real: Any, state: State, reports: Reports) -> Any:
    """Return a future for the program; `real` is None in a replay."""
    cls: Any = _class_of(base)
    made = object.__new__(cls)
    made._real, made._state, made._reports, made._ended = real, state, reports, None
    return made
