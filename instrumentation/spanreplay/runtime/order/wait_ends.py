"""Ends of waits: their names in a recording, and the descriptions of the functions that wait."""

from __future__ import annotations

import concurrent.futures._base as base
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from spanreplay.runtime.lanes import Lane

DONE: Final = "|done|"
"""In a name, separates a lane from the futures it waits for and, as bits, which of them were done."""

CANCELLED: Final = f"{DONE}cancel."
"""In a name, separates a future's lane from how often it was cancelled and, as a bit, whether that succeeded."""

EXPIRED: Final = "|expired|"
"""In a name, separates a lane from the number of a wait that expired."""

SLEPT: Final = "|slept|"
"""In a name, separates a lane from the number of its sleep; sleeps are noted while there are several threads."""

SLEEP: Final = "_set_result_unless_cancelled"
"""In the name of a timer: the callback that ends `asyncio.sleep`."""

AT_ONCE: Final = -1.0
"""Limit of a call that says not to wait."""

MET: Final = "|met|"
"""In a name, separates a lane from the number of a meeting of processes: a lock is taken, a pipe is polled."""

FAILED: Final = "|failed"
"""Ends the name of a meeting that did not succeed in time."""

ATTEMPT: Final = "attempt."
"""Marks the name of an attempt: there may be many; as with sleeps, the first are kept."""


class Timed(NamedTuple):
    """A function that waits with a timeout, and its behaviour when nothing comes."""

    owner: Any
    name: str
    timeout_at: int
    """Position of its argument `timeout`."""
    raises: type[BaseException] | None = None
    """The exception it raises then; without one, it returns a false value."""
    block_at: int = -1
    """Position of the argument that says whether to wait at all; -1: it has none."""
    frees_many: bool = False
    """Whether several threads may wait for the same event: the order in which they go on is noted."""
    is_done: Callable[[Any], bool] | None = None
    """Whether the awaited event has come, for functions that don't tell by a result or an error."""

    def limit_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """How long a call may wait; None: forever; AT_ONCE: not at all."""
        if self.block_at >= 0:
            given = kwargs.get("block", kwargs.get("blocking", True))
            if not (args[self.block_at] if len(args) > self.block_at else given):
                return AT_ONCE
        return args[self.timeout_at] if len(args) > self.timeout_at else kwargs.get("timeout")

    def with_limit(self, args: Sequence[Any], kwargs: Mapping[str, Any], seconds: float) -> tuple[list[Any], Any]:
        """The arguments of a call that waits this long."""
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
        """Whether the result says that nothing came."""
        if self.is_done is not None:
            return not self.is_done(instance)
        return instance.is_alive() if self.name == "join" else self.raises is None and not result

    def is_expiry(self, instance: Any, error: BaseException) -> bool:
        """Whether the exception says that nothing came; a future's own exception may be a TimeoutError too."""
        return (
            self.raises is not None and isinstance(error, self.raises) and error is not vars(instance).get("_exception")
        )


class _Inner(threading.local):
    is_known = False
    """Whether the waiting function itself notes the calling thread's wait."""
    is_asked = False
    """Whether the calling thread acts for the agent, although our code does it."""


wait_state: Final = _Inner()


class _within:  # noqa: N801 -- reads as a statement
    """A block in which a mark of the calling thread is set; not a generator, which takes longer than most waits."""

    __slots__ = ("_before", "_is_so", "_mark")

    def __init__(self, mark: str, *, is_so: bool = True) -> None:
        self._mark, self._is_so = mark, is_so

    def __enter__(self) -> None:
        self._before = getattr(wait_state, self._mark)
        setattr(wait_state, self._mark, self._is_so)

    def __exit__(self, *exc_info: object) -> None:
        setattr(wait_state, self._mark, self._before)


def name_attempt(lane: Lane) -> str:
    """The name of an attempt, a call that need not succeed."""
    return f"{lane.path}{EXPIRED}{ATTEMPT}{lane.next_index('attempt')}"


def name_meeting(lane: Lane) -> str:
    """The name of a meeting of processes."""
    return f"{lane.path}{MET}{lane.next_index('met')}"


def unwatched() -> AbstractContextManager[None]:
    """A block in which waits of the calling thread are not the agent's, or are noted already."""
    return _within("is_known")


def watched() -> AbstractContextManager[None]:
    """A block that interrupts the calling thread, and in which its waits are the agent's."""
    return _within("is_known", is_so=False)


def asked() -> AbstractContextManager[None]:
    """A block in which the calling thread does what the agent asked for."""
    return _within("is_asked")


def to_bits(done: Sequence[bool]) -> str:
    """Which of some futures are done, as a hexadecimal number; the first is its lowest bit."""
    return f"{sum(1 << at for at, is_done in enumerate(done) if is_done):x}"


def has_come(done: Sequence[bool], until: str) -> bool:
    """Whether a wait for some futures has ended with what it was for, rather than at its limit."""
    return all(done) if until == base.ALL_COMPLETED else any(done)


def split(futures: Sequence[Any], done: Sequence[bool]) -> Any:
    """The futures in the form that `concurrent.futures.wait` returns."""
    finished = {each for each, is_done in zip(futures, done, strict=True) if is_done}
    return base.DoneAndNotDoneFutures(finished, set(futures) - finished)


def known_timers(
    timers: Mapping[str, tuple[int, int]], waits: Mapping[str, Sequence[str]], lane_ends: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The timers except waits for lanes whose end was not noted: a replay could not reproduce those."""
    unknown = {name for name, lanes in waits.items() if any(lane not in lane_ends for lane in lanes)}
    return {name: fired for name, fired in timers.items() if name not in unknown}
