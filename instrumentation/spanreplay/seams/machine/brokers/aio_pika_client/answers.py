"""Requests of aio-pika as calls: what aiormq answered is recorded, and in a replay given to aio-pika's own code."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.context_variables import holding
from spanreplay.seams.machine.asked import asking_run
from spanreplay.seams.machine.brokers.aio_pika_client.frames import pack, unpack
from spanreplay.seams.machine.brokers.aio_pika_client.stand_ins import StandInTransport
from spanreplay.seams.machine.brokers.carried_out import carrying_out, refuse
from spanreplay.seams.machine.brokers.covered import is_covered
from spanreplay.seams.machine.databases.postgres import is_replayed_here

__all__ = ["CLIENTS", "ask", "asks_now", "hear", "told_of_server"]

CLIENTS: Final = frozenset({"aio-pika", "aiormq", "pamqp"})
_NAME: Final = "aio-pika"
_ANSWERS: Final = "answers"


class _Heard(list[Any]):
    """Answers of aiormq to one request."""

    is_over = False


_heard: Final[ContextVar[_Heard | None]] = ContextVar("spanreplay_amqp_heard", default=None)
"""Where aiormq's answers to the running request are kept, while recording."""
_told: Final[ContextVar[Answers | None]] = ContextVar("spanreplay_amqp_told", default=None)
"""The recorded answers to the running request, in a replay."""


class Answers:
    """Recorded answers to one request."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self._left: deque[Any] = deque(value.get(_ANSWERS, ()))
        self.is_over = False

    def take(self, channel: Any) -> Any:
        """Return the next answer. Raises: what aiormq raised; ReplayMiss if there is none."""
        if not self._left:
            run = recorded_run()
            if run is not None:
                run.resolver.leave_out("aio-pika asked its broker for more than was recorded")
            return None
        return unpack(self._left.popleft(), channel)


def told_of_server() -> dict[str, Any] | None:
    """Return what is recorded of the server to which the running code connects; None if it connects for real."""
    told = _told.get()
    return None if told is None else told.value


def _running_answers() -> Answers | None:
    told = _told.get()
    return None if told is None or told.is_over else told


def asks_now() -> bool:
    """Whether a request that begins here is a call, not part of another one."""
    return _running_answers() is None and is_covered(_NAME) and asking_run(CLIENTS) is not None


async def ask(
    description: Callable[[], FunctionCall],
    method: Callable[[], Awaitable[Any]],
    learn: Callable[[], dict[str, Any]] | None = None,
    failed: Callable[[BaseException], None] | None = None,
    channel: Any = None,
) -> Any:
    """Make a method of aio-pika a call. In a replay the method runs with the recorded answers.

    `learn` returns what else is recorded, for a method whose own steps a replay takes with a stand-in.
    """
    made: list[Any] = []
    refused: list[Exception] = []
    heard = _Heard()

    async def live() -> dict[str, Any]:
        if isinstance(getattr(getattr(channel, "connection", None), "_transport_factory", None), StandInTransport):
            raise refuse(description().name)
        try:
            with holding(_heard, heard):
                made.append(await method())
        except Exception as exc:
            if not _is_refusal(exc) or learn is not None:
                raise
            refused.append(exc)
            return {_ANSWERS: _pack_all([exc])}
        finally:
            heard.is_over = True  # tasks that it has started keep the context
        return {_ANSWERS: _pack_all(heard)} if learn is None else guard.guarded("a broker", learn) or {}

    is_replayed = is_replayed_here()
    try:
        value = await call_async(description, live)
    except Exception as exc:
        if is_replayed and failed is not None:
            failed(exc)
        raise
    if refused:
        raise refused[0]
    if made:
        return made[0]
    answers = Answers(value)
    try:
        with carrying_out("tool:amqp"), holding(_told, answers):
            return await method()
    finally:
        answers.is_over = True


def _pack_all(answers: list[Any]) -> list[Any]:
    return guard.guarded("answers of a broker", lambda: [pack(each) for each in answers]) or []


def _is_refusal(exc: BaseException) -> bool:
    """Whether an exception holds frames, of which a message was not taken."""
    return hasattr(getattr(exc, "frame", None), "attributes")


async def hear(channel: Any, method: Callable[[], Awaitable[Any]]) -> Any:
    """Make a request of aiormq that is part of one of aio-pika, or serve it."""
    told = _running_answers()
    if told is not None and _ANSWERS in told.value:
        return told.take(channel)
    heard = _heard.get()
    if heard is None or heard.is_over:
        return await method()
    with holding(_heard, None):
        answer = await method()
    heard.append(answer)
    return answer
