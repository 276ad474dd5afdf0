"""A consumer loop by hand: each message that a source gives is a unit, and so is what a function does with it.

    def messages():
        queue = Redis(host="queue")
        while True:
            yield json.loads(queue.blpop("orders")[1])

    spanreplay.run(name="order").each(messages(), handle)

What the source does (connect, poll, acknowledge) belongs to the process. In a replay it is not even started: the
function is given the recorded message, and the process ends with it.
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
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.lanes import current_lane, is_within
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import INPUT, Ended, record_job, record_job_async, replay_job, replay_jobs_async
from spanreplay.units.stated import LANE
from spanreplay.units.unit_run import UnitRun

__all__ = ["Whose", "consume"]

Whose = str | Callable[[Any], str]
"""For whom units work: a name, or what says it of a message."""
_LOOP, _MESSAGE = "loop", "message"
_END: Final = object()


def consume(
    name: str, source: Any, handle: Callable[[Any], Any], user: Whose, session: Whose
) -> Coroutine[Any, Any, None] | None:
    """Handle every message of a source; to be awaited where the source is. Raises: ConfigError, what those raise."""
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
        """Handle every message, one after another."""
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
        """The same for a source that is awaited, and a function that may be."""
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
        """The message of an input. Raises: ReplayMiss where an earlier one belongs to another loop."""
        if given[_LOOP] != self._name:
            raise ReplayMiss("a message of another loop")
        return given[_MESSAGE]

    def _is_recorded(self) -> bool:
        """Whether the unit that is replayed is one of this loop's."""
        run = active_run()
        if run is None or run.session is None:
            return False
        recorded = run.session.index.at(LANE, f"{Kind.COMPUTE.value}:{INPUT}", 0)
        if recorded is None:  # of a recording that is no unit: the replay says so
            return True
        value = json.loads(recorded.response or "{}").get("value")
        return isinstance(value, Mapping) and value.get(_LOOP) == self._name


def _describe_end(result: Any) -> Ended:
    return Ended({"result": result})


def _say(whose: Whose, message: Any) -> str:
    return str(whose(message) if callable(whose) else whose)


def _is_replay() -> bool:
    """Whether this is a replay, outside of its unit."""
    run = active_run()
    return run is not None and run.session is not None and not is_within(current_lane(run.root_lane).path, LANE)


def _apart() -> contextlib.AbstractContextManager[None]:
    """A block of the source's own work; within another unit it is a part of that."""
    return contextlib.nullcontext() if isinstance(active_run(), UnitRun) else plumbing()


def _take(messages: Any) -> Any:
    with _apart():
        return next(messages, _END)


async def _take_async(messages: Any) -> Any:
    with _apart():
        return await anext(messages, _END)


async def _settle(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
