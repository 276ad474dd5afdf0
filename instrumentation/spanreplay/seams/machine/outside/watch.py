"""Seam: functions through which a program reaches the world in ways that no other seam records.

Nothing is changed: while recording, a call outside every boundary is noted as a leak, with its location. POINTS has one
row per function; functions that cannot be replaced in Python (`io.FileIO`, C libraries) are covered by
`SPANREPLAY_AUDIT=full`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.agent_patches import Patch, install_patch
from spanreplay.runtime.caller.caller import is_agent
from spanreplay.runtime.caller.places import places
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.outside_io import (
    describe_library,
    describe_program,
    is_known_start,
)
from spanreplay.runtime.process.own_ports import connects_to_own
from spanreplay.seams.machine.outside import connections, device_reads, leaks, native_connections
from spanreplay.seams.machine.sockets.socket_askers import is_stream

_getframe: Final = sys._getframe
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Point:
    """One function of one module; `owner` is a class in it, or nothing."""

    module: str
    name: str
    kind: str
    describe: Callable[[tuple[Any, ...]], str]
    """Its positional arguments → the text shown; '' if this call is not a leak."""
    owner: str = ""
    of_agent_only: bool = False
    """Whether it counts only when called by the agent's own code, not by a library."""
    is_known: Callable[[Any], bool] | None = None
    """Whether a call from this frame is recorded or watched elsewhere."""


def describe_address(address: Any) -> str:
    """Return `host:port`, or the path of a socket; '' for a server of this process."""
    if isinstance(address, tuple) and len(address) >= 2:
        if connects_to_own(str(address[0]), address[1]):
            return ""
        return f"{address[0]}:{address[1]}"
    return os.fsdecode(address) if isinstance(address, (str, bytes)) else str(type(address).__name__)


def describe_read(path: Any, flags: int) -> str:
    """Return the path of a data file that is read; '' for writes, for code and for files that belong to the machine."""
    if not isinstance(path, (str, bytes, os.PathLike)) or flags & _WRITES:
        return ""
    text = os.fsdecode(path)
    return text if places().is_data(text) and not places().is_of_machine(text) else ""


def _loaded(args: tuple[Any, ...]) -> str:
    return describe_library(args[1] if len(args) > 1 else None)


def _connected(args: tuple[Any, ...]) -> str:
    """Return a stream's address; another seam covers datagrams (`datagrams`)."""
    return describe_address(args[1]) if len(args) > 1 and is_stream(args[0]) else ""


def _name(text: str) -> Callable[[tuple[Any, ...]], str]:
    return lambda args: text


def _spawned(at: int) -> Callable[[tuple[Any, ...]], str]:
    return lambda args: describe_program(args[at]) if len(args) > at else "a program"


POINTS: Final = (
    Point("socket", "connect", "socket", _connected, "socket"),
    Point("socket", "connect_ex", "socket", _connected, "socket"),
    *(
        Point("os", name, "process", _spawned(0))
        for name in ("posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp")
    ),
    *(Point("os", name, "process", _spawned(1)) for name in ("spawnv", "spawnve", "spawnvp", "spawnl", "spawnlp")),
    Point("_posixsubprocess", "fork_exec", "process", _spawned(0), is_known=is_known_start),
    Point("os", "getrandom", "random", _name("random bytes"), of_agent_only=True),
    Point("time", "clock_gettime", "clock", _name("the clock"), of_agent_only=True),
    Point("time", "clock_gettime_ns", "clock", _name("the clock"), of_agent_only=True),
    Point("ctypes", "CDLL", "native", _loaded, "CDLL", of_agent_only=True),
)  # fmt: skip


def _watch(patches: Patches, owner: Any, name: str, point: Point) -> None:
    real, is_connect = getattr(owner, name), point.kind == "socket"

    def see(frame: Any, args: tuple[Any, ...]) -> None:
        if is_connect:
            native_connections.note_python(args[0])
        if leaks.leaking_run() is None or (point.of_agent_only and not is_agent(frame)):
            return
        if point.is_known is not None and point.is_known(frame):
            return
        detail = point.describe(args)
        if detail and leaks.note(point.kind, f"{point.module}.{name}", detail) and is_connect:
            connections.note_leaking(*args[:2])

    if isinstance(owner, type):

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            guard.guarded("watching", see, _getframe(1), (self, *args))
            return real(self, *args, **kwargs)

        method.__name__, method.__qualname__, method.__doc__ = name, f"{owner.__name__}.{name}", real.__doc__
        patches.replace(owner, name, method)
        return

    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        guard.guarded("watching", see, _getframe(1), args)
        return real(*args, **kwargs)

    install_patch(patches, owner, name, call, Patch(owner.__name__, name, real))


def install(module: Any, patches: Patches) -> None:
    """Watch the functions of one module."""
    if module is os:
        device_reads.install(module, patches)
    elif module.__name__ == "ssl":
        connections.watch_tls(module, patches)
    elif module.__name__ == "asyncio":
        device_reads.install_loops(module, patches)
    for point in POINTS:
        if point.module != module.__name__:
            continue
        owner = getattr(module, point.owner) if point.owner else module
        name = "__init__" if point.name == "CDLL" else point.name
        if hasattr(owner, name):
            _watch(patches, owner, name, point)
