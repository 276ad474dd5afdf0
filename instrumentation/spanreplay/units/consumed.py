"""Hand-written consumer loops: handling one message of a source is a unit.

    def messages():
        queue = Redis(host="queue")
        while True:
            yield json.loads(queue.blpop("orders")[1])

    spanreplay.run(name="order").each(messages(), handle)

The source's own work (connect, poll, acknowledge) belongs to the process. A replay doesn't start the source: it passes
the recorded message to the function, and then the process ends.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Kind
from spanreplay.model.errors import ConfigError, ReplayMiss
from spanreplay.model.lane_names import is_within
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import INPUT, Ended, record_job, record_job_async, replay_job, replay_jobs_async
from spanreplay.units.stated import LANE
from spanreplay.units.unit_run import UnitRun

__all__ = ["Whose", "consume"]

Whose = str | Callable[[Any], str]
"""For whom units work: a name, or a function that returns it for a message."""
_LOOP, _MESSAGE = "loop", "message"
_END: Final = object()


def consume(
    name: str, source: Any, handle: Callable[[Any], Any], user: Whose, session: Whose
) -> Coroutine[Any, Any, None] | None:
    """Handle every message of a source; await the result for an asynchronous source.

    Raises: ConfigError; any exception of the source or the function.
    """
    loop = _Loop(name, handle, user, session)
    if isinstance(source, AsyncIterable):
        return loop.work_async(source)
    if inspect.iscoroutinefunction(handle):
        hint = "give it an asynchronous generator, and await the loop"
        raise ConfigError("the function of a consumer loop is asynchronous and its source is not", hint=hint)
    loop.work(source)
    return None


class _Loop:
    """One loop over a source."""

    def __init__(self, name: str, handle: Callable[[Any], Any], user: Whose, session: Whose) -> None:
        self._name = name
        self._handle = handle
        self._user, self._session = user, session

    def work(self, source: Iterable[Any]) -> None:
        """Handle every message in turn."""
        if _is_replay():
            if self._is_recorded():
                replay_job(lambda given: self._handle(self._pick(given)), _describe_end)
            return
        guard.guarded("a consumer loop", factory.begin_units)
        messages = iter(source)
        try:
            while (message := _take(messages)) is not _END:
                self._work_on(message)
        finally:
            if inspect.isgenerator(messages):
                messages.close()

    async def work_async(self, source: AsyncIterable[Any]) -> None:
        """Handle every message of an asynchronous source; the function may be asynchronous."""
        if _is_replay():
            if self._is_recorded():
                await replay_jobs_async(lambda given: _settle(self._handle(self._pick(given))), _describe_end)
            return
        guard.guarded("a consumer loop", factory.begin_units)
        messages = aiter(source)
        try:
            while (message := await _take_async(messages)) is not _END:
                await self._work_on_async(message)
        finally:
            if inspect.isasyncgen(messages):
                await messages.aclose()

    def _work_on(self, message: Any) -> None:
        user, session = self._find_whose(message)
        given = {_LOOP: self._name, _MESSAGE: message}
        record_job(self._name, lambda: given, lambda: self._handle(message), _describe_end, user=user, session=session)

    async def _work_on_async(self, message: Any) -> None:
        user, session = self._find_whose(message)
        given = {_LOOP: self._name, _MESSAGE: message}

        async def work() -> Any:
            return await _settle(self._handle(message))

        await record_job_async(self._name, lambda: given, work, _describe_end, user=user, session=session)

    def _find_whose(self, message: Any) -> tuple[str, str]:
        found = guard.guarded("whose a message is", lambda: (_say(self._user, message), _say(self._session, message)))
        return found or ("", "")

    def _pick(self, given: Mapping[str, Any]) -> Any:
        """Return the message of an input. Raises: ReplayMiss if a warm-up unit belongs to another loop."""
        if given[_LOOP] != self._name:
            raise ReplayMiss("a message of another loop")
        return given[_MESSAGE]

    def _is_recorded(self) -> bool:
        """Whether the replayed unit is one of this loop's."""
        run = active_run()
        if run is None or run.resolver.keeps:
            return False
        recorded = run.resolver.answers.index.at(LANE, f"{Kind.COMPUTE.value}:{INPUT}", 0)
        if recorded is None:  # the recording is not a unit's: the replay reports that
            return True
        value = json.loads(recorded.response or "{}").get("value")
        return isinstance(value, Mapping) and value.get(_LOOP) == self._name


def _describe_end(result: Any) -> Ended:
    return Ended({"result": result})


def _say(whose: Whose, message: Any) -> str:
    return str(whose(message) if callable(whose) else whose)


def _is_replay() -> bool:
    """Whether this is a replay, outside its unit."""
    run = active_run()
    return run is not None and not run.resolver.keeps and not is_within(current_lane(run.root_lane).path, LANE)


def _apart() -> contextlib.AbstractContextManager[None]:
    """Return a block for the source's own work; inside another unit that work belongs to the unit."""
    return contextlib.nullcontext() if isinstance(active_run(), UnitRun) else plumbing()


def _take(messages: Any) -> Any:
    with _apart():
        return next(messages, _END)


async def _take_async(messages: Any) -> Any:
    with _apart():
        return await anext(messages, _END)


async def _settle(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
