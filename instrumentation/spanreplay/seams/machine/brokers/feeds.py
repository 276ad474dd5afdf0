"""Messages that a broker delivers by itself: each consumer of a client has a task that gives them to the program."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from spanreplay.model.own_threads import living

__all__ = ["Feed", "Feeds"]


class Feed(ABC):
    """Gives one consumer its messages, each as soon as it is recorded or served."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to give messages, in the lane of the code that consumes."""
        self.task = asyncio.get_running_loop().create_task(self.pump())

    async def end(self) -> None:
        """Give what has come, then nothing more."""
        self.messages.put_nowait(None)
        if self.task is not None and self.task is not asyncio.current_task():
            await asyncio.wait([self.task])

    @abstractmethod
    async def pump(self) -> None:
        """Give messages until None comes."""


_F = TypeVar("_F", bound=Feed)


class Feeds(Generic[_F]):
    """The feeds of each owner, a channel or connection, by the names of their consumers."""

    def __init__(self) -> None:
        self._feeds: WeakKeyDictionary[Any, dict[Hashable, _F]] = WeakKeyDictionary()

    def add(self, owner: Any, name: Hashable, feed: _F) -> _F:
        """Add a consumer."""
        self._feeds.setdefault(owner, {})[name] = feed
        return feed

    def find(self, owner: Any, name: Hashable) -> _F | None:
        """Return the feed of a consumer."""
        return self._feeds.get(owner, {}).get(name)

    def all_of(self, owner: Any) -> list[_F]:
        """Return all feeds of an owner."""
        return list(self._feeds.get(owner, {}).values())

    def owners(self) -> list[Any]:
        """Return whoever has feeds."""
        return living(self._feeds)

    async def end(self, owner: Any, name: Hashable) -> None:
        """End the feed of a consumer that the program has cancelled."""
        feed = self._feeds.get(owner, {}).pop(name, None)
        if feed is not None:
            await feed.end()

    async def end_all(self, owner: Any) -> None:
        """End all feeds of an owner that the program has closed."""
        for name in list(self._feeds.get(owner, ())):
            await self.end(owner, name)
