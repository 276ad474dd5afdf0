"""The set-up of a driver's connection: what a pool asks a new one before it hands it out, and a kept one again.

Which unit of a server makes a connection depends on the load. So the calls by which it is set up have names of their
own, and a unit that uses another one's connection has a call that tells how that was set up: a replay of this unit
alone makes the connection anew, and has the answers. Only what libraries ask belongs to this, nothing that the agent
asks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from inspect import CO_COROUTINE
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model.call import Effect
from spanreplay.model.distributions import split_site
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.caller.caller import AGENT, classify, is_ours
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.effects import describe_effect

__all__ = ["CONNECTION", "CURSOR", "POOL", "SetUp", "find_callers", "is_of_pool"]

_FRAMES_MAX: Final = 4
"""So many functions of libraries that led to `connect` may belong to the set-up: a dialect's and a pool's."""
_POOL_FRAMES_MAX: Final = 6
POOL: Final = "pool"
"""In the name of a file or folder whose code keeps connections: its own calls (pings) depend on which one it gives."""
CURSOR, CONNECTION = "cursor_number", "connection_number"
"""Arguments that tell objects apart; those of a set-up have other numbers if it is answered by another one's."""
_STACK_MAX: Final = 200
_CALLS_MAX: Final = 64


class SetUp:
    """How one connection was made, and what was asked of it before its first use."""

    def __init__(
        self,
        driver: str,
        server: dict[str, str],
        path: str,
        frames: frozenset[tuple[int, Any]] | None = None,
        *,
        is_pool: bool = False,
    ) -> None:
        """`frames`: those of the functions that connect; None for those that have called.

        A driver's own pool sets its connections up by itself: nothing that is asked of it belongs to that.
        """
        self.driver, self.server, self.path, self._is_pool = driver, server, path, is_pool
        self.calls: list[dict[str, Any]] = []
        """Name, arguments and value or error of each call."""
        self.first: SetUp | None = None
        """How the first connection to the server was set up, of which a library asks more; None for that one."""
        self._frames = find_callers() if frames is None else frames
        self._users: WeakKeyDictionary[Run, set[str]] = WeakKeyDictionary()
        """The units that have used it: their runs, and the first part of their lanes."""
        self._note_user()

    def _note_user(self) -> bool:
        """Note who uses the connection; return whether it was known."""
        run = recorded_run()
        if run is None:
            return True
        unit = current_lane(run.root_lane).path.partition("/")[0]
        units = self._users.setdefault(run, set())
        is_known = unit in units
        units.add(unit)
        return is_known

    @property
    def is_direct(self) -> bool:
        """Whether no library made the connection, such as one with a pool."""
        return not self._frames

    def is_others(self) -> bool:
        """Whether another unit has set the connection up."""
        run = recorded_run()
        return run is not None and current_lane(run.root_lane).path.partition("/")[0] not in self._users.get(run, ())

    def note_use(self) -> None:
        """Tell a unit that uses another one's connection how it was set up."""
        if not self._note_user():
            describe = describe_effect(f"{self.driver}.kept", {"class": self.path}, Effect.READ)
            beside = {"driver": self.driver, "server": self.server}
            call_sync(lambda: describe._replace(beside=beside), self.describe)

    def describe(self) -> dict[str, Any]:
        """Return the recorded form."""
        of_first = [] if self.first is None else self.first.calls
        return {"class": self.path, "setup": [*self.calls, *of_first]}

    def is_open(self, method: str) -> bool:
        """Whether the functions that made the connection are still running, or a pool looks after it."""
        if self._is_pool:
            return False
        if is_of_pool(method):
            return True
        if not self._frames:
            return False
        if any((id(frame), frame.f_code) in self._frames for frame in islice(_callers(), _STACK_MAX)):
            return True
        self._frames = frozenset()
        return False

    def name(self, call: FunctionCall) -> FunctionCall:
        """Return a call of the set-up under its own name."""
        rest = call.name[len(self.driver) + 1 :]
        shown = {name: value for name, value in call.arguments.items() if name not in (CURSOR, CONNECTION)}
        return call._replace(name=f"{self.driver}.setup.{rest}", arguments=shown, beside={"driver": self.driver})

    def keep(self, call: FunctionCall, **outcome: Any) -> None:
        """Keep a call of the set-up."""
        if len(self.calls) < _CALLS_MAX:
            self.calls.append({"name": call.name, "arguments": dict(call.arguments), **outcome})


def find_callers() -> frozenset[tuple[int, Any]]:
    """Return the nearest functions of libraries that have called `connect`; none if the agent has."""
    return frozenset((id(frame), frame.f_code) for frame in _libraries(_FRAMES_MAX))


def _callers() -> Iterator[FrameType]:
    """Yield the frames beneath this module's, with those of greenlets that wait for one of them.

    SQLAlchemy runs its own code in a greenlet, and awaits in the task what that code asks for.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        if frame.f_code.co_flags & CO_COROUTINE and "greenlet" in sys.modules and _has_greenlets(frame.f_code):
            yield from _waiting(frame)
        frame = frame.f_back


@cache
def _has_greenlets(code: CodeType) -> bool:
    """Whether a coroutine function switches to greenlets: it has a method of theirs among its names."""
    return "switch" in code.co_names and classify(code.co_filename) != AGENT


def _waiting(frame: FrameType) -> Iterator[FrameType]:
    for each in tuple(frame.f_locals.values()):
        inner = getattr(each, "gr_frame", None) if isinstance(each, sys.modules["greenlet"].greenlet) else None
        while inner is not None:
            yield inner
            inner = inner.f_back


def _libraries(count: int) -> Iterator[FrameType]:
    """Yield the nearest frames of libraries, up to the agent's."""
    for frame in _callers():
        name = frame.f_code.co_filename
        if is_ours(name) or (frame.f_code.co_flags & CO_COROUTINE and _has_greenlets(frame.f_code)):
            continue
        if count == 0 or classify(name) == AGENT:
            return
        count -= 1
        yield frame


def is_of_pool(method: str) -> bool:
    """Whether a pool calls a method on its own account; one that only passes the call on is named like the method."""
    codes = (frame.f_code for frame in _libraries(_POOL_FRAMES_MAX))
    return any(POOL in split_site(c.co_filename)[1].lower() and c.co_name != method for c in codes)
