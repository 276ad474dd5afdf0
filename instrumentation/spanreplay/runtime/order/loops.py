"""The event loops of one run while it is recorded: what completes in them, and what was begun there first.

Where a completion comes among the steps of its loop is counted in `steps`. Of loops that nobody can count it is only
known what came in the same turn.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from spanreplay.model.levels import Level
from spanreplay.runtime.order.steps import NoSteps, Owner, StepBook

if TYPE_CHECKING:
    from spanreplay.runtime.order.order import LoopClock

BEGUN: Final = "|begun"
"""End of the name of what an agent began on a loop that was new to the run: a place to count from, no completion."""
_STATE: Final = "_spanreplay_turns"
CLOCK: Final = "_spanreplay_clock"
"""Attribute of a loop: its clock, where a replay has taken that over."""


class LoopBook:
    """Where the completions of one run come in its event loops. Thread-safe."""

    def __init__(self, run: Owner, steps: StepBook | None = None) -> None:
        self._steps = steps or StepBook(run)
        self._firsts: dict[int, int] = {}
        self._begun: dict[str, int] = {}
        self._completions = 0

    def now(self) -> int:
        """A number of what the calling thread's loop runs now; -1 without a loop that can be counted."""
        loop = running_loop()
        return -1 if loop is None else self._steps.now(loop)

    def place(self) -> tuple[int, int]:
        """How many completions have come in the run, and how many steps the calling thread's loop has made."""
        loop = running_loop()
        return self._completions, -1 if loop is None else self._steps.made(loop)

    def begin(self, clock_of: Callable[[], int], name: str = "") -> None:
        """The agent begins something; the first on a loop is what others are counted from that come before it is idle.

        `clock_of` gives its clock, `name` what a replay knows it by if it is no call.
        """
        loop = running_loop()
        clock = -1 if loop is None else self._steps.begin(loop, clock_of)
        if clock >= 0 and name:
            self._begun[name] = clock

    def find_begun(self) -> dict[str, tuple[int, int]]:
        """Name → clock, like that of timers, of what calls and timers are counted from."""
        firsts = set(self._steps.firsts) if self._begun else ()
        return {name: (clock, -1) for name, clock in self._begun.items() if clock in firsts}

    def note(self, clock: int, opened_in: int = -1) -> int:
        """The first completion in the same turn as this one, or -1: this one, or no loop runs here.

        `opened_in` is what `now` gave when a coroutine's call began, if it is one.
        """
        self._completions += 1
        self._steps.last_thread = threading.get_ident()
        loop = running_loop()
        if loop is None:
            return -1
        first = self._steps.note(loop, clock, opened_in)
        return self._note_uncounted(loop, clock) if first is None else first

    def describe(self) -> dict[str, Any]:
        """Members for the manifest; see `StepBook.describe`."""
        return self._steps.describe()

    def finish(self) -> None:
        """Give every loop its own `select` back."""
        self._steps.finish()

    def _note_uncounted(self, loop: Any, clock: int) -> int:
        # What completes before the loop gets round to us is one turn
        first = self._firsts.get(id(loop))
        if first is not None:
            return first
        call_soon = getattr(loop, "call_soon", None)  # trio's has none
        if call_soon is not None:
            self._firsts[id(loop)] = clock
            call_soon(self._firsts.pop, id(loop), None)
        return -1


class Levelled(Owner, Protocol):
    """A run, as far as its book of loops is concerned."""

    level: Level


def make_book(run: Levelled) -> LoopBook:
    """The book of a run; at a level without steps nothing is put into its loops, as if nobody could count them."""
    return LoopBook(run, None if "steps of event loops" in run.level else NoSteps(run))


foreign: Final[list[Callable[[], Any]]] = []
"""Finds what stands for the loop that runs in the calling thread, where it is not asyncio's (`seams._trio_loop`)."""


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
    return clock_of(running_loop())


def clock_of(loop: Any) -> LoopClock | None:
    """The clock of a loop, if a replay has taken it over."""
    clock: LoopClock | None = getattr(loop, "__dict__", {}).get(CLOCK)
    return clock
