"""Part of the datagram seam: endpoints that the agent's code makes with `loop.create_datagram_endpoint`.

Datagrams that an endpoint sends go through its socket, and are calls like any other datagram. Events that its protocol
receives are parts of a stream, as with asyncio's programs: in a replay, a transport without a bound socket delivers the
same events in the same order.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any, Final

from spanreplay import codec
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Effect, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.model.json_text import dump
from spanreplay.runtime.caller.caller import between
from spanreplay.runtime.calls.function_calls import (
    close_error,
    decode_error,
    describe_function_call,
    load_response,
)
from spanreplay.runtime.calls.open_call import Crossing, begin
from spanreplay.runtime.calls.turns import await_turn, end_stream
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.sockets.datagrams import State, records, states
from spanreplay.seams.machine.sockets.socket_askers import BY_AGENT, BY_LIBRARY, who_asks
from spanreplay.seams.machine.sockets.socket_calls import describe

_DATA, _ERROR = "data", "error"
_NAMES: Final = ("sockname", "peername")
_PARAMETERS: Final = ("local_addr", "remote_addr")


class _Heard(asyncio.DatagramProtocol):
    """Wrap the agent's protocol while recording, and note the events it receives."""

    def __init__(self, protocol: Any, crossing: Crossing, remote: Any, context: Context) -> None:
        self._protocol = protocol
        self._crossing = crossing
        self._remote = remote
        self._context = context
        self._steps: list[list[Any]] = []
        self._bytes = 0
        self._is_closed = False
        self.extra: dict[str, Any] = {}
        crossing.on_abandon = self.close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        """Call the agent's protocol outside the call: the agent makes its own calls there."""
        self._context.copy().run(function, *args)

    def _follow(self, transport: Any) -> None:
        self.extra = {name: transport.get_extra_info(name) for name in _NAMES}
        sock = getattr(transport.get_extra_info("socket"), "_sock", None)
        if sock is not None:
            states[sock] = State(BY_AGENT, self._remote, is_heard=False)

    def _note(self, what: str, value: Any, address: Any) -> None:
        if self._is_closed:
            return
        self._bytes += len(value) if what == _DATA else 0
        if self._bytes > config.BODY_BYTES_MAX:
            self._crossing.spec.hole = f"the endpoint received more than {config.BODY_BYTES_MAX} bytes"
            return
        ms = (ids.now_ns() - self._crossing.start_ns) // 1_000_000
        self._steps.append([ms, what, codec.encode(value) if what == _DATA else codec.encode_exception(value), address])
        self._crossing.mark()

    def close(self) -> None:
        """End the record: no more events come."""
        if not self._is_closed:
            self._is_closed = True
            guard.guarded("recording an endpoint", self._record)

    def _record(self) -> None:
        crossing = self._crossing
        steps = [[ms, what, value, codec.encode(address)] for ms, what, value, address in self._steps]
        extra = {name: codec.encode(self.extra.get(name)) for name in _NAMES}
        value = crossing.run.redactor.value({"steps": steps, **extra}, crossing.spec.redactions)
        crossing.close(Outcome.OK, dump({"endpoint": value}))

    def connection_made(self, transport: Any) -> None:
        guard.guarded("recording an endpoint", self._follow, transport)
        self._tell(self._protocol.connection_made, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        guard.guarded("recording a datagram", self._note, _DATA, data, addr)
        self._tell(self._protocol.datagram_received, data, addr)

    def error_received(self, exc: Exception) -> None:
        guard.guarded("recording a datagram", self._note, _ERROR, exc, None)
        self._tell(self._protocol.error_received, exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()
        self._tell(self._protocol.connection_lost, exc)

    def pause_writing(self) -> None:
        self._tell(self._protocol.pause_writing)

    def resume_writing(self) -> None:
        self._tell(self._protocol.resume_writing)


class ServedEndpoint(asyncio.DatagramTransport):
    """Stands for an endpoint that was not bound."""

    def __init__(self, loop: Any, protocol: Any, sock: Any, value: Mapping[str, Any], address: Any) -> None:
        extra = {name: codec.decode(value[name]) for name in _NAMES}
        super().__init__({"socket": sock, **extra})
        self._loop = loop
        self._protocol = protocol
        self._sock = sock
        self._address = address
        self._steps = value["steps"]
        self._is_closing = False
        self._context = copy_context()
        self._owner = asyncio.current_task()
        self.playing: Any = None

    def sendto(self, data: Any, addr: Any = None) -> None:
        """Send through the socket, whose seam compares the datagram."""
        if self._address and addr not in (None, self._address):
            raise ValueError(f"Invalid address: must be None or {self._address}")
        if self._is_closing:
            return
        try:
            if self.get_extra_info("peername"):
                self._sock.send(data)
            else:
                self._sock.sendto(data, addr)
        except OSError as exc:
            self._protocol.error_received(exc)

    async def play(self, crossing: Crossing) -> None:
        """Deliver the recorded events to the protocol, each at its turn."""
        try:
            for part, (ms, what, value, address) in enumerate(self._steps):
                await await_turn(crossing, part, ms)
                if what == _DATA:
                    self._tell(self._protocol.datagram_received, codec.decode(value), codec.decode(address))
                else:
                    self._tell(self._protocol.error_received, decode_error(crossing, value))
        except ReplayMiss:  # raised in the agent's protocol: nobody awaits this task, and the agent might wait forever
            if self._owner is not None:
                self._owner.cancel()
        finally:
            end_stream(crossing)

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        """Call the agent's protocol in the lane that made the endpoint."""
        self._context.copy().run(function, *args)

    def close(self) -> None:
        """Stop delivering events."""
        if not self._is_closing:
            self._is_closing = True
            self.playing.cancel()
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._sock.close()
        self._tell(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """Same as `close`."""
        self.close()

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._is_closing

    def get_protocol(self) -> Any:
        """Return the agent's protocol."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Replace the agent's protocol."""
        self._protocol = protocol

    def get_write_buffer_size(self) -> int:
        """Always 0: nothing waits to be sent."""
        return 0


between.add(ServedEndpoint.sendto.__code__)  # its caller is the one who uses the socket


async def _live(
    real: Callable[..., Any], loop: Any, crossing: Crossing, factory: Any, options: Mapping[str, Any]
) -> Any:
    context = copy_context()

    def make() -> _Heard:
        return _Heard(context.copy().run(factory), crossing, options.get("remote_addr"), context)

    try:
        with crossing:
            transport, heard = await real(loop, make, **options)
    except BaseException as exc:
        close_error(crossing, exc)
        raise
    return transport, heard._protocol


def _serve(module: Any, loop: Any, crossing: Crossing, factory: Any, options: Mapping[str, Any]) -> Any:
    import socket

    response = load_response(crossing)
    if "error" in response:
        end_stream(crossing)
        raise decode_error(crossing, response["error"])
    value = response["endpoint"]
    sock = options.get("sock")
    if sock is None:
        sock = socket.socket(int(options.get("family") or socket.AF_INET), socket.SOCK_DGRAM)
    states[sock] = State(BY_AGENT, options.get("remote_addr"), is_heard=False)
    protocol = copy_context().run(factory)
    endpoint = ServedEndpoint(loop, protocol, sock, value, options.get("remote_addr"))
    copy_context().run(protocol.connection_made, endpoint)
    endpoint.playing = loop.create_task(endpoint.play(crossing))
    return endpoint, protocol


def install(module: Any, patches: Patches) -> None:
    """Patch asyncio's event loops."""
    cls = module.base_events.BaseEventLoop
    real = cls.create_datagram_endpoint

    async def create_datagram_endpoint(self: Any, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        if not records(who_asks(sys._getframe(1)) or BY_LIBRARY):
            return await real(self, protocol_factory, *args, **kwargs)
        options = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
        shown = {name: value for name, value in options.items() if value and name != "sock"}
        crossing = begin(describe_function_call, lambda: describe("create_datagram_endpoint", shown, Effect.WRITE))
        if crossing is None:
            return await real(self, protocol_factory, *args, **kwargs)
        if crossing.served is not None:
            return _serve(module, self, crossing, protocol_factory, options)
        return await _live(real, self, crossing, protocol_factory, options)

    create_datagram_endpoint.__qualname__ = real.__qualname__
    create_datagram_endpoint.__doc__ = real.__doc__
    patches.replace(cls, real.__name__, create_datagram_endpoint)
