"""The set-up of a driver's connection: what a pool asks a new one before it hands it out, and a kept one again.

Which unit of a server makes a connection depends on the load. So the calls by which it is set up have names of their
own, and a unit that uses another one's connection has a call that tells how that was set up: a replay of this unit
alone makes the connection anew, and has the answers. Only what libraries ask belongs to this, nothing that the agent
asks.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from inspect import CO_COROUTINE
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model import ids
from spanreplay.model.call import Effect
from spanreplay.model.distributions import split_site
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.caller.caller import AGENT, classify, is_ours
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.effects import describe_effect

__all__ = ["CONNECTION", "CURSOR", "POOL", "Server", "SetUp", "find_callers", "is_called_by_agent", "is_of_pool"]

_FRAMES_MAX: Final = 4
"""So many functions of libraries that led to `connect` may belong to the set-up: a dialect's and a pool's."""
_POOL_FRAMES_MAX: Final = 6
POOL: Final = "pool"
"""In the name of a file or folder whose code keeps connections: its own calls (pings) depend on which one it gives."""
CURSOR, CONNECTION = "cursor_number", "connection_number"
"""Arguments that tell objects apart; those of a set-up have other numbers if it is answered by another one's."""
_COMMIT: Final = "commit"
"""A pool never does this on its own account, but psycopg's for the block that has the connection."""
_STACK_MAX: Final = 200
_CALLS_MAX: Final = 64
_LAST: Final = 8


class Server:
    """What is known of the connections to one server: of which a library has asked most, mostly the first."""

    def __init__(self) -> None:
        self.fullest: SetUp | None = None

    def list_asked(self) -> list[dict[str, Any]]:
        """Return what was asked of that connection, if another unit has set it up."""
        return self.fullest.calls if self.fullest is not None and self.fullest.is_others() else []


class SetUp:
    """How one connection was made, and what was asked of it before its first use."""

    def __init__(
        self,
        driver: str,
        server: dict[str, str],
        path: str,
        frames: frozenset[tuple[int, Any]] | None = None,
        *,
        known: Server | None = None,
        told: int = 0,
        is_pool: bool = False,
    ) -> None:
        """`frames`: those of the functions that connect; None for those that have called.

        `known`: its server; `told`: how much the answer of the call that connects tells of other units' connections. A
        driver's own pool sets its connections up by itself: nothing that is asked of it belongs to that.
        """
        self.driver, self.server, self.path, self._is_pool = driver, server, path, is_pool
        self.calls: list[dict[str, Any]] = []
        """Name, arguments and value or error of each call."""
        self.about: dict[str, Any] = {}
        """What else the answer of the call that connects tells, of the server."""
        self._known = known or Server()
        self._told = told
        """-1 once the connection is in use."""
        if self._known.fullest is None:
            self._known.fullest = self
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

    def note_use(self, *, is_setup: bool) -> None:
        """Tell a unit that uses another one's connection how it was set up.

        Also tell one that has waited, with a connection of its own, until another unit had asked its connection: two
        open the first ones at the same time, and only one of them is asked everything.
        """
        is_known, told = self._note_user(), self._told
        if not is_setup:
            self._told = -1
        if not is_known or (not is_setup and 0 <= told < len(self._known.list_asked())):
            describe = describe_effect(f"{self.driver}.kept", {"class": self.path}, Effect.READ)
            beside = {"driver": self.driver, "server": self.server}
            call_sync(lambda: describe._replace(beside=beside), self.describe)

    def describe(self) -> dict[str, Any]:
        """Return the recorded form."""
        fullest = self._known.fullest
        of_other = [] if fullest is None or fullest is self else fullest.calls
        return {"class": self.path, **self.about, "setup": [*self.calls, *of_other]}

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
        shown = {name: _plain(value) for name, value in call.arguments.items() if name not in (CURSOR, CONNECTION)}
        return call._replace(name=f"{self.driver}.setup.{rest}", arguments=shown, beside={"driver": self.driver})

    def call(self, method: str, describe: Callable[[], FunctionCall], live: Callable[[], Any]) -> Any:
        """Make a call on the connection, which may belong to its set-up."""
        is_setup = self.is_open(method)
        self.note_use(is_setup=is_setup)
        if not is_setup:
            return call_sync(describe, live)
        described = self.name(describe())
        try:
            answer = call_sync(lambda: described, live)
        except Exception as exc:
            self.keep(described, error=exc)
            raise
        self.keep(described, value=answer)
        return answer

    async def call_async(
        self, describe: Callable[[], FunctionCall], live: Callable[[], Awaitable[Any]], *, is_setup: bool
    ) -> Any:
        """Make a call on the connection. `is_setup` is what `is_open` said when it began."""
        self.note_use(is_setup=is_setup)
        if not is_setup:
            return await call_async(describe, live)
        described = self.name(describe())
        try:
            answer = await call_async(lambda: described, live)
        except Exception as exc:
            self.keep(described, error=exc)
            raise
        self.keep(described, value=answer)
        return answer

    def keep(self, call: FunctionCall, **outcome: Any) -> None:
        """Keep a call of the set-up; one that is made again, such as a ping, only once."""
        kept = {"name": call.name, "arguments": dict(call.arguments), **outcome}
        if len(self.calls) < _CALLS_MAX and kept not in self.calls[-_LAST:]:
            self.calls.append(kept)
        if self._known.fullest is None or len(self.calls) > len(self._known.fullest.calls):
            self._known.fullest = self


def _plain(value: Any) -> Any:
    """Return parameters without a class of the library's own, which a replay may not be able to make."""
    return dict(value) if isinstance(value, Mapping) else value


def find_callers() -> frozenset[tuple[int, Any]]:
    """Return the nearest functions of libraries that have called `connect`; none if the agent has."""
    return frozenset((id(frame), frame.f_code) for frame in _libraries(_FRAMES_MAX))


def is_called_by_agent() -> bool:
    """Whether the agent's own code has led here: a task or a thread of a pool works on the pool's own account."""
    return any(ids.is_agent_file(frame.f_code.co_filename) for frame in (*_callers(), *_starters()))


def _starters() -> Iterator[FrameType]:
    """Yield the frames of the greenlets in which this one was started."""
    module = sys.modules.get("greenlet")
    starter = None if module is None else module.getcurrent().parent
    while starter is not None:
        frame = starter.gr_frame
        while frame is not None:
            yield frame
            frame = frame.f_back
        starter = starter.parent


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
    if method == _COMMIT:
        return False
    codes = (frame.f_code for frame in _libraries(_POOL_FRAMES_MAX))
    return any(POOL in split_site(c.co_filename)[1].lower() and c.co_name != method for c in codes)
