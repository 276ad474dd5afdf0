"""Seam: processes that the agent's code starts with `subprocess` (and `os.popen`, which uses it) or `os.system`.

While recording, the bytes of each pipe are copied on their way: a thread of ours stands between the child and the file
object that the agent reads. In a replay `Popen` does everything except start the child: its pipes are files with the
recorded bytes, so reading, `communicate` and text mode are the standard library's own.
"""

from __future__ import annotations

import inspect
import os
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from spanreplay import codec
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.json_text import dump
from spanreplay.model.own_threads import make_lock, unnumbered_threads
from spanreplay.runtime.agent_patches import patch_with, recorded_run
from spanreplay.runtime.caller.whoever import is_of_run
from spanreplay.runtime.calls.function_calls import (
    FunctionCall,
    call_sync,
    decode_error,
    describe_function_call,
    load_response,
)
from spanreplay.runtime.calls.open_call import Crossing, begin
from spanreplay.runtime.calls.turns import end_stream
from spanreplay.runtime.order.waited import MEMBER, WAITED_S_MIN
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process import parent_run
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.effects import note_effect
from spanreplay.seams.machine.processes.commands import command_of, describe_process
from spanreplay.seams.machine.processes.given import STDIN
from spanreplay.seams.machine.processes.replayed import STEPS, STEPS_MAX, Replayed, replayed_pids

_getframe: Final = sys._getframe
_CHUNK_BYTES: Final = 64 * 1024
_STATE: Final = "_spanreplay"
_PIDS_MAX: Final = 10_000
_WAITS_MAX: Final = 100
"""Of one process whose length is kept."""
_ENV_AT: Final = 10
"""The position of `env` among the arguments of `Popen`."""


class _Copy:
    """The bytes that one pipe has carried so far."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self.is_cut = False
        self.is_done = False
        self.steps: list[list[int]] = []
        """How much input the program had, and how much it then wrote, piece by piece."""
        self.find_given: Callable[[], int] | None = None

    @property
    def size(self) -> int:
        """How much has come; its end counts as one byte more."""
        return self._size + self.is_done

    def add(self, piece: bytes) -> None:
        self._note_step(len(piece))
        if self._size + len(piece) > config.BODY_BYTES_MAX:
            self.is_cut = True
            return
        self._pieces.append(piece)
        self._size += len(piece)

    def _note_step(self, size: int) -> None:
        if self.find_given is not None:
            given = self.find_given()
            if self.steps and (self.steps[-1][0] == given or len(self.steps) >= STEPS_MAX):
                self.steps[-1][1] += size
            else:
                self.steps.append([given, size])

    def value(self) -> bytes:
        return b"".join(self._pieces)

    def take(self, source: int) -> bytes:
        """Read and keep the next piece of a pipe; b'' at its end."""
        piece = os.read(source, _CHUNK_BYTES)
        if piece:
            self.add(piece)
        return piece

    def end(self, source: int) -> None:
        """Note that no more bytes come: one side has closed."""
        self._note_step(0)
        self.is_done = True


class _InputCopy(_Copy):
    """The input that the agent has given to a program; read once the program has ended, whichever process took it."""

    def __init__(self, source: int) -> None:
        super().__init__()
        self._source = source
        self._changed = threading.Condition()

    def take(self, source: int) -> bytes:
        """Read the next piece; it is kept in the same step that takes it from the pipe."""
        while True:
            _poll(source, None)
            with self._changed:
                if _poll(source, 0):
                    piece = super().take(source)
                    self._changed.notify_all()
                    return piece

    def end(self, source: int) -> None:
        """Keep the bytes left in the pipe once the program stops reading or the agent stops writing: they count too."""
        with self._changed:
            while not self.is_cut and _poll(source, 0) and super().take(source):
                continue
            self.is_done = True
            self._changed.notify_all()

    def is_whole(self) -> bool:
        """Whether all input has been seen; waits briefly for it."""
        with self._changed:
            seen = self._changed.wait_for(lambda: self.is_done or not _poll(self._source, 0), _SEEN_TIMEOUT_S)
            return seen and not self.is_cut


_FRAMES_MAX: Final = 40
_FINALIZERS: Final = ("__call__", "_exitfunc")
_SEEN_TIMEOUT_S: Final = 2.0
"""For a program that has ended and left its input to another program, which does not read it."""


def _poll(descriptor: int, timeout_ms: int | None) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_ms))


def _pump(source: int, target: int, copy: _Copy, done: Callable[[], None]) -> None:
    """Carry bytes from one descriptor to another and keep them; closes both.

    The kept bytes are reported before the reader can see the end and go on to wait for the program.
    """
    try:
        while piece := copy.take(source):
            while piece:
                piece = piece[os.write(target, piece) :]
    except OSError:
        pass  # one side has gone: closing tells the other
    finally:
        guard.guarded("what a pipe held", copy.end, source)
        copy.is_done = True
        try:
            done()
        finally:
            os.close(source)
            os.close(target)


class Recording:
    """One live process and its call."""

    def __init__(self, crossing: Crossing, process: Any) -> None:
        self._crossing = crossing
        self._process = process
        self._copies: dict[str, _Copy] = {}
        self._lock = make_lock()
        self._is_closed = False
        self.waits = 0
        self.timeouts: list[int] = []
        self._waited: dict[str, float] = {}
        self.talks_since_ns = 0
        """When the `communicate` began that is under way, monotonic."""
        self.polls = 0
        crossing.on_abandon = self._close

    def follow(self) -> None:
        """Put a pump behind each pipe that the agent holds."""
        for name in ("stdin", "stdout", "stderr"):
            file = getattr(self._process, name)
            if file is None:
                continue
            held = file.fileno()
            ours = os.dup(held)
            read_end, write_end = os.pipe()
            copy = self._copies[name] = _InputCopy(read_end) if name == "stdin" else _Copy()
            given = self._copies.get("stdin")
            if given is not None and given is not copy:
                copy.find_given = lambda given=given: given.size
            if name == "stdin":
                os.dup2(write_end, held, inheritable=False)
                os.close(write_end)
                source, target = read_end, ours
            else:
                os.dup2(read_end, held, inheritable=False)
                os.close(read_end)
                source, target = ours, write_end
            pump = threading.Thread(
                target=_pump, args=(source, target, copy, self.settle), name=f"spanreplay-{name}", daemon=True
            )
            with unnumbered_threads():  # no lane: the agent has not become multithreaded
                pump.start()

    def waited(self, error: BaseException | None, since_ns: int, limit: Any) -> None:
        """Note that `wait` or `communicate` has returned or timed out; it began at `since_ns`, monotonic."""
        seconds = (ids.monotonic_ns() - (self.talks_since_ns or since_ns)) / 1e9
        if isinstance(error, subprocess.TimeoutExpired):
            self.timeouts.append(self.waits)
            seconds = max(float(limit), WAITED_S_MIN)
        if seconds >= WAITED_S_MIN and len(self._waited) < _WAITS_MAX:
            self._waited[str(self.waits)] = round(seconds, 3)
        self.waits += 1
        self.settle()

    def settle(self) -> None:
        """End the call's record once the process has ended and all its output has been carried."""
        outputs = [c.is_done for name, c in self._copies.items() if name != "stdin"]
        if self._process.returncode is not None and all(outputs):
            self._close()

    def _close(self) -> None:
        with self._lock:  # whoever comes second finds it recorded
            is_first, self._is_closed = not self._is_closed, True
            if is_first:
                guard.guarded("recording a process", self._record)

    def _record(self) -> None:
        crossing = self._crossing
        if any(c.is_cut for c in self._copies.values()):
            crossing.spec.hole = f"the process wrote more than {config.BODY_BYTES_MAX} bytes"
        given = self._copies.get("stdin")
        is_whole = not isinstance(given, _InputCopy) or given.is_whole()
        value = {
            "pid": self._process.pid,
            "returncode": self._process.returncode,
            "timeouts": self.timeouts,
            "polls": self.polls,
            **({MEMBER: self._waited} if self._waited else {}),
            **({} if is_whole else {"stdin_is_cut": True}),
            **{name: copy.value() for name, copy in self._copies.items()},
            **({STEPS: steps} if (steps := {n: c.steps for n, c in self._copies.items() if c.steps}) else {}),
        }
        close_process(crossing, value)


_recorded_pids: Final[set[int]] = set()


def _replay_init(process: Any, real: Any, crossing: Crossing, args: Any, kwargs: Any) -> None:
    response = load_response(crossing)
    end_stream(crossing)
    if "error" in response:
        raise decode_error(crossing, response["error"])
    replayed = Replayed(codec.decode(response["value"]), crossing)
    signature = inspect.signature(type(process)._execute_child)

    def execute_child(*given: Any, **named: Any) -> None:
        replayed.start(process, signature.bind(process, *given, **named).arguments)

    process._execute_child = execute_child
    process.__dict__[_STATE] = replayed
    real(process, *args, **kwargs)


def _live_init(process: Any, real: Any, crossing: Crossing, args: Any, kwargs: Any) -> None:
    environ = guard.guarded("naming the run to a process", parent_run.hand_down, crossing, kwargs.get("env"))
    try:
        with unwatched():  # Python 3.13 starts most programs with `os.posix_spawn`, which is watched
            real(process, *args, **(kwargs if environ is None or len(args) > _ENV_AT else {**kwargs, "env": environ}))
    except BaseException as exc:
        guard.guarded("recording an exception", close_error, crossing, exc)
        raise
    if len(_recorded_pids) < _PIDS_MAX:
        _recorded_pids.add(process.pid)
    state = Recording(crossing, process)
    process.__dict__[_STATE] = state
    guard.guarded("following a process", state.follow)


def close_process(crossing: Crossing, value: Mapping[str, Any]) -> None:
    """Record what a process did; its input is compared in a replay, so it is stored redacted, not sealed."""
    spec = crossing.spec
    raw: dict[str, Any] = {"value": codec.encode(value)}
    clean: Any = crossing.run.redactor.value(raw, spec.redactions)
    if isinstance(clean, dict) and STDIN in value:
        raw = {"value": {**raw["value"], STDIN: clean["value"][STDIN]}}
    spec.raw = raw
    crossing.close(Outcome.OK, dump(clean))


def close_error(crossing: Crossing, exc: BaseException) -> None:
    spec = crossing.spec
    spec.raw = {"error": codec.encode_exception(exc)}
    crossing.close(Outcome.ERROR, dump(crossing.run.redactor.value(spec.raw, spec.redactions)))


def _is_finalizing(frame: FrameType | None) -> bool:
    """Whether an unreferenced object ends its program: the garbage collector decides when that happens."""
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_filename == weakref.__file__ and code.co_name in _FINALIZERS):
            return True
        frame = frame.f_back
    return False


def _patch_popen(patches: Patches) -> None:
    cls = subprocess.Popen
    real_init, real_wait, real_poll = _without_recorded(cls.__init__), cls.wait, cls.poll
    real_communicate, real_signal = cls.communicate, cls.send_signal
    signature = inspect.signature(cls.__init__)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_of_run(_getframe(1)) or recorded_run() is None:
            real_init(self, *args, **kwargs)
            return
        options = signature.bind(self, *args, **kwargs).arguments
        crossing = begin(describe_function_call, lambda: describe_process(options["args"], options))
        if crossing is None:
            real_init(self, *args, **kwargs)
        elif crossing.served is not None:
            _replay_init(self, real_init, crossing, args, kwargs)
        else:
            _live_init(self, real_init, crossing, args, kwargs)

    def wait(self: Any, timeout: float | None = None) -> Any:
        state = self.__dict__.get(_STATE)
        if isinstance(state, Replayed):
            return state.wait(self, timeout)
        return _watched(state, timeout, lambda: real_wait(self, timeout=timeout))

    def communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:  # noqa: A002 -- its name there
        state = self.__dict__.get(_STATE)
        if not isinstance(state, Recording):
            return real_communicate(self, input=input, timeout=timeout)
        waits, since_ns = state.waits, ids.monotonic_ns()
        state.talks_since_ns = since_ns
        try:
            return real_communicate(self, input=input, timeout=timeout)
        except subprocess.TimeoutExpired as exc:
            if state.waits == waits:  # the time was up before it called `wait`
                state.waited(exc, since_ns, timeout)
            raise
        finally:
            state.talks_since_ns = 0

    def poll(self: Any) -> Any:
        state = self.__dict__.get(_STATE)
        if isinstance(state, Replayed):
            return state.poll(self)
        result = real_poll(self)
        if isinstance(state, Recording):
            state.polls += result is None
            state.settle()
        return result

    def send_signal(self: Any, sig: int) -> None:
        state = self.__dict__.get(_STATE)
        if state is not None and not _is_finalizing(_getframe(1)):
            note_effect(
                "subprocess.send_signal", {"args": command_of(self.args), "signal": int(sig)}, Effect.IRREVERSIBLE
            )
        if not isinstance(state, Replayed):
            real_signal(self, sig)

    for name, function in (
        ("__init__", init), ("wait", wait), ("communicate", communicate), ("poll", poll), ("send_signal", send_signal),
    ):  # fmt: skip
        real = getattr(cls, name)
        function.__name__, function.__qualname__, function.__doc__ = name, f"Popen.{name}", real.__doc__
        patches.replace(cls, name, function)


def _watched(state: Any, limit: Any, live: Callable[[], Any]) -> Any:
    if not isinstance(state, Recording):
        return live()
    since_ns = ids.monotonic_ns()
    try:
        result = live()
    except subprocess.TimeoutExpired as exc:
        state.waited(exc, since_ns, limit)
        raise
    state.waited(None, since_ns, limit)
    return result


def _describe_pid(pid: int) -> int | str:
    """Return a process's name that is the same in each run; the IDs of other processes vary by machine."""
    if pid in replayed_pids or pid in _recorded_pids:
        return pid
    return {0: "group", os.getppid(): "parent"}.get(pid, "other")


def _without_recorded(real: Callable[..., None]) -> Callable[..., None]:
    """Wrap the real start of a program; in a replay it leaves out variables that are not set here."""

    def start(process: Any, *args: Any, **kwargs: Any) -> None:
        run = active_run()
        if run is not None and len(args) <= _ENV_AT:
            environ = run.resolver.variables.withhold(kwargs.get("env"))
            kwargs = kwargs if environ is None else {**kwargs, "env": environ}
        real(process, *args, **kwargs)

    return start


def _run_without_recorded(system: Callable[[Any], int], command: Any) -> int:
    """Call `os.system`, which passes on the process's environment, without variables that are not set here."""
    run = active_run()
    if run is None:
        return system(command)
    with run.resolver.variables.set_aside():
        return system(command)


def _patch_os(patches: Patches) -> None:
    system, kill = os.system, os.kill

    def ask_system(command: Any) -> Any:
        if recorded_run() is None:
            return _run_without_recorded(system, command)
        shown = {"command": os.fsdecode(command)}
        return call_sync(
            lambda: FunctionCall(Kind.TOOL.value, "os.system", Effect.IRREVERSIBLE.value, shown),
            lambda: _run_without_recorded(system, command),
        )

    def ask_kill(pid: int, sig: int, /) -> None:
        if pid != os.getpid():  # a process's signal to itself is not an effect on others, and may end it
            note_effect("os.kill", {"process": _describe_pid(pid), "signal": int(sig)}, Effect.IRREVERSIBLE)
        if pid not in replayed_pids:
            kill(pid, sig)

    patch_with(patches, os, "system", ask_system, is_of_run)
    patch_with(patches, os, "kill", ask_kill)
    if hasattr(os, "killpg"):
        killpg = os.killpg

        def ask_killpg(group: int, sig: int, /) -> None:
            note_effect("os.killpg", {"process": _describe_pid(group), "signal": int(sig)}, Effect.IRREVERSIBLE)
            if group not in replayed_pids:
                killpg(group, sig)

        patch_with(patches, os, "killpg", ask_killpg)


def install(module: Any, patches: Patches) -> None:
    """Patch `subprocess.Popen`, `os.system` and `os.kill`."""
    _patch_popen(patches)
    _patch_os(patches)
