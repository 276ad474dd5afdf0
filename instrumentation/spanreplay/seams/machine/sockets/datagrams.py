"""Seam: connectionless sockets (UDP, Unix datagrams, raw IP), one call per datagram.

Every datagram that the agent's code sends is a call with its address and bytes; so is every one that it receives. A
replay sends, binds and looks up nothing: the same datagrams must come, and the recorded answers are returned. Datagrams
that a library sends (metrics, reports) are not the agent's: they go out while recording, and a replay drops them. A
library that waits for an answer receives something that is not recorded: such a run is incomplete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model import guard
from spanreplay.model.call import Effect
from spanreplay.runtime.caller.caller import between
from spanreplay.runtime.calls.function_calls import begin_function_call, call_sync
from spanreplay.runtime.calls.open_call import is_plumbing
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process import outside_io
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine.effects import effects_run
from spanreplay.seams.machine.outside import connections, leaks
from spanreplay.seams.machine.sockets import stream_counts, streams
from spanreplay.seams.machine.sockets.socket_askers import BARE, BY_AGENT, BY_LIBRARY, type_of, who_asks
from spanreplay.seams.machine.sockets.socket_calls import copy_bytes, describe, finish_waiting, replace, show

DATAGRAMS: Final = "datagrams"
"""Member of the environment: whether datagrams are calls in this recording."""
_getframe: Final = sys._getframe


@dataclass
class State:
    """What is known about one socket."""

    by: str
    """Its first user: BY_AGENT or BY_LIBRARY."""
    peer: Any = None
    """The address it is connected to."""
    is_heard: bool = True
    """Whether received datagrams are recorded here, not as part of another call."""


states: Final[WeakKeyDictionary[Any, State]] = WeakKeyDictionary()


def sees_datagrams(run: Run) -> bool:
    """Whether datagrams are calls; False in a replay of a recording without them."""
    return run.resolver.has(DATAGRAMS)


def _find(sock: Any, frame: FrameType, *, is_new: bool) -> State | None:
    """Return what is known about a socket and who uses it now; None if nothing is recorded or dropped here."""
    state = states.get(sock)
    if state is None and not is_new:
        return None  # one of a pair, or handed over by other code: it talks to the agent's own code
    by = who_asks(frame)
    if state is None:
        by = by or BY_LIBRARY
        state = states[sock] = State(by)
    is_library = BY_LIBRARY in (by, state.by)
    return State(BY_LIBRARY, state.peer, state.is_heard) if is_library else state


def records(by: str) -> bool:
    """Whether a use of a socket is a call. Raises: ReplayMiss after the end of the recording."""
    if by == BY_LIBRARY:
        return False
    run = effects_run()
    return run is not None and sees_datagrams(run) and not is_plumbing(run)


def drops(by: str) -> bool:
    """Whether this replay drops what is sent here."""
    run = active_run()
    if by == BY_AGENT or run is None or run.resolver.connects or run.resolver.answers.has_gone_on:
        return False
    return current_crossing(run.root_lane) is None and sees_datagrams(run)


def _send(sock: Any, frame: FrameType, name: str, data: Any, address: Any, more: Mapping[str, Any], real: Any) -> Any:
    """Send one datagram to `address`, or to the socket's peer."""
    state = _find(sock, frame, is_new=address is not None)
    if state is None:
        return real()
    if drops(state.by):
        _note_dropped(state.peer if address is None else address)
        return len(data)
    if not records(state.by):
        with outside_io.unwatched():
            return real()
    shown = {"data": data, "to": state.peer if address is None else address, **{k: v for k, v in more.items() if v}}
    return call_sync(lambda: describe(name, shown), real)


def _note_dropped(address: Any) -> None:
    run = active_run()
    if run is not None:
        from spanreplay.replayer.sandbox.dropped import note_dropped

        note_dropped(run.resolver.answers, run.redactor.text(show(address)))


def _join(buffers: Any) -> bytes:
    return b"".join(bytes(memoryview(each).cast("B")) for each in buffers)


def _patch_sending(patches: Patches, cls: Any) -> None:
    find = streams.find  # finalizers close sockets after the end of this module
    real_send, real_sendall, real_sendto, real_sendmsg = cls.send, cls.sendall, cls.sendto, cls.sendmsg

    def look(sock: Any, data: Any) -> tuple[streams.Stream | None, bytes | None]:
        """Return the connection that is recorded, and a copy of what is sent; None for what nobody looks at here."""
        if type_of(sock) in BARE:
            return None, copy_bytes(data)
        connections.see_sent(sock)
        stream = find(sock)
        return stream, None if stream is None else copy_bytes(data)

    def send(self: Any, data: Any, flags: int = 0, /) -> Any:
        stream, sent = look(self, data)
        if sent is None:
            return real_send(self, data, flags)
        frame, given = _getframe(1), {"flags": flags}

        def real() -> Any:
            return real_send(self, sent, flags)

        if stream is not None:
            return streams.send(stream, frame, "send", sent, given, real)
        return _send(self, frame, "send", sent, None, given, real)

    def sendall(self: Any, data: Any, flags: int = 0, /) -> Any:
        stream, sent = look(self, data)
        if sent is None:
            return real_sendall(self, data, flags)
        frame, given = _getframe(1), {"flags": flags}
        if stream is not None:
            return streams.send(stream, frame, "sendall", sent, given, lambda: real_sendall(self, sent, flags))
        _send(self, frame, "send", sent, None, given, lambda: real_send(self, sent, flags))
        return None

    def sendto(self: Any, data: Any, *rest: Any) -> Any:
        if type_of(self) not in BARE or len(rest) not in (1, 2):
            return real_sendto(self, data, *rest)
        sent, address, flags = copy_bytes(data), rest[-1], rest[0] if len(rest) == 2 else 0
        if sent is None:
            return real_sendto(self, data, *rest)
        frame, given = _getframe(1), {"flags": flags}
        return _send(self, frame, "sendto", sent, address, given, lambda: real_sendto(self, sent, *rest))

    def sendmsg(self: Any, buffers: Any, ancdata: Any = (), flags: int = 0, address: Any = None, /) -> Any:
        stream, is_bare = find(self), type_of(self) in BARE
        if not is_bare:
            connections.see_sent(self)
        if stream is None and not is_bare:
            return real_sendmsg(self, buffers, ancdata, flags, address)
        try:
            sent, ancillary = _join(buffers), [(a, b, bytes(c)) for a, b, c in ancdata]
        except (TypeError, ValueError):
            return real_sendmsg(self, buffers, ancdata, flags, address)  # it raises
        given, frame = {"flags": flags, "ancdata": ancillary}, _getframe(1)

        def real() -> Any:
            return real_sendmsg(self, [sent], ancillary, flags, address)

        if stream is not None:
            return streams.send(stream, frame, "sendmsg", sent, given, real)
        return _send(self, frame, "sendmsg", sent, address, given, real)

    for function in (send, sendall, sendto, sendmsg):
        replace(patches, cls, function)


def _patch_files(patches: Patches, cls: Any) -> None:
    """Send files of connections that are recorded piece by piece, not in the kernel."""
    find = streams.find  # finalizers close sockets after the end of this module
    real = cls.sendfile

    def sendfile(self: Any, file: Any, offset: int = 0, count: int | None = None) -> Any:
        if find(self) is None:
            return real(self, file, offset, count)
        return self._sendfile_use_send(file, offset, count)

    between.add(sendfile.__code__)  # its caller is the one who sends
    replace(patches, cls, sendfile)


# ── Receiving ───────────────────────────────────────────────────────────────────────────────────────
def _receive(sock: Any, frame: FrameType, name: str, asked: Mapping[str, Any], real: Callable[[], Any]) -> Any:
    """Receive one datagram."""
    state = _find(sock, frame, is_new=False)
    if state is None or not state.is_heard:
        return real()
    if drops(state.by) and (run := active_run()) is not None:
        raise run.resolver.answers.deny_socket(show(state.peer))
    if not records(state.by):
        if state.by == BY_LIBRARY:
            leaks.note("socket", f"socket.{name}", show(state.peer))
        return real()
    crossing = begin_function_call(lambda: describe("recv", {k: v for k, v in asked.items() if v}, Effect.READ))
    if crossing is None:
        return real()
    return finish_waiting(crossing, real)


def _fits(buffer: Any, size: int) -> bool:
    """Whether so many bytes can be received into a buffer."""
    view = memoryview(buffer)
    return not view.readonly and 0 <= size <= view.nbytes


def _fill(buffer: Any, data: bytes) -> int:
    memoryview(buffer).cast("B")[: len(data)] = data
    return len(data)


def _patch_receiving(patches: Patches, cls: Any) -> None:
    find = streams.find  # finalizers close sockets after the end of this module
    real_recv, real_recvfrom = cls.recv, cls.recvfrom
    real_into, real_from_into = cls.recv_into, cls.recvfrom_into

    def receive(sock: Any, frame: FrameType, name: str, size: int, flags: int) -> Any:
        return _receive(sock, frame, name, {"bufsize": size, "flags": flags}, lambda: real_recvfrom(sock, size, flags))

    def through(stream: streams.Stream, sock: Any, size: int, flags: int) -> bytes:
        return streams.receive(stream, size, flags, lambda wanted: real_recv(sock, wanted, flags))

    def recv(self: Any, bufsize: int, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            stream = find(self)
            if stream is None:
                return real_recv(self, bufsize, flags)
            return through(stream, self, bufsize, flags)
        return receive(self, _getframe(1), "recv", bufsize, flags)[0]

    def recvfrom(self: Any, bufsize: int, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            stream = find(self)
            if stream is None:
                return real_recvfrom(self, bufsize, flags)
            return through(stream, self, bufsize, flags), None
        return receive(self, _getframe(1), "recvfrom", bufsize, flags)

    def recv_into(self: Any, buffer: Any, nbytes: int = 0, flags: int = 0) -> Any:
        if not _fits(buffer, nbytes):
            return real_into(self, buffer, nbytes, flags)  # it raises
        if type_of(self) not in BARE:
            stream = find(self)
            if stream is None:
                return real_into(self, buffer, nbytes, flags)
            size = nbytes or memoryview(buffer).nbytes
            return _fill(buffer, through(stream, self, size, flags))
        size = nbytes or memoryview(buffer).nbytes
        return _fill(buffer, receive(self, _getframe(1), "recv_into", size, flags)[0])

    def recvfrom_into(self: Any, buffer: Any, nbytes: int = 0, flags: int = 0) -> Any:
        if not _fits(buffer, nbytes):
            return real_from_into(self, buffer, nbytes, flags)  # it raises
        if type_of(self) not in BARE:
            stream = find(self)
            if stream is None:
                return real_from_into(self, buffer, nbytes, flags)
            size = nbytes or memoryview(buffer).nbytes
            return _fill(buffer, through(stream, self, size, flags)), None
        size = nbytes or memoryview(buffer).nbytes
        data, address = receive(self, _getframe(1), "recvfrom_into", size, flags)
        return _fill(buffer, data), address

    for function in (recv, recvfrom, recv_into, recvfrom_into):
        replace(patches, cls, function)


def _patch_messages(patches: Patches, cls: Any) -> None:
    find = streams.find  # finalizers close sockets after the end of this module
    real_recv, real_recvmsg, real_msg_into = cls.recv, cls.recvmsg, cls.recvmsg_into

    def through(stream: streams.Stream, sock: Any, size: int, flags: int) -> bytes:
        return streams.receive(stream, size, flags, lambda wanted: real_recv(sock, wanted, flags))

    def recvmsg(self: Any, bufsize: int, ancbufsize: int = 0, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            stream = find(self)
            if stream is None:
                return real_recvmsg(self, bufsize, ancbufsize, flags)
            streams.note_ancillary(stream, ancbufsize)
            return through(stream, self, bufsize, flags), [], 0, None
        asked = {"bufsize": bufsize, "ancbufsize": ancbufsize, "flags": flags}
        return _receive(self, _getframe(1), "recvmsg", asked, lambda: real_recvmsg(self, bufsize, ancbufsize, flags))

    def recvmsg_into(self: Any, buffers: Any, ancbufsize: int = 0, flags: int = 0, /) -> Any:
        stream = None if type_of(self) in BARE else find(self)
        if stream is None and type_of(self) not in BARE:
            return real_msg_into(self, buffers, ancbufsize, flags)
        listed = list(buffers)
        try:
            views = [memoryview(each).cast("B") for each in listed]
        except TypeError:
            views = []
        if len(views) < len(listed) or any(view.readonly for view in views):
            return real_msg_into(self, listed, ancbufsize, flags)  # it raises
        size = sum(map(len, views))
        if stream is not None:
            streams.note_ancillary(stream, ancbufsize)
            data = through(stream, self, size, flags)
            rest: list[Any] = [[], 0, None]
        else:
            asked = {"bufsize": size, "ancbufsize": ancbufsize, "flags": flags}
            data, *rest = _receive(
                self, _getframe(1), "recvmsg_into", asked, lambda: real_recvmsg(self, size, ancbufsize, flags)
            )
        left = data
        for view in views:
            piece, left = left[: len(view)], left[len(view) :]
            view[: len(piece)] = piece
        return (len(data), *rest)

    for function in (recvmsg, recvmsg_into):
        replace(patches, cls, function)


# ── Addresses ───────────────────────────────────────────────────────────────────────────────────────
def _connect(sock: Any, frame: FrameType, name: str, address: Any, real: Callable[[], Any], dropped: Any) -> Any:
    state = _find(sock, frame, is_new=True)
    if state is None or drops(state.by):
        found = dropped
    elif records(state.by):
        found = call_sync(lambda: describe(name, {"to": address}), real)
    else:
        with outside_io.unwatched():
            found = real()
    known = states.get(sock)
    if known is not None and name != "bind":
        known.peer = address
    return found


def _patch_addresses(patches: Patches, cls: Any) -> None:
    find = streams.find  # finalizers close sockets after the end of this module
    real_connect, real_connect_ex, real_bind = cls.connect, cls.connect_ex, cls.bind
    shown = cls.__repr__.__code__
    real_name, real_peer, real_dup = cls.getsockname, cls.getpeername, cls.dup
    real_detach, real_shutdown, real_close = cls.detach, cls.shutdown, cls.close

    def connect(self: Any, address: Any, /) -> Any:
        if type_of(self) not in BARE:
            return streams.connect(self, _getframe(1), "connect", address, lambda: real_connect(self, address))
        return _connect(self, _getframe(1), "connect", address, lambda: real_connect(self, address), None)

    def connect_ex(self: Any, address: Any, /) -> Any:
        if type_of(self) not in BARE:
            return streams.connect(self, _getframe(1), "connect_ex", address, lambda: real_connect_ex(self, address))
        return _connect(self, _getframe(1), "connect_ex", address, lambda: real_connect_ex(self, address), 0)

    def bind(self: Any, address: Any, /) -> Any:
        if type_of(self) not in BARE:
            return real_bind(self, address)
        return _connect(self, _getframe(1), "bind", address, lambda: real_bind(self, address), None)

    def ask(sock: Any, frame: FrameType, name: str, real: Any) -> Any:
        is_bare = type_of(sock) in BARE
        stream = None if is_bare or frame.f_code is shown else find(sock)
        if stream is not None:
            return streams.ask(stream, name, lambda: real(sock))
        is_asked = is_bare and frame.f_code is not shown  # a repr may be part of a ResourceWarning
        state = _find(sock, frame, is_new=False) if is_asked else None
        if state is None or not records(state.by):
            return real(sock)
        return call_sync(lambda: describe(name, {}, Effect.READ), lambda: real(sock))

    def getsockname(self: Any) -> Any:
        return ask(self, _getframe(1), "getsockname", real_name)

    def getpeername(self: Any) -> Any:
        return ask(self, _getframe(1), "getpeername", real_peer)

    def dup(self: Any) -> Any:
        made = real_dup(self)
        if self in states:
            states[made] = states[self]
        stream = find(self)
        if stream is not None:
            streams.follow(made, stream)
        return made

    def detach(self: Any) -> Any:
        stream = find(self)
        if stream is not None:
            streams.note_detached(self, stream)
        return real_detach(self)

    def close(self: Any) -> None:
        stream = find(self)
        if stream is not None:
            guard.guarded("watching a connection", stream_counts.note_end, self, stream)
        real_close(self)

    def shutdown(self: Any, how: int, /) -> Any:
        stream = find(self)
        if stream is None:
            return real_shutdown(self, how)
        return streams.ask(stream, "shutdown", lambda: real_shutdown(self, how), {"how": int(how)}, Effect.WRITE)

    for function in (connect, connect_ex, bind, getsockname, getpeername, dup, detach, close, shutdown):
        replace(patches, cls, function)


def attach(run: Run) -> None:
    """State in a recording that its datagrams and connections are calls."""
    run.resolver.declare(DATAGRAMS)
    run.resolver.declare(streams.STREAMS)


def install(module: Any, patches: Patches) -> None:
    """Patch `socket`."""
    _patch_sending(patches, module.socket)
    _patch_messages(patches, module.socket)  # first: it receives by the real `recv`
    _patch_receiving(patches, module.socket)
    _patch_addresses(patches, module.socket)
    _patch_files(patches, module.socket)
