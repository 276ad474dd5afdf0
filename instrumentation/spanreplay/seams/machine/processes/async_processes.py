"""Seam: processes that an event loop starts for the agent's code, with asyncio's protocol or any other (anyio).

The loop tells a protocol what a process does: bytes on a pipe, the end of a pipe, the exit. While recording, each of
these events is noted as a part of a stream. In a replay, a transport without a process delivers the same events to the
same protocol in the same order; readers, `communicate` and timeouts are asyncio's own.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from spanreplay import codec
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import Patch, install_patch, recorded_run
from spanreplay.runtime.caller.whoever import is_of_run
from spanreplay.runtime.calls.function_calls import decode_error, describe_function_call, load_response
from spanreplay.runtime.calls.open_call import Crossing, begin
from spanreplay.runtime.calls.turns import await_turn, end_stream
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process import parent_run
from spanreplay.seams.machine.effects import note_effect
from spanreplay.seams.machine.processes.commands import command_of, describe_process
from spanreplay.seams.machine.processes.given import STDIN, Given
from spanreplay.seams.machine.processes.processes import close_error, close_process
from spanreplay.seams.machine.processes.replayed import replayed_pids

_getframe: Final = sys._getframe
_STATE: Final = "_spanreplay"
_PIPES: Final = ("stdin", "stdout", "stderr")
_OUTPUTS: Final = {1: "stdout", 2: "stderr"}
DATA, EOF, EXIT = "data", "eof", "exit"
_asked: Final[ContextVar[bool | None]] = ContextVar("spanreplay_process", default=None)
"""Whether the program that is being started belongs to the run; None: the calling code says so."""


class Recording:
    """One live process and its call."""

    def __init__(self, crossing: Crossing, command: list[str], pipes: set[int]) -> None:
        self._crossing = crossing
        self._given: list[bytes] | None = [] if 0 in pipes else None
        self._open = pipes & {1, 2}
        self._is_ended = False
        self.command = command
        self._steps: list[list[Any]] = []
        self._contents: dict[int, list[bytes]] = {1: [], 2: []}
        self._size = 0
        self._is_closed = False
        self.pid = 0
        self._find_status: Callable[[], int | None] = lambda: 0
        self.on_close: Callable[[], None] = lambda: None
        crossing.on_abandon = self.close

    def follow(self, transport: Any) -> None:
        """Take the process's ID once it runs."""
        self.pid, self._find_status = transport.get_pid(), transport.get_returncode

    def lack(self, what: str) -> None:
        """Note that something about the process cannot be recorded."""
        self._crossing.spec.hole = what

    def note(self, what: str, descriptor: int, data: bytes | int) -> None:
        """Note one event of the process."""
        if self._is_closed:
            return
        if isinstance(data, bytes):
            self._size += len(data)
            if self._size > config.BODY_BYTES_MAX:
                self._crossing.spec.hole = f"the process wrote more than {config.BODY_BYTES_MAX} bytes"
                return
            self._contents[descriptor].append(data)
            data = len(data)
        ms = (ids.now_ns() - self._crossing.start_ns) // 1_000_000
        self._steps.append([ms, what, descriptor, data])
        self._crossing.mark()

    def exit(self) -> None:
        """Note that the process has ended."""
        self.note(EXIT, 0, self._find_status() or 0)

    def settle(self, what: str, descriptor: int) -> None:
        """Close the record with the last event: the process has ended and all its output has come."""
        self._open.discard(descriptor if what == EOF else -1)
        self._is_ended = self._is_ended or what == EXIT
        if self._is_ended and not self._open:
            self.close()

    def add(self, piece: bytes) -> None:
        """Add a piece of input from the agent."""
        if self._is_closed or self._given is None:
            return
        self._size += len(piece)
        if self._size > config.BODY_BYTES_MAX:
            self._crossing.spec.hole = f"the process was given more than {config.BODY_BYTES_MAX} bytes"
            return
        self._given.append(piece)

    def close(self) -> None:
        """End the record: the process has ended and all its output has come, or nobody waits for it any more."""
        if not self._is_closed:
            self._is_closed = True
            self.on_close()
            guard.guarded("recording a process", self._record)

    def _record(self) -> None:
        crossing = self._crossing
        value = {
            "pid": self.pid,
            "steps": self._steps,
            **({} if self._given is None else {STDIN: b"".join(self._given)}),
            **{name: b"".join(self._contents[fd]) for fd, name in _OUTPUTS.items()},
        }
        close_process(crossing, value)


_TOLD: Final = ("connection_made", "pipe_data_received", "pipe_connection_lost", "process_exited")
_SIGNALS: Final = (("send_signal", None), ("terminate", signal.SIGTERM), ("kill", signal.SIGKILL))


def _watch(protocol: Any, state: Recording) -> None:
    """Note what the loop tells a protocol. Raises: AttributeError if the protocol takes no attributes."""
    made, data, lost, exited = (getattr(protocol, name) for name in _TOLD)
    is_stream = isinstance(protocol, asyncio.subprocess.SubprocessStreamProtocol)

    def connection_made(transport: Any) -> None:
        guard.guarded("following a process", state.follow, transport)
        if not is_stream:
            guard.guarded("what a process is given", _watch_transport, transport, state)
        made(transport)
        if is_stream and protocol.stdin is not None:
            guard.guarded("what a process is given", _watch_input, protocol.stdin, state)

    def pipe_data_received(fd: int, content: bytes) -> None:
        guard.guarded("recording a process", state.note, DATA, fd, content)
        data(fd, content)

    def pipe_connection_lost(fd: int, exc: Exception | None) -> None:
        if fd:
            guard.guarded("recording a process", state.note, EOF, fd, 0)
        lost(fd, exc)
        guard.guarded("recording a process", state.settle, EOF, fd)

    def process_exited() -> None:
        guard.guarded("recording a process", state.exit)
        exited()
        guard.guarded("recording a process", state.settle, EXIT, 0)

    def unwatch() -> None:
        for name in _TOLD:  # they refer to the protocol, which would wait for the garbage collector
            protocol.__dict__.pop(name, None)

    told = (connection_made, pipe_data_received, pipe_connection_lost, process_exited)
    protocol.__dict__.update(zip(_TOLD, told, strict=True))
    state.on_close = unwatch
    protocol.__dict__[_STATE] = state


def _watch_input(writer: Any, state: Recording) -> None:
    """Keep what is written to a `StreamWriter`, or to the transport of a pipe. Raises: AttributeError."""
    write = writer.write

    def note(data: Any) -> None:
        guard.guarded("what a process is given", state.add, bytes(data))
        write(data)

    writer.write = note
    writer.writelines = lambda data: note(b"".join(data))


def _watch_transport(transport: Any, state: Recording) -> None:
    """Note what the agent does to a process without asyncio's `Process` and `StreamWriter`."""
    try:
        pipe = transport.get_pipe_transport(0)
        if pipe is not None:
            _watch_input(pipe, state)
        for name, number in _SIGNALS:
            setattr(transport, name, _told_signal(getattr(transport, name), state.command, number))
    except AttributeError:
        state.lack("its input and its signals were not recorded: they pass through native code")


def _told_signal(real: Callable[..., None], command: list[str], number: int | None) -> Callable[..., None]:
    def send(*args: Any) -> None:
        _note_signal(command, args[0] if number is None else number)
        real(*args)

    return send


def _note_signal(command: list[str], number: int) -> None:
    told = {"args": command, "signal": int(number)}
    note_effect("asyncio.subprocess.send_signal", told, Effect.IRREVERSIBLE)


class ServedTransport(asyncio.SubprocessTransport):
    """Stands for a process that was not started."""

    def __init__(
        self, loop: Any, protocol: Any, value: Mapping[str, Any], pipes: set[int], given: Given, command: list[str]
    ) -> None:
        super().__init__()
        self.given, self.command = given, command
        self._loop = loop
        self._protocol = protocol
        self._is_alone = not isinstance(protocol, asyncio.subprocess.SubprocessStreamProtocol)
        self._pid = int(value["pid"])
        self._returncode: int | None = None
        self._pipes = {fd: ServedPipe(None if fd else self._close_input, given.add) for fd in pipes}
        self._is_input_open = 0 in pipes
        self._waiters: list[asyncio.Future[int | None]] = []
        self._left = {fd: bytes(value[name]) for fd, name in _OUTPUTS.items()}
        self._steps = value["steps"]
        # Redaction may have made the output longer: then it can't be cut at the recorded sizes
        self._is_whole = {
            fd: len(self._left[fd]) == sum(s[3] for s in self._steps if s[1] == DATA and s[2] == fd) for fd in _OUTPUTS
        }
        self.playing: Any = None
        replayed_pids.add(self._pid)
        protocol.connection_made(self)

    def get_pid(self) -> int:
        """Return the recorded process ID."""
        return self._pid

    def get_returncode(self) -> int | None:
        """Return the exit status; None until the exit is delivered."""
        return self._returncode

    def get_pipe_transport(self, fd: int) -> Any:
        """Return the transport of one pipe."""
        return self._pipes.get(fd)

    def _close_input(self) -> None:
        """Close the input, because the agent or the program has ended it: whoever waits for that goes on."""
        if self._is_input_open:
            self._is_input_open = False
            self._loop.call_soon(self._protocol.pipe_connection_lost, 0, None)

    async def _wait(self) -> int | None:
        if self._returncode is None:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        self.given.compare()
        return self._returncode

    def send_signal(self, signal: int) -> None:
        """Compare the signal if nobody above did; there is no process, and its end is recorded."""
        if self._is_alone:
            _note_signal(self.command, signal)

    def terminate(self) -> None:
        """Same as `send_signal`."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Same as `send_signal`."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def is_closing(self) -> bool:
        """Whether the process has ended."""
        return self._returncode is not None

    async def play(self, crossing: Crossing) -> None:
        """Deliver the process's events to the protocol, each at its turn."""
        try:
            for part, (ms, what, fd, data) in enumerate(self._steps):
                await await_turn(crossing, part, ms)
                self._tell(what, fd, data)
        finally:
            end_stream(crossing)

    def _tell(self, what: str, fd: int, data: int) -> None:
        if what == DATA:
            size = data if self._is_whole[fd] else len(self._left[fd])
            piece, self._left[fd] = self._left[fd][:size], self._left[fd][size:]
            if piece:
                self._protocol.pipe_data_received(fd, piece)
        elif what == EOF:
            if fd in self._pipes:
                self._protocol.pipe_connection_lost(fd, None)
        else:
            self._returncode = data
            self._close_input()
            self._protocol.process_exited()
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(data)


class ServedPipe(asyncio.WriteTransport, asyncio.ReadTransport):
    """One end of a pipe without another end."""

    def __init__(self, on_close: Callable[[], None] | None, add: Callable[[bytes], None]) -> None:
        super().__init__()
        self._on_close = on_close
        self._add = add
        self._is_closing = False

    def write(self, data: Any) -> None:
        """Keep the bytes, to be compared."""
        guard.guarded("what a process is given", self._add, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        """Same as `write`."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Close the pipe."""
        self.close()

    def can_write_eof(self) -> bool:
        """Always True, as for a pipe."""
        return True

    def get_write_buffer_size(self) -> int:
        """Always 0: nothing waits to be written."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: incoming bytes are recorded."""

    def resume_reading(self) -> None:
        """Do nothing: incoming bytes are recorded."""

    def is_reading(self) -> bool:
        """Always True."""
        return True

    def close(self) -> None:
        """Close; whoever waits for the end is told."""
        if not self._is_closing:
            self._is_closing = True
            if self._on_close is not None:
                self._on_close()

    def abort(self) -> None:
        """Same as `close`."""
        self.close()

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._is_closing


class _Start:
    """One call of a loop's `subprocess_exec` or `subprocess_shell`."""

    def __init__(self, loop: Any, real: Callable[..., Any], make: Callable[[], Any], args: Any, kwargs: Any) -> None:
        self._loop, self._real, self._make, self._args, self._kwargs = loop, real, make, args, kwargs
        self._options = {**dict.fromkeys(_PIPES, subprocess.PIPE), **kwargs, "shell": _is_shell(real)}
        if self._options["shell"]:
            self._command = command_of(args[0] if args else kwargs["cmd"])
        else:
            self._command = command_of(args or (kwargs["program"],))
        self._pipes = {fd for fd, name in enumerate(_PIPES) if self._options[name] == subprocess.PIPE}

    async def begin(self) -> Any:
        """Start the process as a call. Returns: the transport and the protocol."""
        if recorded_run() is None:
            return await self._real(self._loop, self._make, *self._args, **self._kwargs)
        crossing = begin(describe_function_call, lambda: describe_process(self._command, self._options))
        if crossing is None:
            return await self._real(self._loop, self._make, *self._args, **self._kwargs)
        return await (self._execute_child(crossing) if crossing.served is None else self._serve(crossing))

    async def _execute_child(self, crossing: Crossing) -> Any:  # by this name, uvloop's fork is a program's start
        environ = guard.guarded("naming the run to a process", parent_run.hand_down, crossing, self._kwargs.get("env"))
        state = Recording(crossing, self._command, self._pipes)

        def make() -> Any:
            protocol = self._make()
            try:
                _watch(protocol, state)
            except AttributeError:
                state.lack(f"what it did was not recorded: {type(protocol).__qualname__} takes no attributes")
            return protocol

        kwargs = self._kwargs if environ is None else {**self._kwargs, "env": environ}
        try:
            with crossing:
                return await self._real(self._loop, make, *self._args, **kwargs)
        except BaseException as exc:
            guard.guarded("recording an exception", close_error, crossing, exc)
            raise

    async def _serve(self, crossing: Crossing) -> Any:
        response = load_response(crossing)
        if "error" in response:
            end_stream(crossing)
            raise decode_error(crossing, response["error"])
        protocol = self._make()
        value = codec.decode(response["value"])
        given = Given(crossing, value)
        if 0 in self._pipes:
            given.wait()
        transport = ServedTransport(self._loop, protocol, value, self._pipes, given, self._command)
        transport.playing = self._loop.create_task(transport.play(crossing))  # loops hold tasks weakly
        return transport, protocol


def _is_shell(real: Callable[..., Any]) -> bool:
    return real.__name__.endswith("shell")


def _patch_starts(patches: Patches, owner: Any) -> None:
    """Patch `create_subprocess_*`: a task may run their coroutines, in which nobody sees any more who asked."""
    for name in ("create_subprocess_exec", "create_subprocess_shell"):
        real = getattr(owner, name)

        def create(patch: Patch, *args: Any, **kwargs: Any) -> Any:
            return _create(patch.__wrapped__, args, kwargs, is_asked=is_of_run(_getframe(1)))

        install_patch(patches, owner, name, create, Patch(owner.__name__, name, real))


async def _create(real: Callable[..., Any], args: Any, kwargs: Any, *, is_asked: bool) -> Any:
    token = set_variable(_asked, is_asked)
    try:
        return await real(*args, **kwargs)
    finally:
        reset_variable(_asked, token)


def patch_loop(patches: Patches, cls: Any) -> None:
    """Patch the methods of a class of event loops that start programs."""
    for name in ("subprocess_exec", "subprocess_shell"):
        real = getattr(cls, name)

        def start(self: Any, protocol_factory: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
            is_asked = _asked.get()
            if is_of_run(_getframe(1)) if is_asked is None else is_asked:
                return _Start(self, real, protocol_factory, args, kwargs).begin()
            return real(self, protocol_factory, *args, **kwargs)

        start.__name__, start.__qualname__, start.__doc__ = name, f"{cls.__name__}.{name}", real.__doc__
        patches.replace(cls, name, start)


def _patch_signals(patches: Patches, cls: Any) -> None:
    """Patch the methods that send signals: each signal is compared."""
    for name, number in (("send_signal", None), ("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)):
        real = getattr(cls, name)

        def send(self: Any, *args: Any, real: Any = real, number: int | None = number) -> None:
            served = isinstance(self._transport, ServedTransport)
            state = self._transport if served else self._protocol.__dict__.get(_STATE)
            if state is not None:
                sent = args[0] if number is None else number
                _note_signal(state.command, sent)
            real(self, *args)

        send.__name__, send.__qualname__, send.__doc__ = name, f"{cls.__name__}.{name}", real.__doc__
        patches.replace(cls, name, send)


def install(asyncio_module: Any, patches: Patches) -> None:
    """Patch asyncio's loops, its functions that start programs, and its `Process`."""
    _patch_starts(patches, asyncio_module)
    _patch_starts(patches, asyncio_module.subprocess)
    patch_loop(patches, asyncio_module.base_events.BaseEventLoop)
    _patch_signals(patches, asyncio_module.subprocess.Process)
