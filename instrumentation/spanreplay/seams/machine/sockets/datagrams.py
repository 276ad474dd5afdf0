"""Seam: connectionless sockets (UDP, Unix datagrams, raw IP), one call per datagram.

Every datagram that the agent's code sends is a call with its address and bytes; so is every one that it receives. A
replay sends, binds and looks up nothing: the same datagrams must come, and the recorded answers are returned. Datagrams
that a library sends (metrics, reports) are not the agent's: they go out while recording, and a replay drops them. A
library that waits for an answer receives something that is not recorded: such a run is incomplete.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, begin_function_call, call_sync, finish_sync
from spanreplay.runtime.calls.open_call import Crossing, is_plumbing
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process import outside_io
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine.effects import effects_run
from spanreplay.seams.machine.outside import connections, leaks
from spanreplay.seams.machine.sockets.socket_askers import BARE, BY_AGENT, BY_LIBRARY, type_of, who_asks

DATAGRAMS: Final = "datagrams"
"""Member of the environment: whether datagrams are calls in this recording."""
_getframe: Final = sys._getframe
_WAITING: Final = '{"waiting":true}'
"""The response of a call that was still waiting for a datagram when its run ended."""
_WAIT_S: Final = 1.0


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


def describe(name: str, arguments: Mapping[str, Any], effect: Effect = Effect.WRITE) -> FunctionCall:
    """Describe one use of a socket as a call."""
    return FunctionCall(Kind.TOOL.value, f"socket.{name}", effect.value, arguments, prints=False)


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

        note_dropped(run.resolver.answers, run.redactor.text(_show(address)))


def _join(buffers: Any) -> bytes:
    return b"".join(bytes(memoryview(each).cast("B")) for each in buffers)


def _patch_sending(patches: Patches, cls: Any) -> None:
    real_send, real_sendall, real_sendto, real_sendmsg = cls.send, cls.sendall, cls.sendto, cls.sendmsg

    def send(self: Any, data: Any, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            connections.see_sent(self)
            return real_send(self, data, flags)
        sent, frame = bytes(data), _getframe(1)
        return _send(self, frame, "send", sent, None, {"flags": flags}, lambda: real_send(self, sent, flags))

    def sendall(self: Any, data: Any, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            connections.see_sent(self)
            return real_sendall(self, data, flags)
        sent, frame = bytes(data), _getframe(1)
        _send(self, frame, "send", sent, None, {"flags": flags}, lambda: real_send(self, sent, flags))
        return None

    def sendto(self: Any, data: Any, *rest: Any) -> Any:
        if type_of(self) not in BARE or len(rest) not in (1, 2):
            return real_sendto(self, data, *rest)
        sent, address, flags = bytes(data), rest[-1], rest[0] if len(rest) == 2 else 0
        frame, given = _getframe(1), {"flags": flags}
        return _send(self, frame, "sendto", sent, address, given, lambda: real_sendto(self, sent, *rest))

    def sendmsg(self: Any, buffers: Any, ancdata: Any = (), flags: int = 0, address: Any = None, /) -> Any:
        if type_of(self) not in BARE:
            connections.see_sent(self)
            return real_sendmsg(self, buffers, ancdata, flags, address)
        sent, ancillary, frame = _join(buffers), [(a, b, bytes(c)) for a, b, c in ancdata], _getframe(1)
        given = {"flags": flags, "ancdata": ancillary}
        return _send(
            self, frame, "sendmsg", sent, address, given, lambda: real_sendmsg(self, [sent], ancillary, flags, address)
        )

    for function in (send, sendall, sendto, sendmsg):
        _replace(patches, cls, function)


# ── Receiving ───────────────────────────────────────────────────────────────────────────────────────
def _wait_for_end(crossing: Crossing) -> None:
    """Wait until the run is over, as the recorded call did. Raises: ReplayMiss."""
    run, over = crossing.run, threading.Event()
    run.resolver.on_stop(over.set)
    while not run.is_ended and not over.wait(_WAIT_S):
        pass
    raise ReplayMiss("the run ended while this waited for a datagram")


def _receive(sock: Any, frame: FrameType, name: str, asked: Mapping[str, Any], real: Callable[[], Any]) -> Any:
    """Receive one datagram."""
    state = _find(sock, frame, is_new=False)
    if state is None or not state.is_heard:
        return real()
    if drops(state.by) and (run := active_run()) is not None:
        raise run.resolver.answers.deny_socket(_show(state.peer))
    if not records(state.by):
        if state.by == BY_LIBRARY:
            leaks.note("socket", f"socket.{name}", _show(state.peer))
        return real()
    crossing = begin_function_call(lambda: describe("recv", {k: v for k, v in asked.items() if v}, Effect.READ))
    if crossing is None:
        return real()
    if crossing.served is not None and crossing.served.response == _WAITING:
        _wait_for_end(crossing)
    crossing.on_abandon = lambda: crossing.close(Outcome.CANCELLED, _WAITING)
    return finish_sync(crossing, real)


def _show(address: Any) -> str:
    """Return `host:port` or a path."""
    return (
        f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) > 1 else str(address or "anybody")
    )


def _fill(buffer: Any, data: bytes) -> int:
    memoryview(buffer).cast("B")[: len(data)] = data
    return len(data)


def _patch_receiving(patches: Patches, cls: Any) -> None:
    real_recv, real_recvfrom, real_recvmsg = cls.recv, cls.recvfrom, cls.recvmsg
    real_into, real_from_into, real_msg_into = cls.recv_into, cls.recvfrom_into, cls.recvmsg_into

    def receive(sock: Any, frame: FrameType, name: str, size: int, flags: int) -> Any:
        return _receive(sock, frame, name, {"bufsize": size, "flags": flags}, lambda: real_recvfrom(sock, size, flags))

    def recv(self: Any, bufsize: int, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            return real_recv(self, bufsize, flags)
        return receive(self, _getframe(1), "recv", bufsize, flags)[0]

    def recvfrom(self: Any, bufsize: int, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            return real_recvfrom(self, bufsize, flags)
        return receive(self, _getframe(1), "recvfrom", bufsize, flags)

    def recv_into(self: Any, buffer: Any, nbytes: int = 0, flags: int = 0) -> Any:
        if type_of(self) not in BARE:
            return real_into(self, buffer, nbytes, flags)
        size = nbytes or memoryview(buffer).nbytes
        return _fill(buffer, receive(self, _getframe(1), "recv_into", size, flags)[0])

    def recvfrom_into(self: Any, buffer: Any, nbytes: int = 0, flags: int = 0) -> Any:
        if type_of(self) not in BARE:
            return real_from_into(self, buffer, nbytes, flags)
        size = nbytes or memoryview(buffer).nbytes
        data, address = receive(self, _getframe(1), "recvfrom_into", size, flags)
        return _fill(buffer, data), address

    def recvmsg(self: Any, bufsize: int, ancbufsize: int = 0, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            return real_recvmsg(self, bufsize, ancbufsize, flags)
        asked = {"bufsize": bufsize, "ancbufsize": ancbufsize, "flags": flags}
        return _receive(self, _getframe(1), "recvmsg", asked, lambda: real_recvmsg(self, bufsize, ancbufsize, flags))

    def recvmsg_into(self: Any, buffers: Any, ancbufsize: int = 0, flags: int = 0, /) -> Any:
        if type_of(self) not in BARE:
            return real_msg_into(self, buffers, ancbufsize, flags)
        views = [memoryview(each).cast("B") for each in buffers]
        size = sum(map(len, views))
        asked = {"bufsize": size, "ancbufsize": ancbufsize, "flags": flags}
        data, *rest = _receive(
            self, _getframe(1), "recvmsg_into", asked, lambda: real_recvmsg(self, size, ancbufsize, flags)
        )
        left = data
        for view in views:
            piece, left = left[: len(view)], left[len(view) :]
            view[: len(piece)] = piece
        return (len(data), *rest)

    for function in (recv, recvfrom, recv_into, recvfrom_into, recvmsg, recvmsg_into):
        _replace(patches, cls, function)


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
    real_connect, real_connect_ex, real_bind = cls.connect, cls.connect_ex, cls.bind
    shown = cls.__repr__.__code__
    real_name, real_peer, real_dup = cls.getsockname, cls.getpeername, cls.dup

    def connect(self: Any, address: Any, /) -> Any:
        if type_of(self) not in BARE:
            return real_connect(self, address)
        return _connect(self, _getframe(1), "connect", address, lambda: real_connect(self, address), None)

    def connect_ex(self: Any, address: Any, /) -> Any:
        if type_of(self) not in BARE:
            return real_connect_ex(self, address)
        return _connect(self, _getframe(1), "connect_ex", address, lambda: real_connect_ex(self, address), 0)

    def bind(self: Any, address: Any, /) -> Any:
        if type_of(self) not in BARE:
            return real_bind(self, address)
        return _connect(self, _getframe(1), "bind", address, lambda: real_bind(self, address), None)

    def ask(sock: Any, frame: FrameType, name: str, real: Any) -> Any:
        is_asked = type_of(sock) in BARE and frame.f_code is not shown  # a repr may be part of a ResourceWarning
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
        return made

    for function in (connect, connect_ex, bind, getsockname, getpeername, dup):
        _replace(patches, cls, function)


def _replace(patches: Patches, cls: Any, function: Any) -> None:
    name = function.__name__
    function.__qualname__, function.__doc__ = f"{cls.__name__}.{name}", getattr(cls, name).__doc__
    function.__module__ = cls.__module__
    patches.replace(cls, name, function)


def attach(run: Run) -> None:
    """State in a recording that its datagrams are calls."""
    run.resolver.declare(DATAGRAMS)


def install(module: Any, patches: Patches) -> None:
    """Patch `socket`."""
    _patch_sending(patches, module.socket)
    _patch_receiving(patches, module.socket)
    _patch_addresses(patches, module.socket)
