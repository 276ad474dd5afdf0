"""Seam: processes that the agent's code starts with `asyncio.create_subprocess_exec` and `create_subprocess_shell`.

asyncio tells a protocol what a process does: bytes on a pipe, the end of a pipe, the exit. While recording, each of
these events is noted as a part of a stream. In a replay, a transport without a process delivers the same events to the
same protocol in the same order; readers, `communicate` and timeouts are asyncio's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from spanreplay import codec
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import patch_with, recorded_run
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
from spanreplay.seams.machine.processes.processes import close_error, close_process, replayed_pids

_STATE: Final = "_spanreplay"
_OUTPUTS: Final = {1: "stdout", 2: "stderr"}
DATA, EOF, EXIT = "data", "eof", "exit"
_starting: ContextVar[Recording | None] = ContextVar("spanreplay_process", default=None)


class Recording:
    """One live process and its call."""

    def __init__(self, crossing: Crossing, command: list[str]) -> None:
        self._crossing = crossing
        self._given: list[bytes] | None = None
        self.command = command
        self._steps: list[list[Any]] = []
        self._contents: dict[int, list[bytes]] = {1: [], 2: []}
        self._size = 0
        self._is_closed = False
        self.process: Any = None
        crossing.on_abandon = self.close

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

    def follow(self) -> None:
        """Keep what the agent writes to the process."""
        if self.process.stdin is not None:
            self._given = []
            _watch_input(self.process.stdin, self.add)

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
            guard.guarded("recording a process", self._record)

    def _record(self) -> None:
        crossing = self._crossing
        value = {
            "pid": getattr(self.process, "pid", 0),
            "steps": self._steps,
            **({} if self._given is None else {STDIN: b"".join(self._given)}),
            **{name: b"".join(self._contents[fd]) for fd, name in _OUTPUTS.items()},
        }
        close_process(crossing, value)


def _watch_input(writer: Any, add: Callable[[bytes], None]) -> None:
    """Report each piece that is written to a `StreamWriter`."""
    write = writer.write

    def note(data: Any) -> None:
        guard.guarded("what a process is given", add, bytes(data))
        write(data)

    writer.write = note
    writer.writelines = lambda data: note(b"".join(data))


class ServedTransport(asyncio.SubprocessTransport):
    """Stands for a process that was not started."""

    def __init__(
        self, loop: Any, protocol: Any, value: Mapping[str, Any], pipes: set[int], given: Given, command: list[str]
    ) -> None:
        super().__init__()
        self.given, self.command = given, command
        self._loop = loop
        self._protocol = protocol
        self._pid = int(value["pid"])
        self._returncode: int | None = None
        self._pipes = {fd: ServedPipe(loop, self._close_input if fd == 0 else None) for fd in pipes}
        self._is_input_open = 0 in pipes
        self._waiters: list[asyncio.Future[int | None]] = []
        self._left = {fd: bytes(value[name]) for fd, name in _OUTPUTS.items()}
        self._steps = value["steps"]
        # Redaction may have made the output longer: then it can't be cut at the recorded sizes
        self._is_whole = {
            fd: len(self._left[fd]) == sum(s[3] for s in self._steps if s[1] == DATA and s[2] == fd) for fd in _OUTPUTS
        }
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
        """Do nothing: there is no process; the signal's consequences are recorded."""

    def terminate(self) -> None:
        """Same as `send_signal`."""

    def kill(self) -> None:
        """Same as `send_signal`."""

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

    def __init__(self, loop: Any, on_close: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._loop = loop
        self._on_close = on_close
        self._is_closing = False

    def write(self, data: Any) -> None:
        """Discard the bytes."""

    def writelines(self, list_of_data: Any) -> None:
        """Discard the bytes."""

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


async def _live(real: Callable[..., Any], crossing: Crossing, command: list[str], args: Any, kwargs: Any) -> Any:
    environ = guard.guarded("naming the run to a process", parent_run.hand_down, crossing, kwargs.get("env"))
    state = Recording(crossing, command)
    token = set_variable(_starting, state)
    try:
        with crossing:
            state.process = await real(*args, **(kwargs if environ is None else {**kwargs, "env": environ}))
    except BaseException as exc:
        guard.guarded("recording an exception", close_error, crossing, exc)
        raise
    finally:
        with contextlib.suppress(ValueError):
            reset_variable(_starting, token)
    guard.guarded("following a process", state.follow)
    return state.process


async def _serve(module: Any, crossing: Crossing, command: list[str], options: Mapping[str, Any]) -> Any:
    response = load_response(crossing)
    if "error" in response:
        end_stream(crossing)
        raise decode_error(crossing, response["error"])
    loop = asyncio.get_running_loop()
    limit = options.get("limit") or 2**16
    protocol = module.SubprocessStreamProtocol(limit=limit, loop=loop)
    pipes = {fd for fd, name in enumerate(("stdin", "stdout", "stderr")) if options.get(name) == module.PIPE}
    value = codec.decode(response["value"])
    given = Given(crossing, value)
    transport = ServedTransport(loop, protocol, value, pipes, given, command)
    process = module.Process(transport, protocol, loop)
    if process.stdin is not None:
        given.wait()
        _watch_input(process.stdin, given.add)
    protocol.__dict__["_spanreplay_play"] = loop.create_task(transport.play(crossing))  # loops hold tasks weakly
    return process


def _patch_starts(patches: Patches, owner: Any, module: Any) -> None:
    for name in ("create_subprocess_exec", "create_subprocess_shell"):
        real = getattr(owner, name)

        async def ask(*args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
            if recorded_run() is None:
                return await real(*args, **kwargs)
            is_shell = name.endswith("shell")
            command = (args[0] if args else kwargs["cmd"]) if is_shell else (args or (kwargs["program"],))
            options = {**kwargs, "shell": is_shell}
            crossing = begin(describe_function_call, lambda: describe_process(command, options))
            if crossing is None:
                return await real(*args, **kwargs)
            if crossing.served is not None:
                return await _serve(module, crossing, command_of(command), kwargs)
            return await _live(real, crossing, command_of(command), args, kwargs)

        patch_with(patches, owner, name, ask, is_of_run)


def _patch_signals(patches: Patches, cls: Any) -> None:
    """Patch the methods that send signals: each signal is compared."""
    for name, number in (("send_signal", None), ("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)):
        real = getattr(cls, name)

        def send(self: Any, *args: Any, real: Any = real, number: int | None = number) -> None:
            served = isinstance(self._transport, ServedTransport)
            state = self._transport if served else self._protocol.__dict__.get(_STATE)
            if state is not None:
                sent = args[0] if number is None else number
                told = {"args": state.command, "signal": int(sent)}
                note_effect("asyncio.subprocess.send_signal", told, Effect.IRREVERSIBLE)
            real(self, *args)

        send.__name__, send.__qualname__, send.__doc__ = name, f"{cls.__name__}.{name}", real.__doc__
        patches.replace(cls, name, send)


def _patch_protocol(patches: Patches, cls: Any) -> None:
    real_init, real_exited, real_lost = cls.__init__, cls.process_exited, cls.pipe_connection_lost
    real_data = cls.pipe_data_received

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        real_init(self, *args, **kwargs)
        state = _starting.get()
        if state is not None:
            self.__dict__[_STATE] = state
            set_variable(_starting, None)

    def pipe_data_received(self: Any, fd: int, data: bytes) -> None:
        _note(self, DATA, fd, data)
        real_data(self, fd, data)

    def pipe_connection_lost(self: Any, fd: int, exc: Exception | None) -> None:
        if fd:
            _note(self, EOF, fd, 0)
        real_lost(self, fd, exc)
        _settle(self)

    def process_exited(self: Any) -> None:
        transport = self._transport
        _note(self, EXIT, 0, transport.get_returncode() if transport is not None else 0)
        real_exited(self)
        _settle(self)

    for name, function in (
        ("__init__", init), ("pipe_data_received", pipe_data_received),
        ("pipe_connection_lost", pipe_connection_lost), ("process_exited", process_exited),
    ):  # fmt: skip
        function.__name__, function.__qualname__ = name, f"{cls.__name__}.{name}"
        patches.replace(cls, name, function)


def _note(protocol: Any, what: str, fd: int, data: bytes | int) -> None:
    state = protocol.__dict__.get(_STATE)
    if state is not None:
        guard.guarded("recording a process", state.note, what, fd, data)


def _settle(protocol: Any) -> None:
    state = protocol.__dict__.get(_STATE)
    if state is not None and protocol._process_exited and not protocol._pipe_fds:
        state.close()


def install(asyncio_module: Any, patches: Patches) -> None:
    """Patch `asyncio.create_subprocess_*`, and the protocol of its processes."""
    module = asyncio_module.subprocess
    _patch_starts(patches, asyncio_module, module)
    _patch_starts(patches, module, module)
    _patch_protocol(patches, module.SubprocessStreamProtocol)
    _patch_signals(patches, module.Process)
