"""Listeners that a client tells of its partitions, in a task of its own or while the program polls.

What a listener of aiokafka is told is recorded in a lane of its own below the code that subscribed. In a replay a task
of ours tells it, at the recorded turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import call_async
from spanreplay.runtime.lanes import Lane, current_lane, inside_lane, outside_calls
from spanreplay.runtime.order.loops import clock_of_running_loop
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.brokers.kafka import looks
from spanreplay.seams.machine.brokers.kafka.python_clients import State
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_METHODS: Final = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")
_LABEL: Final = "kafka.listener"


def _make_listener(listener: Any, tell: Callable[[str, Any], Any], *, is_async: bool) -> Any:
    """Return a listener of the same class that tells the program's own."""

    def method(name: str) -> Callable[..., Any]:
        if not is_async:
            return lambda self, partitions: tell(name, partitions)

        async def told(self: Any, partitions: Any) -> Any:
            return await tell(name, partitions)

        return told

    space = {name: method(name) for name in _METHODS if hasattr(listener, name)}
    cls = type(listener)
    made_class: Any = type(cls.__name__, (cls,), {**space, "__module__": cls.__module__})
    made = object.__new__(made_class)
    with contextlib.suppress(TypeError):
        vars(made).update(vars(listener))
    return made


# ── aiokafka ────────────────────────────────────────────────────────────────────────────────────────
def listen_async(state: State, run: Run, listener: Any) -> Any:
    """Return what the client tells in place of a listener; in a replay, a task tells the listener."""
    lane = current_lane(run.root_lane).child(_LABEL)

    async def told(name: str, partitions: Any) -> Any:
        return await _tell(state, run, lane, listener, name, partitions)

    if is_replayed_here():
        asyncio.get_running_loop().create_task(_tell_again(state, run, lane, listener))
    return _make_listener(listener, told, is_async=True)


async def _tell(state: State, run: Run, lane: Lane, listener: Any, name: str, partitions: Any) -> Any:
    async def live() -> Any:
        return sorted(partitions)

    with outside_calls(run.root_lane), inside_lane(lane):  # the client's task may have begun in a call
        found = await call_async(lambda: state.describe(name, {}, Effect.READ), live)
        result = getattr(listener, name)(set(found) if partitions is None else partitions)
        return await result if inspect.isawaitable(result) else result


async def _tell_again(state: State, run: Run, lane: Lane, listener: Any) -> None:
    while True:
        recorded = run.resolver.answers.index.find_next(lane.path)
        if recorded is None:
            return
        name, clock = recorded.name.rpartition(".")[2], clock_of_running_loop()
        if name not in _METHODS:
            return
        if clock is not None:
            await clock.wait_turn(
                recorded.end_seq, 0.0
            )  # the client called at once, so that the call waits for nothing
        with contextlib.suppress(Exception):  # the client logs it
            await _tell(state, run, lane, listener, name, None)


# ── kafka-python ────────────────────────────────────────────────────────────────────────────────────
def listen(state: State, run: Run, listener: Any) -> Any:
    """Return what the client tells in place of a listener, while the program polls."""
    state.listener = listener

    def tell(name: str, partitions: Any) -> Any:
        if looks.looking_run() is None:
            run.resolver.leave_out("a listener was told of partitions in a thread of kafka-python: it is not recorded")
        return looks.call_back(name, lambda: sorted(partitions), lambda: getattr(listener, name)(partitions))

    return _make_listener(listener, tell, is_async=False)


def told_again(state: State, name: str, partitions: Any) -> None:
    """Tell a listener, in a replay."""
    if state.listener is not None and name in _METHODS:
        getattr(state.listener, name)(set(partitions))
