"""A gRPC call in a recording, and the call objects rebuilt from it, which have no connection."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, NamedTuple

from spanreplay import codec
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import SpanreplayError, Unserializable
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.run import Run
from spanreplay.runtime.wire.binary import clean_sent
from spanreplay.runtime.wire.http_wire import describe_request
from spanreplay.runtime.wire.timeouts import TIMEOUT, read_total_timeout
from spanreplay.seams.transport.conversation import Conversation

_RENDEZVOUS = "_MultiThreadedRendezvous"


def describe_rpc(
    run: Run, target: str, method: str, request: bytes | None, metadata: Any = None, limit: Any = None
) -> Spec:
    """Describe the call of an RPC; `request` is None if the agent streams, `limit` if it has no deadline."""
    pairs = [(str(k), base64.b64encode(v).decode() if isinstance(v, bytes) else str(v)) for k, v in metadata or ()]
    headers = [("content-type", "application/grpc"), *pairs]
    spec, _ = describe_request(run, "POST", f"grpc://{target.rpartition('/')[2]}{method}", headers, request or b"")
    spec.kind, spec.name, spec.effect = Kind.HTTP.value, f"grpc {method.lstrip('/')}", Effect.WRITE.value
    spec.meta[TIMEOUT] = {} if limit is None else read_total_timeout(limit)
    return spec


def encode_metadata(metadata: Any) -> list[list[Any]]:
    """Return the pairs of gRPC metadata as JSON."""
    return [[str(k), {"b64": base64.b64encode(v).decode()} if isinstance(v, bytes) else v] for k, v in metadata or ()]


class _Metadatum(NamedTuple):
    key: str
    value: Any


def decode_metadata(pairs: Any) -> tuple[_Metadatum, ...]:
    """Return the pairs of `encode_metadata`, in a type that looks like grpc's own."""
    return tuple(_Metadatum(k, base64.b64decode(v["b64"]) if isinstance(v, dict) else v) for k, v in pairs or ())


def describe_status(code: Any, details: Any, initial: Any, trailing: Any, debug: Any = None) -> dict[str, Any]:
    """Return the status of an ended RPC as JSON."""
    return {
        "code": code.name if code is not None else "UNKNOWN",
        "details": details or "",
        "initial": encode_metadata(initial),
        "trailing": encode_metadata(trailing),
        "debug": debug or "",
    }


def _clean_metadata(conversation: Conversation, pairs: list[list[Any]]) -> list[list[Any]]:
    """Remove secrets from binary metadata values; text values are redacted with the rest of the status."""
    redact, counts = conversation.crossing.run.redactor, conversation.crossing.spec.redactions
    cleaned = []
    for key, value in pairs:
        if isinstance(value, dict):
            clean = clean_sent(base64.b64decode(value["b64"]), redact, counts)
            value = {"b64": base64.b64encode(clean).decode("ascii")}
        cleaned.append([key, value])
    return cleaned


def finish(conversation: Conversation, exc: BaseException | None, status: dict[str, Any]) -> None:
    """Record the end of an RPC."""
    for name in ("initial", "trailing"):
        status = {**status, name: _clean_metadata(conversation, status[name])} if name in status else status
    if status.get("code") == "OK":
        conversation.finish("complete", extra=status)
        return
    is_cancelled = status.get("code") == "CANCELLED" or not isinstance(exc, Exception | None)
    error: dict[str, Any] = {"type": type(exc).__qualname__ if exc is not None else "", "message": str(exc or "")}
    if not status and exc is not None:
        try:
            error["value"] = codec.encode_exception(exc)
        except Unserializable:
            error["type"] = type(exc).__name__
    outcome = Outcome.CANCELLED if is_cancelled else Outcome.ERROR
    conversation.finish("closed" if is_cancelled else "error", error=error, extra=status, outcome=outcome)


def rebuild_error(grpc: Any, conversation: Conversation) -> BaseException:
    """Rebuild the exception that the recorded RPC raised."""
    error, status = conversation.error, conversation.extra
    if not status:
        try:
            return codec.decode_exception(error["value"])
        except (SpanreplayError, ValueError, KeyError, TypeError):
            return conversation.broken(f"the recorded {error.get('type')} can't be rebuilt")
    code = getattr(grpc.StatusCode, status["code"], grpc.StatusCode.UNKNOWN)
    initial, trailing = decode_metadata(status["initial"]), decode_metadata(status["trailing"])
    if error.get("type") == "AioRpcError":
        make = grpc.aio.Metadata.from_tuple
        failure: BaseException = grpc.aio.AioRpcError(
            code,
            make(tuple(map(tuple, initial))),
            make(tuple(map(tuple, trailing))),
            status["details"],
            status["debug"],
        )
        return failure
    state = grpc._channel._RPCState((), initial, trailing, code, status["details"])
    state.debug_error_string = status["debug"]
    if error.get("type") == _RENDEZVOUS:
        rendezvous: BaseException = grpc._channel._MultiThreadedRendezvous(state, None, None, None)
        return rendezvous
    inactive: BaseException = grpc._channel._InactiveRpcError(state)
    return inactive


class _Served:
    """Common base of both served calls."""

    def __init__(self, grpc: Any, conversation: Conversation, decode: Callable[[Any], Any]) -> None:
        self._grpc = grpc
        self._conversation = conversation
        self._decode = decode
        self._is_cancelled = False
        self._is_over = False
        self._callbacks: list[Callable[[Any], Any]] = []

    @property
    def _code(self) -> Any:
        status = self._conversation.extra
        return getattr(self._grpc.StatusCode, status.get("code", "UNKNOWN"), self._grpc.StatusCode.UNKNOWN)

    @property
    def _is_ok(self) -> bool:
        return self._conversation.end == "complete"

    def _end(self) -> BaseException | None:
        """Note the end of the messages; return the exception to raise now, if any."""
        self._over()
        if self._is_ok:
            return None
        if not self._conversation.error:
            return self._conversation.overrun()
        return rebuild_error(self._grpc, self._conversation)

    def _over(self) -> None:
        self._is_over = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def cancel(self) -> bool:
        self._is_cancelled = True
        self._over()
        return True

    def cancelled(self) -> bool:
        return self._is_cancelled

    def done(self) -> bool:
        return self._is_over

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        if self._is_over:
            callback(self)
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        return None


class ServedCall(_Served):
    """A synchronous RPC from the recording: response, future and iterator in one, like grpc's own."""

    def __init__(
        self, grpc: Any, conversation: Conversation, decode: Callable[[Any], Any], requests: Iterator[bytes] | None
    ) -> None:
        super().__init__(grpc, conversation, decode)
        self._requests = requests
        self._result: list[Any] = []
        self._failure: BaseException | None = None
        self._lock = make_lock()

    def _say(self) -> None:
        while self._requests is not None and self._conversation.owed:
            request = next(self._requests, None)
            if request is None:
                return
            self._conversation.say(request)

    def __iter__(self) -> ServedCall:
        return self

    def __next__(self) -> Any:
        with self._lock:
            self._say()
            raw = self._conversation.hear()
            if raw is not None:
                return self._decode(raw)
            failure = self._end()
            raise failure if failure is not None else StopIteration

    next = __next__

    def result(self, timeout: float | None = None) -> Any:
        with self._lock:
            if not self._result and self._failure is None:
                try:
                    self._result.append(next(self))
                    self._over()
                except BaseException as exc:  # noqa: BLE001 -- a future keeps whatever was raised
                    self._failure = exc
            if self._failure is not None:
                raise self._failure
            return self._result[0]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            self.result()
        except BaseException as exc:  # noqa: BLE001 -- a future's exception is a value
            return exc
        return None

    def traceback(self, timeout: float | None = None) -> Any:
        exc = self.exception()
        return exc.__traceback__ if exc is not None else None

    def running(self) -> bool:
        return not self._is_over

    def is_active(self) -> bool:
        return not self._is_over

    def add_callback(self, callback: Callable[[], Any]) -> bool:
        self.add_done_callback(lambda _: callback())
        return True

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return str(self._conversation.extra.get("details", ""))

    def initial_metadata(self) -> Any:
        return decode_metadata(self._conversation.extra.get("initial"))

    def trailing_metadata(self) -> Any:
        return decode_metadata(self._conversation.extra.get("trailing"))

    def debug_error_string(self) -> str:
        return str(self._conversation.extra.get("debug", ""))


class ServedAioCall(_Served):
    """An asynchronous RPC from the recording; awaitable, iterable, readable and writable."""

    def __init__(
        self,
        grpc: Any,
        conversation: Conversation,
        decode: Callable[[Any], Any],
        requests: AsyncIterator[bytes] | None,
        encode: Callable[[Any], bytes],
        wait: Callable[[], Any],
    ) -> None:
        super().__init__(grpc, conversation, decode)
        self._requests = requests
        self._encode = encode
        self._wait = wait
        self._result: list[Any] = []

    async def _next(self) -> Any:
        while self._requests is not None and self._conversation.owed:
            request = await anext(self._requests, None)
            if request is None:
                break
            self._conversation.say(request)
        raw = await self._conversation.hear_async()
        if raw is not None:
            return self._decode(raw)
        failure = self._end()
        if failure is not None:
            raise failure
        return self._grpc.aio.EOF

    def __await__(self) -> Generator[Any, None, Any]:
        return self._unary().__await__()

    async def _unary(self) -> Any:
        if not self._result:
            await self._wait()
            self._result.append(await self._next())
            self._over()
        return self._result[0]

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self._next()) is not self._grpc.aio.EOF:
            yield message

    async def read(self) -> Any:
        return await self._next()

    async def write(self, request: Any) -> None:
        self._conversation.say(self._encode(request))

    async def done_writing(self) -> None:
        return

    async def wait_for_connection(self) -> None:
        return

    async def code(self) -> Any:
        return self._code

    async def details(self) -> str:
        return str(self._conversation.extra.get("details", ""))

    async def debug_error_string(self) -> str:
        return str(self._conversation.extra.get("debug", ""))

    async def initial_metadata(self) -> Any:
        return self._metadata("initial")

    async def trailing_metadata(self) -> Any:
        return self._metadata("trailing")

    def _metadata(self, name: str) -> Any:
        return self._grpc.aio.Metadata(*map(tuple, decode_metadata(self._conversation.extra.get(name))))
