"""Lets the calls of a thread's greenlets end in the recorded order.

Only one greenlet of a hub runs at a time, and only the hub switches to another. A greenlet that has to wait for its
turn switches to the hub, which resumes it once everything earlier has gone out; greenlets resumed before it have then
reached their next wait. The hub checks when it is idle, whenever something has gone out, and at intervals, so that a
wait ends if nothing moves any more.
"""

from __future__ import annotations

import _thread
import itertools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.replayer.schedule.stall_detector import LOOK_MS, StallDetector
from spanreplay.runtime.order.hubs import call_hub

if TYPE_CHECKING:
    from spanreplay.runtime.order.order import Order

REST: Final = 1 << 62
"""The clock of events that the recording doesn't contain: their turn is after everything recorded."""
_get_ident: Final = _thread.get_ident  # the thread's ident, even if a library has patched it


class Waiting:
    """An action that a hub performs when its turn comes."""

    __slots__ = ("act", "clock", "is_free")

    def __init__(self, clock: int, is_free: Callable[[], bool], act: Callable[[], object]) -> None:
        self.clock = clock
        self.is_free = is_free
        self.act = act


class HubTurns:
    """The actions that wait in one hub for their turn in one replay."""

    def __init__(self, gate: Order, hub: Any) -> None:
        self._gate = gate
        self._hub = hub
        self._ident = _get_ident()
        self._waiting: dict[int, Waiting] = {}
        self._numbers = itertools.count()
        self._throws = 0
        """How many greenlets wait for the program to throw something into them."""
        self._soon = hub.loop.timer(0.0)
        self._is_soon = False
        self._look = hub.loop.timer(LOOK_MS / 1000, LOOK_MS / 1000)
        self._is_looking = False
        self._stall_detector: StallDetector | None = None
        self._moves = 0
        gate.add_listener(self._wake)

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────────
    def add(self, clock: int, is_free: Callable[[], bool], act: Callable[[], object]) -> Callable[[], None]:
        """Run `act` in the hub when its turn comes; return a callback that withdraws it."""
        number = next(self._numbers)
        self._waiting[number] = Waiting(clock, is_free, act)
        self._arm()

        def remove() -> None:
            self._waiting.pop(number, None)
            if not self._waiting:
                self._disarm()

        return remove

    def wait(self, clock: int, is_free: Callable[[], bool]) -> None:
        """Yield to the hub until it is the running greenlet's turn. Raises: anything thrown into it meanwhile."""
        current = sys.modules["greenlet"].getcurrent()
        is_over: list[None] = []

        def go_on() -> None:
            is_over.append(None)
            current.switch()

        remove = self.add(clock, is_free, go_on)
        try:
            while not is_over:
                call_hub(lambda: _switch(self._hub))
        finally:
            remove()

    def wait_for_throw(self) -> None:
        """Yield to the hub until something is thrown into the running greenlet; return if nothing is."""
        self._throws += 1
        try:
            self.wait(REST, lambda: False)
        finally:
            self._throws -= 1
            self._moves += 1

    # ── when the hub looks ──────────────────────────────────────────────────────────────────────────
    def _wake(self) -> None:
        if not self._waiting:
            return
        if _get_ident() == self._ident:
            self._arm()
        else:
            self._hub.loop.run_callback_threadsafe(self._arm)

    def _arm(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            self._soon.start(self._go_on)
        if not self._is_looking:
            self._is_looking = True
            self._look.start(self._report_stall)

    def _disarm(self) -> None:
        self._is_soon = self._is_looking = False
        self._soon.stop()
        self._look.stop()
        self._stall_detector = None

    def _next(self) -> tuple[int, Waiting] | None:
        free = ((each.clock, number) for number, each in self._waiting.items() if each.is_free())
        found = min(free, default=None)
        return None if found is None else (found[1], self._waiting[found[1]])

    def _go_on(self) -> None:
        """Run the next action, and look again later: reactions to it go first."""
        self._is_soon = False
        self._soon.stop()
        found = self._next()
        if found is not None:
            self._release(*found)
            if self._waiting:
                self._arm()

    def _release(self, number: int, waiting: Waiting) -> None:
        self._waiting.pop(number, None)
        self._moves += 1
        if not self._waiting:
            self._disarm()
        waiting.act()

    def _report_stall(self) -> None:
        gate = self._gate
        state = (gate.head, self._moves)
        if self._stall_detector is None:
            self._stall_detector = StallDetector(state)
        is_busy = gate.census.working > 1
        if not self._stall_detector.is_over(
            state, is_busy=is_busy, is_awaited=self._throws > 0, waiting=gate.census.idle
        ):
            return
        self._stall_detector = None
        found = min(((each.clock, number) for number, each in self._waiting.items()), default=None)
        if found is not None and found[0] < REST:
            gate.skip_before(found[0])
            self._arm()
        elif found is not None:
            self._release(found[1], self._waiting[found[1]])


def _switch(hub: Any) -> Any:
    """Call `Hub.switch` itself, without the seam's wrapper."""
    real = type(hub).switch
    return getattr(real, "__wrapped__", real)(hub)


class Greenlets:
    """The hubs of a replay's threads."""

    def __init__(self, gate: Order) -> None:
        self._gate = gate
        self._hubs: dict[int, HubTurns] = {}

    def of(self, hub: Any) -> HubTurns:
        """The actions that wait in a hub of the calling thread."""
        found = self._hubs.get(id(hub))
        if found is None or found._hub is not hub:
            found = self._hubs[id(hub)] = HubTurns(self._gate, hub)
        return found

    def wait_turn(self, hub: Any, clock: int) -> None:
        """Yield to the hub until it is the turn of a completion: at least once, as every call does."""
        gate = self._gate
        with gate.census.waiting_elsewhere():
            self.of(hub).wait(clock, lambda: gate.is_turn(clock))

    def wait_until(self, hub: Any, is_free: Callable[[], bool]) -> bool:
        """Yield to the hub until `is_free`, or nothing moves any more; return `is_free()`."""
        if not is_free() and not self._gate.is_open:
            self.of(hub).wait(REST, lambda: self._gate.is_open or is_free())
        return is_free()

    def wait_for_throw(self, hub: Any) -> None:
        """Yield to the hub until something is thrown into the running greenlet; return if nothing is."""
        self.of(hub).wait_for_throw()
