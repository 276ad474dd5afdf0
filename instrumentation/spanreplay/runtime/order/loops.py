"""The event loops of a run while it is recorded: where their completions come, and what the agent began first on each.

`steps` counts where a completion comes among the steps of its loop. For loops that can't be counted, only the
completions of the same loop iteration are known.
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
"""Ends the name of the agent's first act on a loop that is new to the run: a starting point, not a completion."""
_STATE: Final = "_spanreplay_turns"
CLOCK: Final = "_spanreplay_clock"
"""Attribute of a loop: its clock, if a replay has taken it over."""


class LoopBook:
    """Where the completions of one run come in its event loops. Thread-safe."""

    def __init__(self, run: Owner, steps: StepBook | None = None) -> None:
        self._steps = steps or StepBook(run)
        self._firsts: dict[int, int] = {}
        self._begun: dict[str, int] = {}
        self._completions = 0

    def now(self) -> int:
        """A number for the callback that the calling thread's loop runs now; -1 without a loop that can be counted."""
        loop = running_loop()
        return -1 if loop is None else self._steps.now(loop)

    def place(self) -> tuple[int, int]:
        """How many completions the run has had, and how many steps the calling thread's loop has made."""
        loop = running_loop()
        return self._completions, -1 if loop is None else self._steps.made(loop)

    def begin(self, clock_of: Callable[[], int], name: str = "") -> None:
        """Note that the agent begins something; the first on a loop is the starting point until the loop is idle.

        `clock_of` gives its clock value; `name` is its name in a replay, if it is not a call.
        """
        loop = running_loop()
        clock = -1 if loop is None else self._steps.begin(loop, clock_of)
        if clock >= 0 and name:
            self._begun[name] = clock

    def find_begun(self) -> dict[str, tuple[int, int]]:
        """Name → clock (in the form used for timers) of the starting points that are not calls."""
        firsts = set(self._steps.firsts) if self._begun else ()
        return {name: (clock, -1) for name, clock in self._begun.items() if clock in firsts}

    def note(self, clock: int, opened_in: int = -1) -> int:
        """The first completion in the same loop iteration as this one; -1 if it is this one or no loop runs here.

        `opened_in` is the value of `now` when the coroutine's call began, if it is a coroutine.
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
        # Completions that come before the loop runs our callback belong to one iteration
        first = self._firsts.get(id(loop))
        if first is not None:
            return first
        call_soon = getattr(loop, "call_soon", None)  # trio's has none
        if call_soon is not None:
            self._firsts[id(loop)] = clock
            call_soon(self._firsts.pop, id(loop), None)
        return -1


class Levelled(Owner, Protocol):
    """The part of a run that its loop book needs."""

    level: Level


def make_book(run: Levelled) -> LoopBook:
    """The loop book of a run; if its level does not record steps, no loop is touched or counted."""
    return LoopBook(run, None if "steps of event loops" in run.level else NoSteps(run))


foreign: Final[list[Callable[[], Any]]] = []
"""Functions that find the stand-in for a running loop that is not asyncio's (`runtime.order.trio_loop`)."""


def running_loop() -> Any:
    """The event loop, of any library, that runs in the calling thread; None without one."""
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
