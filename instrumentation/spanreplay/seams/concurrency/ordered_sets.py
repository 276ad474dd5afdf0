"""Keeps tasks and futures in a set in the same order in every run.

A set's order is that of its members' hashes, and a task's hash is its address. `asyncio.wait`, a task group that
cancels its remaining tasks, and every agent with a set of its own iterate over such sets, so that their next actions
would differ from run to run. Our tasks hash by their lane's number and path instead; nothing else about them differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spanreplay.runtime.order.lane_futures import (
    LaneTask,
)
from spanreplay.runtime.patches import Patches


class _InOrder(set[Any]):
    """A set with an order."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._order = dict.fromkeys(items)
        super().__init__(self._order)

    def __iter__(self) -> Iterator[Any]:
        return iter([item for item in self._order if item in self])

    def pop(self) -> Any:
        for item in self:
            self.remove(item)
            return item
        return super().pop()  # which raises


def install(patches: Patches, is_active: Callable[[], bool]) -> None:
    """Patch the users of such sets: `asyncio.wait`, and the order in which a pool's finished futures come."""
    import concurrent.futures._base as base

    def yield_finished(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if args and isinstance(args[0], list):  # taken from its end
            args[0].sort(key=lambda future: -int(getattr(future, "_spanreplay_end", 0)))
        return wrapped(*args, **kwargs)

    async def wait_in_order(wrapped: Any, fs: Any, kwargs: Any) -> Any:
        given = list(dict.fromkeys(fs))
        done, pending = await wrapped(given, **kwargs)
        if not all(asyncio.isfuture(one) for one in given) or all(isinstance(one, LaneTask) for one in given):
            return done, pending
        return _InOrder(one for one in given if one in done), _InOrder(one for one in given if one in pending)

    def wait(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if not is_active() or len(args) != 1 or asyncio.isfuture(args[0]) or asyncio.iscoroutine(args[0]):
            return wrapped(*args, **kwargs)
        return wait_in_order(wrapped, args[0], kwargs)

    patches.wrap(base, "_yield_finished_futures", yield_finished)
    patches.wrap(asyncio.tasks, "wait", wait)
    patches.replace(asyncio, "wait", asyncio.tasks.wait)
