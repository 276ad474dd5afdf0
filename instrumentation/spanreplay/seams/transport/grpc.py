"""Seam: gRPC client calls of `grpc` and `grpc.aio`, at the channel's methods.

Each call goes through its own method object, whose serialiser and deserialiser note the bytes, so the agent holds
grpc's own call object. gRPC's sockets are not Python's: in a replay no call reaches the channel. Calls to spanreplay's
own service are not a boundary.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.calls.turns import await_turn, end_stream, wait_turn
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.transport.conversation import GOT, SENT, Conversation, begin_conversation
from spanreplay.seams.transport.grpc_wires import ServedAioCall, ServedCall, describe_rpc, describe_status, finish

_SHAPES: Final = {
    "unary_unary": "UnaryUnaryMultiCallable",
    "unary_stream": "UnaryStreamMultiCallable",
    "stream_unary": "StreamUnaryMultiCallable",
    "stream_stream": "StreamStreamMultiCallable",
}
_OPTIONS: Final = ("timeout", "metadata")
"""The first parameters of a call after its request."""
_OURS: Final = "/spanreplay.v1."
_TELEMETRY: Final = "/opentelemetry.proto.collector."


def _same(message: Any) -> Any:
    return message


class _Method:
    """One method of a channel."""

    def __init__(self, grpc: Any, make: Any, channel: Any, shape: str, args: Any, kwargs: Any) -> None:
        names = ("method", "request_serializer", "response_deserializer")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        self._grpc = grpc
        self._make = make
        self._plain = make(*args, **kwargs)
        self._target = _target(channel)
        self._takes_stream, self._gives_stream = (part == "stream" for part in shape.split("_"))
        method = given["method"]
        self._name = method.decode() if isinstance(method, bytes) else str(method)
        self._encode: Callable[[Any], bytes] = given.get("request_serializer") or _same
        self._decode: Callable[[bytes], Any] = given.get("response_deserializer") or _same

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def _begin(self, request: Any, args: Any, kwargs: Any) -> Conversation | None:
        if active_run() is None or self._name.startswith((_OURS, _TELEMETRY)):
            return None
        raw = None if self._takes_stream else self._encode(request)
        limit, metadata = (kwargs.get(name, args[at] if len(args) > at else None) for at, name in enumerate(_OPTIONS))
        return begin_conversation(lambda run: describe_rpc(run, self._target, self._name, raw, metadata, limit))

    def _is_black_hole(self) -> bool:
        run = active_run()
        return run is not None and run.resolver.swallows_telemetry and self._name.startswith(_TELEMETRY)

    def _tee(self, conversation: Conversation) -> Any:
        """Return this method for one call, with message bytes noted."""

        def encode(message: Any) -> bytes:
            raw = self._encode(message)
            if self._takes_stream:
                conversation.note(SENT, raw)
            return raw

        def decode(raw: bytes) -> Any:
            conversation.note(GOT, raw)
            return self._decode(raw)

        return self._make(self._name, encode, decode)


class _SyncMethod(_Method):
    def __call__(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._gives_stream:
            return self._start(request, args, kwargs, "__call__")
        return self.with_call(request, *args, **kwargs)[0]

    def with_call(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the response and the call."""
        if self._is_black_hole():
            return self._decode(b""), None
        conversation = self._begin(request, args, kwargs)
        if conversation is None:
            return self._plain.with_call(request, *args, **kwargs)
        if conversation.is_served:
            wait_turn(conversation.crossing)
            call = self._serve(conversation, request)
            return call.result(), call
        try:
            with conversation.live():
                response, call = self._tee(conversation).with_call(request, *args, **kwargs)
        except BaseException as exc:
            guard.guarded("recording a failure", _finish_sync, conversation, exc, exc)
            raise
        guard.guarded("recording a response", _finish_sync, conversation, None, call)
        return response, call

    def future(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the call, whose result is the response."""
        return self._start(request, args, kwargs, "future")

    def _start(self, request: Any, args: Any, kwargs: Any, how: str) -> Any:
        conversation = self._begin(request, args, kwargs)
        if conversation is None:
            return getattr(self._plain, how)(request, *args, **kwargs)
        if conversation.is_served:
            end_stream(conversation.crossing)
            return self._serve(conversation, request)
        try:
            with conversation.live():
                call = getattr(self._tee(conversation), how)(request, *args, **kwargs)
        except BaseException as exc:
            guard.guarded("recording a failure", _finish_sync, conversation, exc, None)
            raise
        # The single-threaded kind doesn't report its end: its record ends with the run
        with contextlib.suppress(NotImplementedError):
            call.add_done_callback(lambda done: guard.guarded("recording an end", _ended_sync, conversation, done))
        return call

    def _serve(self, conversation: Conversation, request: Any) -> ServedCall:
        requests: Iterator[bytes] | None = map(self._encode, request) if self._takes_stream else None
        if self._gives_stream:
            conversation.follow(is_said_at_once=True)
        return ServedCall(self._grpc, conversation, self._decode, requests)


def _ended_sync(conversation: Conversation, call: Any) -> None:
    _finish_sync(conversation, None if call.code().name == "OK" else call, call)


def _finish_sync(conversation: Conversation, exc: BaseException | None, call: Any) -> None:
    if not hasattr(call, "trailing_metadata"):
        finish(conversation, exc, {})
        return
    # `debug_error_string()` of a call that ended well blocks forever
    debug = getattr(getattr(call, "_state", None), "debug_error_string", "")
    debug = debug.decode("utf-8", "replace") if isinstance(debug, bytes) else debug
    initial, trailing = _known(call, "initial_metadata"), _known(call, "trailing_metadata")
    finish(conversation, exc, describe_status(call.code(), call.details(), initial, trailing, debug))


def _known(call: Any, name: str) -> Any:
    """Return an ended call's metadata so far; its getter would block forever in the thread that delivers it."""
    state = getattr(call, "_state", None)
    return (getattr(state, name) or ()) if hasattr(state, name) else getattr(call, name)()


class _AioMethod(_Method):
    def __call__(self, request: Any = None, *args: Any, **kwargs: Any) -> Any:
        if "request_iterator" in kwargs:
            request = kwargs.pop("request_iterator")
        conversation = None if self._is_black_hole() else self._begin(request, args, kwargs)
        if conversation is None:
            return self._plain(request, *args, **kwargs)
        if conversation.is_served:
            return self._serve(conversation, request)
        with conversation.live():
            call = self._tee(conversation)(request, *args, **kwargs)
        call.add_done_callback(lambda done: self._ended(conversation, done))
        return call

    def _serve(self, conversation: Conversation, request: Any) -> ServedAioCall:
        crossing = conversation.crossing
        is_unary = not self._gives_stream and not self._takes_stream

        async def wait() -> None:
            if is_unary:
                await await_turn(crossing)

        if not is_unary:
            end_stream(crossing)
        if self._gives_stream:
            conversation.follow(is_said_at_once=True)
        requests = None if request is None or not self._takes_stream else self._iterate(request)
        return ServedAioCall(self._grpc, conversation, self._decode, requests, self._encode, wait)

    async def _iterate(self, requests: Any) -> AsyncIterator[bytes]:
        if hasattr(requests, "__aiter__"):
            async for request in requests:
                yield self._encode(request)
        else:
            for request in requests:
                yield self._encode(request)

    def _ended(self, conversation: Conversation, call: Any) -> None:
        guard.guarded("recording an end", self._note_end, conversation, call)

    def _note_end(self, conversation: Conversation, call: Any) -> None:
        code, details = _at_once(call.code()), _at_once(call.details())
        initial, trailing = _at_once(call.initial_metadata()), _at_once(call.trailing_metadata())
        debug = _at_once(call.debug_error_string()) if hasattr(call, "debug_error_string") else ""
        status = describe_status(code, details, initial, trailing, debug)
        failure = None
        if code is None or code.name != "OK":
            failure = self._grpc.aio.AioRpcError(code, initial, trailing, details, debug)
        # The last message may not be deserialised yet: its reader continues in one of the loop's next iterations
        conversation.crossing.on_abandon = lambda: finish(conversation, failure, status)
        _in_turns(_TURNS, conversation.crossing.on_abandon)


_TURNS: Final = 8


def _in_turns(turns: int, function: Callable[[], None]) -> None:
    if turns:
        asyncio.get_running_loop().call_soon(_in_turns, turns - 1, function)
    else:
        function()


def _at_once(coroutine: Any) -> Any:
    """Return the result of a coroutine that completes synchronously; None if it has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    return None


def _target(channel: Any) -> str:
    return str(getattr(channel, "_spanreplay_target", ""))


def _note_target(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    channel._spanreplay_target = str(args[0] if args else kwargs.get("target", ""))
    return wrapped(*args, **kwargs)


def _is_replay() -> bool:
    run = active_run()
    return run is not None and not run.resolver.connects


class GrpcSeam:
    """The seam for the modules `grpc` and `grpc.aio`."""

    def __init__(self, grpc: Any) -> None:
        self._grpc = grpc

    def install(self, patches: Patches) -> None:
        """Wrap both kinds of channel. Raises: AttributeError if they are not as expected."""
        import grpc._channel
        import grpc.aio

        for name in ("_RPCState", "_InactiveRpcError", "_MultiThreadedRendezvous"):
            getattr(grpc._channel, name)
        self._wrap(patches, grpc._channel.Channel, self._grpc, _SyncMethod)
        self._wrap(patches, grpc.aio._channel.Channel, grpc.aio, _AioMethod)
        patches.wrap(grpc._channel.Channel, "subscribe", self._subscribe)
        patches.wrap(grpc.aio._channel.Channel, "channel_ready", self._channel_ready)

    def _wrap(self, patches: Patches, channel: Any, module: Any, method_class: type[_Method]) -> None:
        patches.wrap(channel, "__init__", _note_target)
        for shape, base in _SHAPES.items():
            # grpc's own base class, so that interceptors and isinstance recognise it
            kind = type(f"Recorded{base}", (method_class, getattr(module, base)), {})
            patches.wrap(channel, shape, self._maker(shape, kind))

    def _maker(self, shape: str, kind: Any) -> Any:
        def make(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
            return kind(self._grpc, wrapped, channel, shape, args, kwargs)

        return make

    def _subscribe(self, wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
        if not _is_replay():
            return wrapped(*args, **kwargs)
        callback = args[0] if args else kwargs["callback"]
        callback(self._grpc.ChannelConnectivity.READY)
        return None

    async def _channel_ready(self, wrapped: Any, channel: Any, args: Any, kwargs: Any) -> None:
        if not _is_replay():
            await wrapped(*args, **kwargs)


def install(module: Any, patches: Patches) -> None:
    """Patch grpc."""
    GrpcSeam(module).install(patches)
