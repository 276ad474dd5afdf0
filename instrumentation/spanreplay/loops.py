"""Turns of event loops, numbered while a run is recorded; of asyncio's own loops, their steps (see `steps`).

A turn is one pass of a loop through what is ready to run. What completes a few turns behind another completion has come
while the program still reacted to that one; how many turns lie between them decides who is first to cancel whom, and
a replay lets as many pass. Behind a moment in which the loop had nothing to do there is nothing to count.

`select`, which a loop calls once a turn, is taken over at a loop's first completion, and given back when the run ends.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay import config
from spanreplay.steps import Owner, StepBook, can_count

if TYPE_CHECKING:
    from spanreplay.replay.virtual_time import LoopClock
    from spanreplay.run import Run

BEGUN: Final = "|begun"
"""End of the name of what an agent began on a loop that was new to the run: a place to count from, no completion."""
_STATE: Final = "_spanreplay_turns"


class _LoopTurns:
    """The turns of one loop, as one run counts them; used by the thread that runs the loop."""

    __slots__ = ("__weakref__", "book", "first", "noted_in", "real_select", "selector", "turn")

    def __init__(self, book: TurnBook, selector: Any) -> None:
        self.book = book
        self.selector = selector
        self.real_select = selector.select
        self.turn = 0
        self.first = -1
        """The first completion of the last turn that had one; -1 if the loop has had nothing to do since."""
        self.noted_in = -1
        selector.select = self.select

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:
            self.first = -1
        self.turn += 1
        return self.real_select(timeout)

    def release(self) -> None:
        if vars(self.selector).get("select") == self.select:
            self.selector.select = self.real_select


class TurnBook:
    """How many turns of a loop lie between the completions of one run. Thread-safe."""

    def __init__(self, run: Owner) -> None:
        self._steps = StepBook(run)
        self._following: list[int] = []
        self._at_once: list[int] = []
        self._loops: weakref.WeakSet[_LoopTurns] = weakref.WeakSet()
        self._firsts: dict[int, int] = {}
        self._begun: dict[str, int] = {}
        self._lock = threading.RLock()
        self._is_over = False

    def turn(self) -> int:
        """The number of the turn that the calling thread's loop is in; -1 without a loop that counts.

        Of asyncio's loops: of the callback that it runs.
        """
        loop = running_loop()
        if loop is not None and can_count(loop):
            return self._steps.now(loop)
        turns = None if loop is None else self._turns_of(loop)
        return -1 if turns is None else turns.turn

    def begin(self, clock_of: Callable[[], int], name: str = "") -> None:
        """The agent begins something; the first on a loop is what others are counted from that come before it is idle.

        `clock_of` gives its clock, `name` what a replay knows it by if it is no call.
        """
        loop = running_loop()
        if loop is None:
            return
        if can_count(loop):
            clock = self._steps.begin(loop, clock_of)
        else:
            clock = -1 if self._is_known(loop) else clock_of()
            turns = None if clock < 0 else self._turns_of(loop)
            if turns is not None:
                turns.first, turns.noted_in = clock, turns.turn
        if clock >= 0 and name:
            self._begun[name] = clock

    def find_begun(self) -> dict[str, tuple[int, int]]:
        """Name → clock, like that of timers, of what calls and timers are counted from."""
        firsts = {*self._following[1::3], *self._steps.firsts} if self._begun else ()
        return {name: (clock, -1) for name, clock in self._begun.items() if clock in firsts}

    def note(self, clock: int, opened_in: int = -1, is_part: bool = False) -> int:
        """The first completion in the same turn as this one, or -1: this one, or no loop runs here.

        `opened_in` is the turn in which a coroutine's call began, if it is one; `is_part` is a part of a stream.
        """
        self._steps.last_thread = threading.get_ident()
        loop = running_loop()
        if loop is None:
            return -1
        first = self._steps.note(loop, clock, opened_in) if can_count(loop) else None
        if first is not None:
            return first
        turns = self._turns_of(loop)
        if turns is None:
            return self._note_without_turns(loop, clock)
        if opened_in == turns.turn:
            self._keep(self._at_once, clock)
        if turns.first < 0 or turns.noted_in != turns.turn:
            if turns.first >= 0:
                self._keep(self._following, clock, turns.first, turns.turn - turns.noted_in)
            turns.first, turns.noted_in = clock, turns.turn
            return -1
        if is_part:
            self._keep(self._following, clock, turns.first, 0)
        return turns.first

    def describe(self) -> dict[str, Any]:
        """Members for the manifest: (clock, clock before, turns between) in one list; calls that never waited."""
        members = {**self._steps.describe(), "turns": self._following}
        members["at_once"] = [*members.get("at_once", ()), *self._at_once]
        return {name: list(values) for name, values in members.items() if values}

    def finish(self) -> None:
        """Give every loop its own `select` back."""
        with self._lock:
            self._is_over = True
            loops = list(self._loops)
        self._steps.finish()
        for turns in loops:
            turns.release()

    def _is_known(self, loop: Any) -> bool:
        turns: _LoopTurns | None = getattr(loop, _STATE, None)
        return turns is not None and turns.book is self

    def _turns_of(self, loop: Any) -> _LoopTurns | None:
        if self._is_known(loop):
            return getattr(loop, _STATE)  # type: ignore[no-any-return]
        selector = getattr(loop, "_selector", None)
        with self._lock:
            if selector is None or self._is_over:
                return None
            turns = _LoopTurns(self, selector)
            self._loops.add(turns)
        with contextlib.suppress(AttributeError):
            setattr(loop, _STATE, turns)
        return turns

    def _note_without_turns(self, loop: Any, clock: int) -> int:
        # uvloop lets nobody see its turns: what completes before the loop gets round to us is one turn
        first = self._firsts.get(id(loop))
        if first is not None:
            return first
        self._firsts[id(loop)] = clock
        loop.call_soon(self._firsts.pop, id(loop), None)
        return -1

    def _keep(self, where: list[int], *values: int) -> None:
        if len(where) < config.TURNS_MAX:
            with self._lock:
                where.extend(values)


foreign: Final[list[Callable[[], Any]]] = []
"""Finds what stands for the loop that runs in the calling thread, where it is none of asyncio's; see `trio_loop`."""


def running_loop() -> Any:
    """The event loop that runs in the calling thread, of whatever library; None without one."""
    events = sys.modules.get("asyncio.events")  # importing it would cost every process its start-up
    loop = None if events is None else events._get_running_loop()
    if loop is None:
        for find in foreign:
            loop = loop or find()
    return loop


def clock_of_running_loop() -> LoopClock | None:
    """The clock of the loop that runs in this thread, if a replay has taken it over."""
    clock: LoopClock | None = getattr(running_loop(), "__dict__", {}).get("_spanreplay_clock")
    return clock


def begin(run: Run, name: str) -> None:
    """The agent sets a timer or starts a thread; in the same place, a replay counts from there, too."""
    if run.session is None:
        if run.turns is not None:
            run.turns.begin(run.tick, name + BEGUN)
        return
    clock = (run.session.gate.timers or {}).get(name + BEGUN, -1)
    loop_clock = None if clock < 0 else clock_of_running_loop()
    if loop_clock is not None:
        loop_clock.note(clock)
