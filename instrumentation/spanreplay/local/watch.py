"""Seam: functions through which a program reaches the world in ways that no other seam records.

Nothing is changed: while recording, a call outside of every boundary is noted as a leak, with its place. One row of
POINTS a function; what cannot be replaced in Python (`io.FileIO`, C libraries) is seen by `SPANREPLAY_AUDIT=full`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from spanreplay import guard
from spanreplay._patch import Patches
from spanreplay.local import leaks
from spanreplay.local.patching import Patch, asks, install_patch
from spanreplay.local.places import places
from spanreplay.own_servers import is_own

_getframe: Final = sys._getframe
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Point:
    """One function of one module; `owner` is a class in it, or nothing."""

    module: str
    name: str
    kind: str
    describe: Callable[[tuple[Any, ...]], str]
    """Its positional arguments → what is shown; '' if this call is no leak."""
    owner: str = ""
    of_agent_only: bool = False
    """Whether it counts only where the agent's own code calls it, not a library."""


def describe_address(address: Any) -> str:
    """`host:port`, or the path of a socket; '' for a server of this process."""
    if isinstance(address, tuple) and len(address) >= 2:
        if is_own(str(address[0]), address[1]):
            return ""
        return f"{address[0]}:{address[1]}"
    return os.fsdecode(address) if isinstance(address, (str, bytes)) else str(type(address).__name__)


def describe_program(program: Any) -> str:
    """The name of a program, without its arguments: they may be secret."""
    listed = program if isinstance(program, (str, bytes, os.PathLike)) else (list(program) or [""])[0]
    text = os.fsdecode(listed)
    return os.path.basename(text.split()[0] if text.split() else text)  # noqa: PTH119 -- any text


def describe_read(path: Any, flags: int) -> str:
    """The path of a data file that is read; '' for what is written, for code and for what is the machine's."""
    if not isinstance(path, (str, bytes, os.PathLike)) or flags & _WRITES:
        return ""
    text = os.fsdecode(path)
    return text if places().is_data(text) and not places().is_of_machine(text) else ""


def loader_of(frame: FrameType | None) -> FrameType | None:
    """The code that wants a library which `ctypes` loads here."""
    while frame is not None and (frame.f_code.co_filename == ctypes_file() or _is_watching(frame)):
        frame = frame.f_back
    return frame


def ctypes_file() -> str:
    """The code file of `ctypes`, which need not be loaded."""
    return str(getattr(sys.modules.get("ctypes"), "__file__", ""))


def _is_watching(frame: FrameType) -> bool:
    return frame.f_code.co_filename == __file__


def describe_library(name: Any) -> str:
    """The C library, which can do everything; '' for a library of the agent's own, which computes."""
    text = "" if name is None else os.path.basename(os.fsdecode(name))  # noqa: PTH119 -- any text
    return "the C library" if name is None or text.startswith(("libc.", "libc-", "libSystem")) else ""


def _loaded(args: tuple[Any, ...]) -> str:
    return describe_library(args[1] if len(args) > 1 else None)


def _connected(args: tuple[Any, ...]) -> str:
    return describe_address(args[1]) if len(args) > 1 else ""


def _sent_to(args: tuple[Any, ...]) -> str:
    return describe_address(args[-1]) if len(args) > 1 else ""


def _name(text: str) -> Callable[[tuple[Any, ...]], str]:
    return lambda args: text


def _spawned(at: int) -> Callable[[tuple[Any, ...]], str]:
    return lambda args: describe_program(args[at]) if len(args) > at else "a program"


POINTS: Final = (
    Point("socket", "connect", "socket", _connected, "socket"),
    Point("socket", "connect_ex", "socket", _connected, "socket"),
    Point("socket", "sendto", "socket", _sent_to, "socket"),
    Point("socket", "sendmsg", "socket", lambda a: describe_address(a[4]) if len(a) > 4 else "", "socket"),
    *(
        Point("os", name, "process", _spawned(0))
        for name in ("posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp")
    ),
    *(Point("os", name, "process", _spawned(1)) for name in ("spawnv", "spawnve", "spawnvp", "spawnl", "spawnlp")),
    Point("os", "getrandom", "random", _name("random bytes"), of_agent_only=True),
    Point("time", "clock_gettime", "clock", _name("the clock"), of_agent_only=True),
    Point("time", "clock_gettime_ns", "clock", _name("the clock"), of_agent_only=True),
    Point("ctypes", "CDLL", "native", _loaded, "CDLL", of_agent_only=True),
)  # fmt: skip


def _watch(patches: Patches, owner: Any, name: str, point: Point) -> None:
    real = getattr(owner, name)

    def see(frame: Any, args: tuple[Any, ...]) -> None:
        if leaks.leaking_run() is None or (point.of_agent_only and not asks(frame)):
            return
        detail = point.describe(args)
        if detail:
            leaks.note(point.kind, f"{point.module}.{name}", detail)

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
    for point in POINTS:
        if point.module != module.__name__:
            continue
        owner = getattr(module, point.owner) if point.owner else module
        name = "__init__" if point.name == "CDLL" else point.name
        if hasattr(owner, name):
            _watch(patches, owner, name, point)
