"""Part of the socket seam: the transports of connections of event loops, recorded and replayed."""

from __future__ import annotations

import asyncio
import sys
from asyncio.trsock import TransportSocket
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.caller.caller import between, delivering, enters_thread
from spanreplay.runtime.calls.function_calls import (
    begin_function_call,
    close_error,
    decode_error,
    decode_value,
    load_response,
)
from spanreplay.runtime.calls.open_call import Crossing
from spanreplay.runtime.calls.turns import await_turn
from spanreplay.runtime.lanes import Lane, current_lane, inside_lane
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.sockets import streams
from spanreplay.seams.machine.sockets.socket_calls import WAITING, copy_bytes, describe
from spanreplay.seams.machine.sockets.streams import Stream

_EOF, _LOST = "eof", "lost"
FACTS: Final = ("peername", "sockname", "cipher", "compression", "peercert")
"""What a transport says about its connection (`get_extra_info`)."""
ASKED: Final = ("version", "selected_alpn_protocol")
"""What its `ssl_object` says besides."""
_SHOWN_AS: Final = (
    ("asyncio.selector_events", "_SelectorSocketTransport"),
    ("asyncio.sslproto", "_SSLProtocolTransport"),
)
"""The classes that a connection's stand-in passes for: module and name, without and with encryption."""


class Link:
    """One connection: where its events are calls, and for whom they are."""

    def __init__(self, run: Run, address: Any, protocol: Any) -> None:
        self.run = run
        self.stream = Stream(run.run_id, address, is_of_process=False)
        self.lane: Lane = current_lane(run.root_lane).child("connection")
        self.protocol = protocol
        self._context: Context = copy_context()
        self._received_in = self._context.copy()
        self._is_handing_over = False

    def tell(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the program's protocol outside the call in which the connection was made, in a Context of its own."""
        return self._context.copy().run(self.call, function, *args)

    def hand_over(self, function: Callable[..., Any], *args: Any) -> Any:
        """`tell` of what was received: always in the same Context, as an event loop does."""
        if self._is_handing_over:  # a Context is entered only once
            return self.call(function, *args)
        self._is_handing_over = True
        try:
            return self._received_in.run(self.call, function, *args)
        finally:
            self._is_handing_over = False

    @staticmethod
    def call(function: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the protocol."""
        return function(*args)

    def deliver(self, data: bytes) -> None:
        """Give received data to the program's protocol."""
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.hand_over(self.protocol.data_received, data)
            return
        while data:
            buffer = self.hand_over(self.protocol.get_buffer, len(data))
            size = min(len(buffer), len(data))
            memoryview(buffer).cast("B")[:size] = data[:size]
            self.hand_over(self.protocol.buffer_updated, size)
            data = data[size:]

    def begin(self) -> Crossing | None:
        """Begin the call that ends with the next event. Raises: ReplayMiss."""
        return None if self.run.is_ended else self._context.copy().run(self._begin)

    def _begin(self) -> Crossing | None:
        shown = {"from": self.stream.peer}
        with inside_lane(self.lane):
            crossing = begin_function_call(lambda: describe("receive", shown, Effect.READ))
        if crossing is not None:
            crossing.note_opened()
        return crossing


enters_thread(Link.call.__code__)
delivering.add(Link.call.__code__)


class StreamTransport(asyncio.Transport):
    """What both transports have in common: what is written is a call."""

    _start_tls_compatible = True
    _sendfile_compatible = None  # files are written in pieces; the native way would pass by
    _protocol_paused = False

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    def _write(self, data: bytes) -> None:
        """Write to the real transport."""

    def write(self, data: Any) -> None:
        """Write data."""
        sent = copy_bytes(data)
        if sent is None:
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if sent:
            streams.send(self.link.stream, sys._getframe(1), "write", sent, {}, lambda: self._write(sent))

    def writelines(self, list_of_data: Any) -> None:
        """Write several pieces of data."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Whether `write_eof` is possible."""
        return True

    async def encrypt(self, start_tls: Callable[..., Any], sslcontext: Any, **options: Any) -> Any:
        """Start TLS with the loop's own method. Raises: ConnectionError if there is no connection."""
        raise ConnectionError("this connection is replayed: it can't be encrypted live")

    def go_on(self, transport: Any, facts: Mapping[str, Any], protocol: Any) -> StreamTransport:
        """Return the transport on which a connection goes on encrypted."""
        raise NotImplementedError

    def get_protocol(self) -> Any:
        """Return the program's protocol."""
        return self.link.protocol

    def set_protocol(self, protocol: Any) -> None:
        """Replace the program's protocol."""
        self.link.protocol = protocol


between.add(StreamTransport.writelines.__code__)  # its caller is the one who sends


class Heard(asyncio.Protocol):
    """Stands before the program's protocol while recording, and notes each event."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.transport: RecordedTransport | None = None
        self._is_closed_here = False
        """Whether the program has closed the connection: what follows, such as its loss, is no event."""
        self._crossing: Crossing | None = None

    def _wait(self) -> None:
        if self._is_closed_here:
            return
        self._crossing = crossing = guard.guarded("recording a connection", self.link.begin)
        if crossing is not None:
            crossing.on_abandon = lambda: crossing.close(Outcome.CANCELLED, WAITING)

    def _note(self, data: bytes | None, value: Any = None) -> None:
        crossing, self._crossing = self._crossing, None
        if crossing is None:
            return
        if data is not None:
            streams.close_received(crossing, data)
        elif isinstance(value, BaseException):
            close_error(crossing, value)
        else:
            streams.close_event(crossing, value)

    def close(self) -> None:
        """Note that the program closes the connection."""
        crossing, self._crossing, self._is_closed_here = self._crossing, None, True
        if crossing is not None:
            guard.guarded("recording a connection", crossing.abandon)

    def connection_made(self, transport: Any) -> None:
        self.transport = RecordedTransport(transport, self)
        self.link.tell(self.link.protocol.connection_made, self.transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), streams.RECEIVED_MAX):
            piece = data[at : at + streams.RECEIVED_MAX]
            guard.guarded("recording received data", self._note, piece)
            self.link.deliver(piece)
            self._wait()

    def eof_received(self) -> Any:
        guard.guarded("recording the end of a connection", self._note, None, _EOF)
        stays_open = self.link.hand_over(self.link.protocol.eof_received)
        self._wait()
        return stays_open

    def connection_lost(self, exc: Exception | None) -> None:
        guard.guarded("recording the loss of a connection", self._note, None, exc or _LOST)
        self.link.tell(self.link.protocol.connection_lost, exc)

    def pause_writing(self) -> None:
        self.link.tell(self.link.protocol.pause_writing)

    def resume_writing(self) -> None:
        self.link.tell(self.link.protocol.resume_writing)


class RecordedTransport(StreamTransport):
    """Stands before a real transport while recording."""

    def __init__(self, real: Any, heard: Heard) -> None:
        super().__init__(heard.link)
        self.real = real
        self.heard = heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @property  # type: ignore[misc]  # a method of `object`, which mypy takes for an attribute
    def __class__(self) -> type:
        return type(self.real)

    @property
    def _protocol_paused(self) -> Any:  # type: ignore[override]  # asyncio's own name
        return getattr(self.real, "_protocol_paused", False)

    def __repr__(self) -> str:
        return repr(self.real)

    def _write(self, data: bytes) -> None:
        self.real.write(data)

    async def encrypt(self, start_tls: Callable[..., Any], sslcontext: Any, **options: Any) -> Any:
        """Start TLS on the real transport."""
        return await start_tls(self.real, self.heard, sslcontext, **options)

    def go_on(self, transport: Any, facts: Mapping[str, Any], protocol: Any) -> StreamTransport:
        """Stand before the new real transport."""
        self.link.protocol = protocol
        self.heard.transport = RecordedTransport(transport, self.heard)
        return self.heard.transport

    def write_eof(self) -> None:
        """Close the writing end."""
        streams.ask(self.link.stream, "write_eof", self.real.write_eof, {}, Effect.WRITE)

    def close(self) -> None:
        """Close the connection."""
        self.heard.close()
        self.real.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.heard.close()
        self.real.abort()


def _delegate(name: str) -> Callable[..., Any]:
    def call(self: RecordedTransport, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.real, name)(*args, **kwargs)

    call.__name__, call.__qualname__ = name, f"RecordedTransport.{name}"
    return call


for _name in (
    "can_write_eof", "get_extra_info", "get_write_buffer_limits", "get_write_buffer_size", "is_closing", "is_reading",
    "pause_reading", "resume_reading", "set_write_buffer_limits",
):  # fmt: skip
    setattr(RecordedTransport, _name, _delegate(_name))


class _ServedSocket(TransportSocket):
    """The socket of a connection that was not made: its options can be set, and its addresses are the recorded ones."""

    __slots__ = ("_facts",)

    def __init__(self, sock: Any, facts: Mapping[str, Any]) -> None:
        super().__init__(sock)
        self._facts = facts

    def getpeername(self) -> Any:
        """Return the recorded address of the peer."""
        return self._facts.get("peername")

    def getsockname(self) -> Any:
        """Return the recorded address of this end."""
        return self._facts.get("sockname")


class ServedTransport(StreamTransport):
    """Stands for a connection that a replay does not make."""

    def __init__(self, loop: Any, link: Link, facts: Mapping[str, Any]) -> None:
        super().__init__(link)
        self._loop = loop
        self._facts = dict(facts)
        self._is_closing = self._is_ending = False
        self._is_reading = True
        self._socket: Any = None
        self._owner = asyncio.current_task()
        self._playing: Any = None

    @property  # type: ignore[misc]  # as above
    def __class__(self) -> type:
        module, name = _SHOWN_AS[bool(self._facts.get("cipher"))]
        found: type = getattr(sys.modules[module], name, asyncio.Transport)
        return found

    def start(self) -> None:
        """Tell the program's protocol that it is connected, and begin to deliver what comes."""
        self.link.tell(self.link.protocol.connection_made, self)
        crossing = self.link.begin()
        if crossing is not None:
            self._playing = self._loop.create_task(self._play(crossing))

    async def _play(self, crossing: Crossing | None) -> None:
        try:
            while crossing is not None and crossing.served is not None and crossing.served.response != WAITING:
                await await_turn(crossing)
                if not self._take(crossing):
                    return
                crossing = self.link.begin()
        except ReplayMiss:  # nobody awaits this task, and the program might wait forever
            if self._owner is not None:
                self._owner.cancel()

    def _take(self, crossing: Crossing) -> bool:
        """Deliver one event; return whether others may follow. Raises: ReplayMiss."""
        response = load_response(crossing)
        if "error" in response:
            self._lose(decode_error(crossing, response["error"]))
            return False
        value = decode_value(crossing, response.get("value"))
        if isinstance(value, str):
            self.link.deliver(streams.unpack(value))
        elif value["event"] == _EOF:
            self._is_closing = not self.link.hand_over(self.link.protocol.eof_received)
        else:
            self._lose(None)
            return False
        return True

    def _lose(self, exc: BaseException | None) -> None:
        self._is_closing = self._is_ending = True
        if self._socket is not None:
            self._socket.close()
        self.link.tell(self.link.protocol.connection_lost, exc)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a recorded fact about the connection."""
        if name == "socket":
            return self._make_socket()
        if name == "ssl_object" and self._facts.get("cipher"):
            said = {key: self._facts.get(key) for key in (*FACTS, *ASKED)}
            answers = {key: (lambda value=value, **_: value) for key, value in said.items()}
            return SimpleNamespace(**answers, getpeercert=lambda binary_form=False: said["peercert"])
        found = self._facts.get(name)
        return default if found is None else found

    def _make_socket(self) -> Any:
        """Return a socket that is connected to nobody, whose options can be set."""
        import socket

        if self._socket is None:
            is_unix = not isinstance(self._facts.get("peername"), tuple)
            self._socket = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
            self._socket.setblocking(False)
            if self._is_ending:
                self._socket.close()
        return _ServedSocket(self._socket, self._facts)

    def write_eof(self) -> None:
        """Close the writing end."""
        streams.ask(self.link.stream, "write_eof", lambda: None, {}, Effect.WRITE)

    def close(self) -> None:
        """Close the connection."""
        self._is_closing = True
        if not self._is_ending:
            self._is_ending = True
            if self._playing is not None:
                self._playing.cancel()
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """Same as `close`."""
        self.close()

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Whether the program wants to receive."""
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        """Note that the program wants to receive nothing: the recorded events came while it wanted to."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Note that the program wants to receive again."""
        self._is_reading = True

    def get_write_buffer_size(self) -> int:
        """Always 0: nothing waits to be sent."""
        return 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return asyncio's own limits."""
        return 16 * 1024, 64 * 1024

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing."""

    def go_on(self, transport: Any, facts: Mapping[str, Any], protocol: Any) -> StreamTransport:
        """Go on as it is."""
        self._facts.update(facts)
        self.link.protocol = protocol
        return self
