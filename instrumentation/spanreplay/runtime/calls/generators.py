"""Generators and async generators as boundaries: the items yielded, the values sent in, and the end.

Recorded: {"items": [...], "end": "complete|closed|error", "value" or "error", "sent": {"<item>": the value sent}}.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from spanreplay import codec
from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.model.errors import ReplayMiss, Unserializable
from spanreplay.model.json_text import dump
from spanreplay.runtime.calls import printed
from spanreplay.runtime.calls.cancel import await_cancellation, is_cancellation
from spanreplay.runtime.calls.function_calls import (
    FunctionCall,
    begin_function_call,
    decode_error,
    decode_value,
    load_response,
)
from spanreplay.runtime.calls.open_call import Crossing
from spanreplay.runtime.calls.turns import await_item, await_turn, end_stream, wait_item, wait_turn
from spanreplay.runtime.context_variables import call_in_own_context, is_collecting

_HOLE = "$unserializable"


def _encode_sent(sent: Any, thrown: BaseException | None) -> Any:
    """Encode the value or exception sent in at a yield; None for a plain `next`. Raises: Unserializable."""
    return codec.encode(sent) if thrown is None else {"throw": codec.encode_exception(thrown)}


class _Recorded:
    """The items that a live generator has yielded so far, and the end of its record; nothing here raises."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._items: list[Any] = []
        self._sent: dict[str, Any] = {}
        self.is_ended = False
        crossing.on_abandon = self.closed

    def yielded(self, item: Any) -> None:
        """Note that an item was yielded."""
        guard.guarded("recording an item", self._yielded, item)

    def _yielded(self, item: Any) -> None:
        self._crossing.mark()
        self._items.append(self._encode(f"item {len(self._items)}", codec.encode, item))
        self._crossing.spec.part = len(self._items)

    def resumed(self, sent: Any, thrown: BaseException | None = None) -> None:
        """Note what was sent or thrown in at the yield of the latest item."""
        if self._items and (sent is not None or thrown is not None):
            guard.guarded("recording what was sent", self._resumed, sent, thrown)

    def _resumed(self, sent: Any, thrown: BaseException | None) -> None:
        at = len(self._items) - 1
        self._sent[str(at)] = self._encode(f"sent at item {at}", _encode_sent, sent, thrown)

    def completed(self, value: Any) -> None:
        """Note that the generator returned."""
        self._end("complete", Outcome.OK, "value", codec.encode, value)

    def failed(self, exc: BaseException) -> None:
        """Note that the generator raised."""
        outcome = Outcome.ERROR if isinstance(exc, Exception) else Outcome.CANCELLED
        self._end("error", outcome, "error", codec.encode_exception, exc)

    def closed(self, exc: BaseException | None = None) -> None:
        """Note that the generator was closed early; `exc` is the exception it raised then."""
        if exc is None:
            self._end("closed", Outcome.OK)
        else:
            self._end("closed", Outcome.ERROR, "error", codec.encode_exception, exc)

    def _encode(self, what: str, encode: Callable[..., Any], *args: Any) -> Any:
        try:
            return encode(*args)
        except Unserializable as exc:
            spec = self._crossing.spec
            spec.hole = spec.hole or f"{what} {exc}"
            return {_HOLE: exc.path, "type": exc.type_name}

    def _end(self, end: str, outcome: Outcome, member: str = "", encode: Any = None, value: Any = None) -> None:
        if not self.is_ended:
            self.is_ended = True
            guard.guarded("recording a generator", self._close, end, outcome, member, encode, value)

    def _close(self, end: str, outcome: Outcome, member: str, encode: Any, value: Any) -> None:
        response: dict[str, Any] = {"items": self._items, "end": end}
        if member:
            response[member] = self._encode(member, encode, value)
        if self._sent:
            response["sent"] = self._sent
        spec = self._crossing.spec
        redactor = self._crossing.run.redactor
        clean = redactor.value({**response, "items": redactor.items(self._items, spec.redactions)}, spec.redactions)
        if isinstance(clean, dict):  # values that the agent sent are compared, and never given back to it
            spec.raw = {**response, **({"sent": clean.get("sent")} if self._sent else {})}
        self._crossing.close(outcome, dump(clean))


class _Served:
    """A recorded generator, item by item."""

    def __init__(self, crossing: Crossing) -> None:
        self.crossing = crossing
        self._response = load_response(crossing)
        self._items: list[Any] = self._response.get("items", [])
        self._sent: dict[str, Any] = self._response.get("sent", {})
        self.position = 0
        """How many items have been given."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed early when it was recorded."""
        return bool(self._response.get("end") == "closed")

    @property
    def has_item(self) -> bool:
        """Whether another item was recorded."""
        return self.position < len(self._items)

    def next_item(self) -> Any:
        """The next recorded item. Raises: ReplayMiss if it can't be rebuilt."""
        encoded = self._checked(self._items[self.position], f"item {self.position}")
        printed.write(self.crossing, self.position)
        self.position += 1
        self.crossing.answers.read_part(self.crossing, self.position)
        return decode_value(self.crossing, encoded)

    def resumed(self, sent: Any, thrown: BaseException | None = None) -> None:
        """Compare the value sent in at the latest item with the recorded one. Raises: ReplayMiss if it differs."""
        at = self.position - 1
        if at < 0:
            return
        try:
            now = _encode_sent(sent, thrown)
        except Unserializable as exc:
            now = {_HOLE: exc.path, "type": exc.type_name}
        now = self.crossing.run.redactor.value(now)
        if now != self._sent.get(str(at)):
            self.crossing.answers.check_sent(self.crossing, f"sent[{at}]", self._sent.get(str(at)), now)

    def finish(self, thrown: BaseException | None = None) -> Any:
        """The generator's return value. Raises: the recorded exception, or ReplayMiss if it was closed early."""
        error = self.find_error(thrown)
        if error is not None:
            raise error
        return decode_value(self.crossing, self._checked(self._response.get("value"), "value"))

    def find_error(self, thrown: BaseException | None = None) -> BaseException | None:
        """The exception raised after the last item; `thrown` itself if the recorded body let it through."""
        printed.write(self.crossing, self.position)
        if self._response.get("end") == "closed":
            return self.crossing.answers.overrun(self.crossing)
        if "error" not in self._response:
            return None
        error = decode_error(self.crossing, self._checked(self._response["error"], "exception"))
        is_same = thrown is not None and type(thrown) is type(error) and thrown.args == error.args
        return thrown if is_same else error

    def close(self) -> None:
        """Close the generator here. Raises: the recorded exception, if closing it here raised one."""
        if self._response.get("end") == "closed" and "error" in self._response and not self.has_item:
            raise decode_error(self.crossing, self._checked(self._response["error"], "exception"))

    def _checked(self, encoded: Any, what: str) -> Any:
        if isinstance(encoded, dict) and _HOLE in encoded:
            raise self.crossing.answers.at_hole(
                f"{what} of call {self.crossing.number} ({self.crossing.boundary}) was not recorded: "
                f"{encoded.get('type')} at {encoded[_HOLE]}"
            )
        return encoded


def call_generator(
    describe: Callable[[], FunctionCall], live: Callable[[], Generator[Any, Any, Any]]
) -> Generator[Any, Any, Any]:
    """Run or serve a generator; `send`, `throw` and `close` reach the live body."""
    crossing = begin_function_call(describe)
    if crossing is None:
        return (yield from live())
    if crossing.served is not None:
        return (yield from _serve(_Served(crossing)))
    recorded = _Recorded(crossing)
    generator = live() if crossing.spec.live is None else crossing.spec.live()
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            with crossing:
                item = generator.send(sent) if thrown is None else generator.throw(thrown)
        except StopIteration as stop:
            recorded.completed(stop.value)
            return stop.value
        except BaseException as exc:
            recorded.failed(exc)
            raise
        recorded.yielded(item)
        sent = thrown = None
        try:
            sent = yield item
        except GeneratorExit:
            try:
                if is_collecting():
                    call_in_own_context(_close, crossing, generator)
                else:
                    _close(crossing, generator)
            except BaseException as exc:
                recorded.closed(exc)
                raise
            recorded.closed()
            raise
        except BaseException as exc:  # noqa: BLE001 -- handed to the live body, which decides
            thrown = exc
        recorded.resumed(sent, thrown)


def _close(crossing: Crossing, generator: Generator[Any, Any, Any]) -> None:
    with crossing:
        generator.close()


def _serve(served: _Served) -> Generator[Any, Any, Any]:
    thrown: BaseException | None = None
    while served.has_item:
        sent = thrown = None
        wait_item(served.crossing, served.position)
        item = served.next_item()
        try:
            sent = yield item
        except ReplayMiss:
            raise
        except GeneratorExit:
            end_stream(served.crossing)
            served.close()
            raise
        except BaseException as exc:  # noqa: BLE001 -- the recording says how the body reacted
            thrown = exc
        served.resumed(sent, thrown)
    wait_turn(served.crossing)
    return served.finish(thrown)


class _RecordedAsync:
    """A live async generator that is recorded, with `asend`, `athrow` and `aclose`."""

    def __init__(self, crossing: Crossing, generator: AsyncGenerator[Any, Any]) -> None:
        self._crossing = crossing
        self._generator = generator
        self._recorded = _Recorded(crossing)

    async def asend(self, sent: Any) -> Any:
        """Resume the body with a value."""
        self._recorded.resumed(sent)
        return await self._step(self._generator.asend(sent))

    async def athrow(self, thrown: BaseException) -> Any:
        """Resume the body with an exception."""
        self._recorded.resumed(None, thrown)
        return await self._step(self._generator.athrow(thrown))

    async def _step(self, step: Any) -> Any:
        try:
            with self._crossing:
                item = await step
        except StopAsyncIteration:
            self._recorded.completed(None)
            raise
        except BaseException as exc:
            self._recorded.failed(exc)
            raise
        self._recorded.yielded(item)
        return item

    async def aclose(self) -> None:
        """Close the body where it is."""
        try:
            with self._crossing:
                await self._generator.aclose()
        except BaseException as exc:
            self._recorded.closed(exc)
            raise
        self._recorded.closed()


class _ServedAsync:
    """A recorded async generator, with the `asend`, `athrow` and `aclose` of a live one."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._served = _Served(crossing)

    async def asend(self, sent: Any) -> Any:
        """The next item."""
        self._served.resumed(sent)
        return await self._step(None)

    async def athrow(self, thrown: BaseException) -> Any:
        """The next item, if the recorded body went on after this exception."""
        if isinstance(thrown, ReplayMiss):
            raise thrown
        self._served.resumed(None, thrown)
        return await self._step(thrown)

    async def _step(self, thrown: BaseException | None) -> Any:
        if self._served.has_item:
            await await_item(self._crossing, self._served.position)
            return self._served.next_item()
        recorded = self._crossing.served
        if recorded is not None and recorded.outcome != Outcome.CANCELLED.value:
            await await_turn(self._crossing)
        error = self._served.find_error(thrown)
        if is_cancellation(error) and error is not thrown:
            await await_cancellation(self._crossing)
        if error is not None:
            raise error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the generator here."""
        await self._await_close()
        self._served.close()

    async def _await_close(self) -> None:
        recorded = self._crossing.served
        is_here = recorded is not None and len(recorded.clocks) == self._served.position
        if is_here and self._served.is_closed:
            await await_turn(self._crossing)
        end_stream(self._crossing)


def open_async_generator(describe: Callable[[], FunctionCall], live: Callable[[], AsyncGenerator[Any, Any]]) -> Any:
    """An async generator to run or serve: an object with `asend`, `athrow` and `aclose`."""
    crossing = begin_function_call(describe)
    if crossing is None:
        return live()
    if crossing.served is not None:
        return _ServedAsync(crossing)
    return _RecordedAsync(crossing, live() if crossing.spec.live is None else crossing.spec.live())
