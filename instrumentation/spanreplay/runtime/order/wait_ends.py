"""Ends of waits: their names in a recording, and what asks for them."""

from __future__ import annotations

import concurrent.futures._base as base
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from spanreplay.runtime.lanes import Lane

DONE: Final = "|done|"
"""Stands in a name between a lane, and which futures it waits for and which of them were done, as bits."""

CANCELLED: Final = f"{DONE}cancel."
"""Stands in a name between a future's lane, and how often it was cancelled and whether it was, as a bit."""

EXPIRED: Final = "|expired|"
"""Stands in a name between a lane and the number of a wait that ended without what it waited for."""

SLEPT: Final = "|slept|"
"""Stands in a name between a lane and the number of its sleep; sleeps are noted while there are several threads."""

AT_ONCE: Final = -1.0
"""Limit of a call that says not to wait."""

MET: Final = "|met|"
"""Stands in a name between a lane and the number of a meeting of processes: a lock is taken, a pipe looked into."""

FAILED: Final = "|failed"
"""Ends the name of a meeting to which nobody came in time."""

ATTEMPT: Final = "attempt."
"""In the name of one: there may be many, of which the first are kept, as of sleeps."""


class Timed(NamedTuple):
    """A function that waits with a timeout, and what it does when nothing comes."""

    owner: Any
    name: str
    timeout_at: int
    """Position of its argument `timeout`."""
    raises: type[BaseException] | None = None
    """What it raises then; without, it returns something false."""
    block_at: int = -1
    """Position of the argument that says whether to wait at all; -1: it has none."""
    frees_many: bool = False
    """Whether several threads may wait for the same: the order in which they go on is noted."""
    is_done: Callable[[Any], bool] | None = None
    """Tells whether what was waited for has come, where neither its result nor an error does."""

    def limit_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """How long a call may wait; None: for ever; AT_ONCE: not at all."""
        if self.block_at >= 0:
            given = kwargs.get("block", kwargs.get("blocking", True))
            if not (args[self.block_at] if len(args) > self.block_at else given):
                return AT_ONCE
        return args[self.timeout_at] if len(args) > self.timeout_at else kwargs.get("timeout")

    def with_limit(self, args: Sequence[Any], kwargs: Mapping[str, Any], seconds: float) -> tuple[list[Any], Any]:
        """The arguments of a call that waits so long."""
        changed, named = list(args), dict(kwargs)
        if self.block_at >= 0:
            named = {name: value for name, value in named.items() if name not in ("block", "blocking")}
            changed[self.block_at : self.block_at + 1] = [True] if len(args) > self.block_at else []
        if len(args) > self.timeout_at:
            changed[self.timeout_at] = seconds
        else:
            named["timeout"] = seconds
        return changed, named

    def has_expired(self, instance: Any, result: Any) -> bool:
        """Whether what it returned says that nothing came."""
        if self.is_done is not None:
            return not self.is_done(instance)
        return instance.is_alive() if self.name == "join" else self.raises is None and not result

    def is_expiry(self, instance: Any, error: BaseException) -> bool:
        """Whether what it raised says so: a future may have been given a TimeoutError to raise as well."""
        return (
            self.raises is not None and isinstance(error, self.raises) and error is not vars(instance).get("_exception")
        )


class _Inner(threading.local):
    is_known = False
    """Whether what the calling thread waits for is noted by the function that waits for it."""
    is_asked = False
    """Whether what it does is the agent's, though it is our code that does it."""


wait_state: Final = _Inner()


class _within:  # noqa: N801 -- reads as a statement
    """A block in which a mark of the calling thread is set; no generator, which takes longer than most waits."""

    __slots__ = ("_before", "_mark")

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __enter__(self) -> None:
        self._before = getattr(wait_state, self._mark)
        setattr(wait_state, self._mark, True)

    def __exit__(self, *exc_info: object) -> None:
        setattr(wait_state, self._mark, self._before)


def name_attempt(lane: Lane) -> str:
    """The name of a call that need not succeed."""
    return f"{lane.path}{EXPIRED}{ATTEMPT}{lane.next_index('attempt')}"


def name_meeting(lane: Lane) -> str:
    """The name of a meeting of processes."""
    return f"{lane.path}{MET}{lane.next_index('met')}"


def unwatched() -> AbstractContextManager[None]:
    """What the calling thread waits for within is not the agent's, or is noted already."""
    return _within("is_known")


def asked() -> AbstractContextManager[None]:
    """What the calling thread does within is what the agent asked for."""
    return _within("is_asked")


def to_bits(done: Sequence[bool]) -> str:
    """Which of some futures are done, as a hexadecimal number; the first is its lowest bit."""
    return f"{sum(1 << at for at, is_done in enumerate(done) if is_done):x}"


def split(futures: Sequence[Any], done: Sequence[bool]) -> Any:
    """What `concurrent.futures.wait` returns."""
    finished = {each for each, is_done in zip(futures, done, strict=True) if is_done}
    return base.DoneAndNotDoneFutures(finished, set(futures) - finished)


def known_timers(
    timers: Mapping[str, tuple[int, int]], waits: Mapping[str, Sequence[str]], lane_ends: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The timers without the waits for lanes whose end nobody noted: a replay could not make the same of them."""
    unknown = {name for name, lanes in waits.items() if any(lane not in lane_ends for lane in lanes)}
    return {name: fired for name, fired in timers.items() if name not in unknown}
