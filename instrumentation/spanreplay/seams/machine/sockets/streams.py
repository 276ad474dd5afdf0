"""Seam: connections (TCP, Unix, TLS) that no other seam records, one call per operation.

Whoever opens a connection for the agent outside every boundary, its own code or any client library, is recorded here:
where it connects, what it sends, what it receives. Sent and received bytes are hidden as a whole, because they may hold
passwords in any form, or a piece of a secret: what is sent is compared by its token, what is received is sealed
(decision 0023). A replay connects to nobody.

Left out are sockets that do not block, because an event loop owns them, and connections that an earlier unit of work
opened: those units are incomplete.
"""

from __future__ import annotations

import base64
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model import guard, ids, owners
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import Suspended
from spanreplay.model.here import PACKAGE
from spanreplay.model.json_text import dump
from spanreplay.model.own_threads import living
from spanreplay.redact.sealed_values import TOKEN_TEXT
from spanreplay.runtime.caller.caller import FRAMES_MAX, is_among, is_ours
from spanreplay.runtime.calls.function_calls import (
    begin_function_call,
    call_sync,
    close_error,
    finish_sync,
)
from spanreplay.runtime.calls.open_call import Crossing, is_plumbing
from spanreplay.runtime.process.outside_io import is_library_log, is_telemetry_stack, is_unwatched
from spanreplay.runtime.processes import starting
from spanreplay.runtime.run import Run, active_run, is_process_run
from spanreplay.seams.machine.effects import effects_run
from spanreplay.seams.machine.outside import connections, leaks
from spanreplay.seams.machine.outside.watch import describe_address
from spanreplay.seams.machine.sockets.socket_askers import BY_AGENT, BY_LIBRARY, who_asks
from spanreplay.seams.machine.sockets.socket_calls import WAITING, describe, finish_waiting, show, wait_for_end

__all__ = [
    "RECEIVED_MAX",
    "STREAMS",
    "Stream",
    "ask",
    "close_event",
    "close_received",
    "connect",
    "find",
    "find_any",
    "follow",
    "has_any",
    "hears",
    "insist",
    "list_of_run",
    "moving",
    "note_ancillary",
    "note_detached",
    "receive",
    "recording_run",
    "send",
    "unpack",
    "wait_for",
]  # fmt: skip

BY: Final = "by"
"""Argument of what a library sends: it may hold values that only the library knows."""
STREAMS: Final = "streams"
"""Member of the environment: whether connections are calls in this recording."""
RECEIVED_MAX: Final = 128 * 1024
"""Bytes of one call: as many as are sealed. The rest comes with the next call."""
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_HANDED_ON: Final = f"{os.sep}multiprocessing{os.sep}connection.py"
"""Uses its connections by their descriptors."""
_UNITS: Final = os.path.join(PACKAGE, "units", "")  # noqa: PTH118 -- text
"""Where servers call an application."""
_SERVERS: Final = (owners.SERVERS,)
_PEEK: Final = 0x2
"""`MSG_PEEK`: the bytes stay where they are."""
_WAIT_ALL: Final = 0x100
"""`MSG_WAITALL`: the caller gets exactly what it asks for."""


@dataclass(eq=False, slots=True)
class Stream:
    """What is known about one connection."""

    run_id: str
    """The run that opened it."""
    peer: Any
    is_of_process: bool
    """Whether the process opened it before or between units of work: each unit records its own use."""
    seq: int = 0
    """The number of the call that opened it."""
    code: str = ""
    """The place that opened it."""
    sent: int = 0
    received: int = 0
    """Bytes that passed here, whoever sent or received them; compared with the kernel's count."""
    is_counted: bool = True
    """Whether the kernel counts the same bytes: not those of an encrypted connection."""


_streams: Final[WeakKeyDictionary[Any, Stream]] = WeakKeyDictionary()


def find(sock: Any, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> Stream | None:
    """Return what is known about a connection that is recorded; None for any other socket.

    Also None while the interpreter ends: finalizers close sockets when our modules are gone.
    """
    return _streams.get(sock) if _streams and not _is_finalizing() else None


def has_any() -> bool:
    """Whether any connection is recorded."""
    return bool(_streams)


def find_any(file: Any) -> Stream | None:
    """`find` for a socket, a file or an object above one, or a descriptor."""
    if isinstance(file, socket.socket):
        return find(file)
    try:
        number = file if isinstance(file, int) else file.fileno()
    except (AttributeError, OSError, ValueError):  # the real function refuses it
        return None
    return next((stream for sock, stream in _list() if sock.fileno() == number), None)


def list_of_run(run: Run) -> list[tuple[Any, Stream]]:
    """Return the connections that a run has opened, and their sockets."""
    return [(sock, stream) for sock, stream in _list() if stream.run_id == run.run_id]


def _list() -> list[tuple[Any, Stream]]:
    return [(sock, stream) for sock in living(_streams) if (stream := _streams.get(sock)) is not None]


def follow(sock: Any, stream: Stream) -> None:
    """Record a socket from now on as one of a connection."""
    _streams[sock] = stream


def recording_run(stream: Stream) -> Run | None:
    """Return the run to which a use of a connection adds a call; None if it adds none.

    Raises: ReplayMiss after the end of the recording.
    """
    run = effects_run()
    if run is None or is_plumbing(run) or (stream.run_id != run.run_id and not stream.is_of_process):
        return None
    return run


def hears(sock: Any, frame: FrameType) -> bool:
    """Whether a socket that is about to connect would be recorded, wherever it connects. Raises: ReplayMiss."""
    if sock is not None and (sock.gettimeout() == 0 or frame.f_code.co_filename.endswith(_HANDED_ON)):
        return False
    run = effects_run()
    if run is None or not run.resolver.has(STREAMS) or is_plumbing(run) or is_unwatched() or starting.is_now:
        return False
    if is_telemetry_stack(frame) or is_library_log(frame):
        return False
    return _is_of_unit(frame) or (bool(ids.find_caller(3)) and not _is_of_server(frame))


def _is_of_unit(frame: FrameType | None) -> bool:
    """Whether a library answers a request here, without the program's code: one whose own views send mails."""
    is_first = True
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        name = frame.f_code.co_filename
        if name.startswith(_UNITS):
            return True
        if is_first and not ids.is_stdlib_file(name) and not is_ours(name):
            is_first = False
            if is_among(name, _SERVERS):
                return False
        frame = frame.f_back
    return False


def _is_of_server(frame: FrameType | None) -> bool:
    """Whether a server or worker uses a connection for itself, such as that to its queue, below the program's code."""
    for _ in range(FRAMES_MAX):
        if frame is None or ids.is_agent_file(frame.f_code.co_filename):
            return False
        if is_among(frame.f_code.co_filename, _SERVERS):
            return True
        frame = frame.f_back
    return False


def insist(name: str, address: Any) -> None:
    """Raise ReplayMiss if a replay opens a connection, or looks a name up, and the recording has no such call left.

    A unit may have used a connection that an earlier one had opened: what it lacks is then named by its recording.
    """
    run, boundary = active_run(), f"socket.{name}"
    if run is None or run.resolver.keeps or run.resolver.connects:
        return
    answers = run.resolver.answers
    if answers.has_gone_on or answers.plan.may_go_live(f"{Kind.TOOL.value}:{boundary}"):
        return
    used = answers.index.used
    if all(call.name != boundary or call.seq in used for call in answers.recording.calls):
        raise answers.deny_socket(show(address))


def connect(sock: Any, frame: FrameType, name: str, address: Any, real: Callable[[], Any]) -> Any:
    """Connect a socket, or in a replay do as if."""
    if not hears(sock, frame) or not describe_address(address):
        return real()
    insist(name, address)
    found = call_sync(lambda: describe(name, {"to": address}), real)
    run = active_run()
    if not found and run is not None:
        is_of_process = is_process_run(run)
        seq = 0 if run.leaks is None else run.leaks.seq
        follow(sock, Stream(run.run_id, address, is_of_process, seq, ids.find_caller(3)))
        if not is_of_process and run.resolver.keeps:
            connections.note_leaking(sock, address, ids.find_caller(3))
    return found


def send(
    stream: Stream, frame: FrameType, name: str, data: bytes, given: Mapping[str, Any], real: Callable[[], Any]
) -> Any:
    """Send bytes for the code in a frame; `given` are the other arguments."""
    stream.sent += len(data)
    run = recording_run(stream)
    if run is None:
        return real()
    hidden, text = run.redactor, data.decode("latin-1")
    more = {key: value for key, value in given.items() if value}
    if who_asks(frame) != BY_AGENT:
        more[BY] = BY_LIBRARY
    return call_sync(
        lambda: describe(name, {"to": stream.peer, "bytes": len(data), "data": hidden.token(text), **more}), real
    )


def receive(stream: Stream, size: int, flags: int, real: Callable[[int], bytes]) -> bytes:
    """Receive at most `size` bytes by calling `real` with the number wanted."""
    data = _receive(stream, size, flags, real)
    if not flags & _PEEK:
        stream.received += len(data)
    return data


def _receive(stream: Stream, size: int, flags: int, real: Callable[[int], bytes]) -> bytes:
    if recording_run(stream) is None:
        return real(size)
    asked = {"from": stream.peer, "bufsize": size, "flags": flags}
    crossing = begin_function_call(lambda: describe("recv", {k: v for k, v in asked.items() if v}, Effect.READ))
    wanted = size if flags & _WAIT_ALL else min(size, RECEIVED_MAX)
    if crossing is None:
        return real(size)
    if crossing.served is None:
        return _receive_live(crossing, lambda: real(wanted))
    if crossing.served.response == WAITING:
        wait_for_end(crossing)
    return unpack(finish_sync(crossing, lambda: ""))


def _receive_live(crossing: Crossing, real: Callable[[], bytes]) -> bytes:
    crossing.on_abandon = lambda: crossing.close(Outcome.CANCELLED, WAITING)
    try:
        with crossing:
            data = real()
    except Suspended:
        raise
    except BaseException as exc:
        close_error(crossing, exc)
        raise
    guard.guarded("recording received data", close_received, crossing, data)
    return data


def close_received(crossing: Crossing, data: bytes) -> None:
    """End a call with received data, which is hidden and sealed."""
    spec, redactor = crossing.spec, crossing.run.redactor
    if not data:
        crossing.close(Outcome.OK, '{"value":""}')
        return
    if len(data) > RECEIVED_MAX:
        spec.hole = f"{len(data)} bytes were received at once: at most {RECEIVED_MAX} are recorded"
    spec.raw = {"value": base64.b64encode(data).decode("ascii")}
    crossing.close(Outcome.OK, dump({"value": redactor.token(data.decode("latin-1"))}))


def close_event(crossing: Crossing, event: str) -> None:
    """End a call with an event that has no data."""
    crossing.close(Outcome.OK, dump({"value": {"event": event}}))


def unpack(text: str) -> bytes:
    """Return the bytes that a response holds; those of its token if the redaction key is not here."""
    return text.encode() if TOKEN_TEXT.fullmatch(text) else base64.b64decode(text)


_moving: Final[set[int]] = set()
"""Ids of sockets whose descriptor another recorded socket takes over."""


@contextmanager
def moving(sock: Any) -> Iterator[None]:
    """In this block the socket's descriptor passes to another one, which is recorded."""
    _moving.add(id(sock))
    try:
        yield
    finally:
        _moving.discard(id(sock))


def note_detached(sock: Any, stream: Stream) -> None:
    """Note that a connection goes on below the interpreter, unrecorded. Raises: ReplayMiss in a replay."""
    run = None if id(sock) in _moving else recording_run(stream)
    if run is None:
        return
    if not run.resolver.keeps:
        raise run.resolver.answers.deny_socket(show(stream.peer))
    leaks.note("connection", "socket.detach", show(stream.peer))


def note_ancillary(stream: Stream, size: int) -> None:
    """Note that a program asks for what comes beside the bytes (descriptors, credentials), which is not recorded."""
    if size and recording_run(stream) is not None:
        leaks.note("connection", "socket.recvmsg", show(stream.peer))


def wait_for(stream: Stream, name: str, real: Callable[[], Any], given: Mapping[str, Any]) -> Any:
    """Wait for something, with a result that is data."""
    crossing = None
    if recording_run(stream) is not None:
        crossing = begin_function_call(lambda: describe(name, given, Effect.READ))
    if crossing is None:
        return real()
    return finish_waiting(crossing, real)


def ask(
    stream: Stream,
    name: str,
    real: Callable[[], Any],
    given: Mapping[str, Any] = NOTHING,
    effect: Effect = Effect.READ,
) -> Any:
    """Do something else with a connection, whose result is data."""
    if recording_run(stream) is None:
        return real()
    return call_sync(lambda: describe(name, {"to": stream.peer, **given}, effect), real)
