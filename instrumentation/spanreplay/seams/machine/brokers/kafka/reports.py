"""Reports of delivery that a client makes in a thread of its own: the program's callbacks run there.

Each report has a lane of its own below the code that asked for it. While recording it is made in the client's thread;
a replay makes it in a thread of ours, at its recorded turn.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any

from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.calls.open_call import no_plumbing
from spanreplay.runtime.lanes import Lane, current_lane, inside_lane
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.databases.postgres import is_replayed_here

logger = logging.getLogger(__name__)


class Report:
    """One report that a program asks for: its place in the run, and its context."""

    def __init__(self, run: Run, describe: Callable[[], FunctionCall]) -> None:
        self._run, self._describe = run, describe
        self._lane: Lane = current_lane(run.root_lane).child("kafka.report")
        self._context = contextvars.copy_context()

    def make(self, shown: Callable[[], Any], callback: Callable[[Any], Any]) -> Any:
        """Make the report: record or serve what is reported, and tell the program."""
        return self._context.run(self._make, shown, callback)

    def _make(self, shown: Callable[[], Any], callback: Callable[[Any], Any]) -> Any:
        with inside_lane(self._lane), no_plumbing():
            return callback(call_sync(self._describe, shown))

    def make_later(self, callback: Callable[[Any], None], done: Callable[[], None]) -> bool:
        """In a replay, make the report at its turn in a thread of ours; False if the recording has none."""
        if self._run.resolver.answers.index.at(self._lane.path, f"tool:{self._describe().name}", 0) is None:
            return False

        def run() -> None:
            try:
                self.make(_refuse, callback)
            finally:
                done()

        thread = threading.Thread(target=run, name="spanreplay-report", daemon=True)
        with unnumbered_threads():
            thread.start()
        return True


def _refuse() -> Any:
    raise RuntimeError("this client is replayed: it can't report live")


class Reports:
    """How many reports of a client have been made, by run. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._made: dict[str, int] = {}
        self._due: dict[str, int] = {}

    def add(self, run: Run) -> None:
        """Note that a report will be made in a replay."""
        with self._changed:
            self._due[run.run_id] = self._due.get(run.run_id, 0) + 1

    def count(self, run: Run) -> int:
        """Return how many have been made."""
        return self._made.get(run.run_id, 0)

    def note(self, run: Run) -> None:
        """Note that one has been made."""
        with self._changed:
            self._made[run.run_id] = self._made.get(run.run_id, 0) + 1
            self._changed.notify_all()

    def wait(self, run: Run, count: int) -> None:
        """In a replay, wait until as many have been made as when recorded."""
        if is_replayed_here():
            with self._changed:
                self._changed.wait_for(lambda: self.count(run) >= min(count, self._due.get(run.run_id, 0)), _WAIT_S_MAX)


_WAIT_S_MAX = 30.0
