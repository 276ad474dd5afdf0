"""Calls with which a program takes messages from a broker.

They are calls like any other unless each message is to be a run of its own; then the taker that `units` has set decides
where the run of a message begins and ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from spanreplay.runtime.calls.function_calls import FunctionCall

__all__ = ["Source", "Taker", "Taking", "find_taker", "follow", "leave", "set_taker"]

T = TypeVar("T")


def _same(value: Any) -> Any:
    return value


def _never(found: Any) -> bool:
    return False


class Source(NamedTuple):
    """What a program takes messages from."""

    name: str
    """What it is called in the recording; the same in a replay."""
    client: int
    """The `id` of the client, which tells it from other sources of this process."""


class Taking(NamedTuple):
    """One call that takes messages."""

    source: Source
    describe: Callable[[], FunctionCall]
    show: Callable[[Any], Any] = _same
    """Returns what is recorded of what the client gave."""
    build: Callable[[Any], Any] = _same
    """Returns what the program gets of what was recorded."""
    is_nothing: Callable[[Any], bool] = _never
    """Whether what the client gave is no message."""
    nothing: Callable[[], Any] | None = None
    """Returns what the program gets if no message comes; None if the call waits for one."""
    headers: Callable[[Any], Mapping[str, Any]] | None = None
    """Returns the message's headers, which may name user, session and trace."""


class Taker(Protocol):
    """Makes each message a run of its own."""

    def applies(self, source: Source) -> bool:
        """Whether taking from a source begins a run here, not only a call of the run that is under way."""
        ...

    def take(self, taking: Taking, live: Callable[[], Any]) -> Any:
        """End the run of the message before, and take the next one. Raises: what `live` raises."""
        ...

    async def take_async(self, taking: Taking, live: Callable[[], Awaitable[Any]]) -> Any:
        """Asynchronous `take`."""
        ...

    def leave(self, client: int, raised: BaseException | None) -> None:
        """End the run of a message, because the program is about to close the client that it came from."""
        ...

    def follow(self, work: Any) -> None:
        """Count a task or a pool's future that is created here among the work for a message."""
        ...


class _State:
    taker: Taker | None = None


def set_taker(taker: Taker | None) -> None:
    """Let messages be runs of their own from now on; None: calls."""
    _State.taker = taker


def find_taker(source: Source) -> Taker | None:
    """Return the taker, if taking from a source begins a run here."""
    taker = _State.taker
    return taker if taker is not None and taker.applies(source) else None


def leave(client: Any, raised: BaseException | None = None) -> None:
    """End the run of a message: the program is done with it, or is about to close the client that it came from.

    `raised`: the exception with which it is done.
    """
    if _State.taker is not None:
        _State.taker.leave(id(client), raised)


def follow(work: Any) -> None:
    """Count a task or a pool's future that is created here among the work for a message."""
    if _State.taker is not None:
        _State.taker.follow(work)
