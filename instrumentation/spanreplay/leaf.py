"""Python calls as boundaries: functions, coroutines, generators and async generators.

The user's own exception always goes on unchanged. In a replay the body does not run unless the plan says live.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spanreplay import codec, guard
from spanreplay._json import dump
from spanreplay.call import Outcome
from spanreplay.crossing import Crossing, Spec, begin
from spanreplay.errors import ReplayMiss, Unserializable
from spanreplay.run import Run

T = TypeVar("T")
_MCP_KEYSPEC = "mcp/1"
_KINDS_WITH_KEYSPEC = frozenset({"tool", "retriever", "compute", "human", "mcp"})


@dataclass(frozen=True)
class Leaf:
    """A Python call about to happen; `arguments` by parameter name."""

    kind: str
    name: str
    effect: str
    arguments: Mapping[str, Any]
    call_id: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    """The function that does the work, where the caller is a framework: named when no agent code is on the stack."""


def _describe(run: Run, describe: Callable[[], Leaf]) -> Spec:
    leaf = describe()
    counts: dict[str, int] = {}
    hole = ""
    try:
        encoded = codec.encode(dict(leaf.arguments))
    except Unserializable as exc:
        hole, encoded = f"request {exc}", {"$unserializable": exc.path}
    redacted = run.redactor.value(encoded, counts)
    keyspec = f"{leaf.kind}/1" if leaf.kind in _KINDS_WITH_KEYSPEC else "tool/1"
    return Spec(
        kind=leaf.kind,
        name=leaf.name,
        effect=leaf.effect,
        keyspec=keyspec,
        key_fields=redacted if keyspec == _MCP_KEYSPEC else {"name": leaf.name, "arguments": redacted},
        request=dump({"arguments": redacted}),
        call_id=leaf.call_id,
        meta=dict(leaf.meta),
        redactions=counts,
        hole=hole,
        body=leaf.body,
    )


def _close_value(crossing: Crossing, member: str, value: Any, outcome: Outcome) -> None:
    spec = crossing.spec
    try:
        encoded = codec.encode(value) if member != "error" else codec.encode_exception(value)
        response = {member: crossing.run.redactor.value(encoded, spec.redactions)}
    except Unserializable as exc:
        spec.hole = spec.hole or f"{member} {exc}"
        response = {"unserializable": exc.path, "type": exc.type_name}
    crossing.close(outcome, dump(response))


def _close_ok(crossing: Crossing, value: Any) -> None:
    guard.guarded("recording a result", _close_value, crossing, "value", value, Outcome.OK)


def _close_error(crossing: Crossing, exc: BaseException) -> None:
    outcome = Outcome.ERROR if isinstance(exc, Exception) else Outcome.CANCELLED
    guard.guarded("recording an exception", _close_value, crossing, "error", exc, outcome)


def _load(crossing: Crossing) -> dict[str, Any]:
    """The recorded response; closes the crossing with it. Raises: ReplayMiss if it can't be served."""
    recorded = crossing.served
    session = crossing.run.session
    if recorded is None or session is None:
        raise AssertionError("only a served crossing has a recorded response")
    crossing.spec.meta.update(recorded.meta)
    crossing.close(Outcome(recorded.outcome), recorded.response)
    try:
        response: dict[str, Any] = json.loads(recorded.response)
    except ValueError as exc:
        raise session.broken(f"the response of call {recorded.seq} is not JSON") from exc
    if "unserializable" in response or "truncated" in response:
        raise session.broken(
            f"the response of call {recorded.seq} ({recorded.boundary}) was not recorded: "
            f"{response.get('type', 'too long')} at {response.get('unserializable', '$')}"
        )
    return response


def _decode(crossing: Crossing, encoded: Any) -> Any:
    try:
        return codec.decode(encoded)
    except Exception as exc:
        session = crossing.run.session
        message = f"the response of call {crossing.seq} ({crossing.boundary}) can't be rebuilt: {exc}"
        raise session.broken(message) if session is not None else ReplayMiss(message) from exc


def _raise_or_value(crossing: Crossing, response: dict[str, Any]) -> Any:
    if "error" in response:
        raise _decode_exception(crossing, response["error"])
    return _decode(crossing, response.get("value"))


def _decode_exception(crossing: Crossing, encoded: Any) -> BaseException:
    try:
        return codec.decode_exception(encoded)
    except Exception as exc:
        session = crossing.run.session
        message = f"the exception of call {crossing.seq} ({crossing.boundary}) can't be rebuilt: {exc}"
        raise session.broken(message) if session is not None else ReplayMiss(message) from exc


def call_sync(describe: Callable[[], Leaf], live: Callable[[], T]) -> T:
    """Run or serve a plain call."""
    crossing = begin(_describe, describe)
    if crossing is None:
        return live()
    if crossing.served is not None:
        value: T = _raise_or_value(crossing, _load(crossing))
        return value
    try:
        with crossing:
            result = live()
    except BaseException as exc:
        _close_error(crossing, exc)
        raise
    _close_ok(crossing, result)
    return result


async def call_async(describe: Callable[[], Leaf], live: Callable[[], Awaitable[T]]) -> T:
    """Run or serve a coroutine call."""
    crossing = begin(_describe, describe)
    if crossing is None:
        return await live()
    if crossing.served is not None:
        if crossing.served.outcome == Outcome.CANCELLED.value:
            await asyncio.get_running_loop().create_future()  # the program must cancel it, as it did
        value: T = _raise_or_value(crossing, _load(crossing))
        return value
    try:
        with crossing:
            result = await live()
    except BaseException as exc:
        _close_error(crossing, exc)
        raise
    _close_ok(crossing, result)
    return result


class _Items:
    """What a generator yielded so far, and the end of its record."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._items: list[Any] = []
        crossing.on_abandon = self.closed_early

    def add(self, item: Any) -> None:
        guard.guarded("recording an item", self._add, item)

    def _add(self, item: Any) -> None:
        try:
            self._items.append(codec.encode(item))
        except Unserializable as exc:
            self._crossing.spec.hole = self._crossing.spec.hole or f"item {len(self._items)} {exc}"
            self._items.append({"$unserializable": exc.path})

    def closed_early(self) -> None:
        self._close({"end": "closed"}, Outcome.OK)

    def completed(self, value: Any) -> None:
        try:
            end: dict[str, Any] = {"end": "complete", "value": codec.encode(value)}
        except Unserializable:
            end = {"end": "complete"}
        self._close(end, Outcome.OK)

    def failed(self, exc: BaseException) -> None:
        try:
            end: dict[str, Any] = {"end": "error", "error": codec.encode_exception(exc)}
        except Unserializable as bad:
            self._crossing.spec.hole = self._crossing.spec.hole or f"exception {bad}"
            end = {"end": "error"}
        self._close(end, Outcome.ERROR if isinstance(exc, Exception) else Outcome.CANCELLED)

    def _close(self, end: dict[str, Any], outcome: Outcome) -> None:
        spec = self._crossing.spec
        response = self._crossing.run.redactor.value({"items": self._items, **end}, spec.redactions)
        guard.guarded("recording a generator", self._crossing.close, outcome, dump(response))


def call_generator(
    describe: Callable[[], Leaf], live: Callable[[], Generator[Any, Any, Any]]
) -> Generator[Any, Any, Any]:
    """Run or serve a generator; `send` and `throw` reach the live body."""
    crossing = begin(_describe, describe)
    if crossing is None:
        return (yield from live())
    if crossing.served is not None:
        return (yield from _serve_items(crossing, _load(crossing)))
    items = _Items(crossing)
    generator = live()
    sent: Any = None
    throw: BaseException | None = None
    while True:
        try:
            with crossing:
                item = generator.send(sent) if throw is None else generator.throw(throw)
        except StopIteration as stop:
            items.completed(stop.value)
            return stop.value
        except BaseException as exc:
            items.failed(exc)
            raise
        items.add(item)
        throw = None
        try:
            sent = yield item
        except GeneratorExit:
            items.closed_early()
            generator.close()
            raise
        except BaseException as exc:  # noqa: BLE001 -- handed to the live body, which decides
            throw = exc


def _serve_items(crossing: Crossing, response: dict[str, Any]) -> Generator[Any, Any, Any]:
    for item in response.get("items", ()):
        yield _decode(crossing, item)
    return _end_of_items(crossing, response)


def _end_of_items(crossing: Crossing, response: dict[str, Any]) -> Any:
    if "error" in response:
        raise _decode_exception(crossing, response["error"])
    if response.get("end") == "closed" and crossing.run.session is not None:
        raise crossing.run.session.overrun(crossing)
    return _decode(crossing, response.get("value"))


async def call_async_generator(
    describe: Callable[[], Leaf], live: Callable[[], AsyncGenerator[Any, Any]]
) -> AsyncGenerator[Any, Any]:
    """Run or serve an async generator."""
    crossing = begin(_describe, describe)
    if crossing is None:
        async for item in live():
            yield item
        return
    if crossing.served is not None:
        response = _load(crossing)
        for encoded in response.get("items", ()):
            yield _decode(crossing, encoded)
        _end_of_items(crossing, response)
        return
    items = _Items(crossing)
    generator = live()
    sent: Any = None
    while True:
        try:
            with crossing:
                item = await generator.asend(sent)
        except StopAsyncIteration:
            items.completed(None)
            return
        except BaseException as exc:
            items.failed(exc)
            raise
        items.add(item)
        try:
            sent = yield item
        except GeneratorExit:
            items.closed_early()
            await generator.aclose()
            raise
