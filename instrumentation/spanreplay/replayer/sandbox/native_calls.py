"""Finds ways around the audited events: the C library through ctypes, and `fork_exec`, which raises no event.

A symbol counts by its origin, not by its name: a symbol of the C library found through another library's handle belongs
to the C library. Code without a file (`eval`, `exec`) counts as the agent's here, whichever library runs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import Any, Final

from spanreplay.runtime.caller.caller import FRAMES_MAX, PASS, is_agent, is_ours, origin_of
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.outside_io import describe_library, is_known_start, loader_of

EVENTS: Final = ("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function")
_C_LIBRARIES: Final = ("libc.so.6", "libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1", "libc.so", "libSystem.B.dylib")
_OF_PYTHON: Final = ("Py", "_Py")
"""Prefixes of the interpreter's own functions; whatever they run raises audit events."""

OnProgram = Callable[[Any, FrameType], None]
"""Receives the program that `fork_exec` is about to start, and its caller; raises to deny it."""

OnSymbol = Callable[[tuple[Any, ...], FrameType], None]
"""Receives a library and a name in it, and the caller; raises to deny it."""


def describe_call(event: str, args: tuple[Any, ...], frame: FrameType | None) -> str:
    """Describe what the agent calls through ctypes; '' for pure computation, and for other callers."""
    found = _describe(event, args)
    return found if found and _is_asked_by_agent(loader_of(frame)) else ""


def _describe(event: str, args: tuple[Any, ...]) -> str:
    if event == "ctypes.dlopen":
        return describe_library(args[0] if args else None)
    if event == "ctypes.call_function":
        return "an address"
    library, symbol = args
    name = os.fsdecode(symbol) if isinstance(symbol, (str, bytes)) else ""
    if not name or name.startswith(_OF_PYTHON):
        return ""
    handle = library if event == "ctypes.dlsym/handle" else getattr(library, "_handle", None)
    return "the C library" if isinstance(handle, int) and _is_of_c_library(handle, name) else ""


def _is_of_c_library(handle: int, name: str) -> bool:
    """Whether a library's symbol belongs to the C library; a handle also finds symbols of dependencies."""
    import _ctypes

    own = _c_library()
    try:
        return own is not None and _ctypes.dlsym(handle, name) == _ctypes.dlsym(own, name)
    except OSError:
        return False


@lru_cache(maxsize=1)
def _c_library() -> int | None:
    import _ctypes

    for name in _C_LIBRARIES:
        try:
            return _ctypes.dlopen(name, os.RTLD_LAZY | getattr(os, "RTLD_NOLOAD", 0))
        except OSError:
            continue
    return None


def _is_asked_by_agent(frame: FrameType | None) -> bool:
    at = frame
    for _ in range(FRAMES_MAX):
        if at is None or is_ours(at.f_code.co_filename):
            break
        if at.f_code.co_filename.startswith("<") and not at.f_code.co_filename.startswith("<frozen"):
            return True
        if origin_of(at) != PASS:
            break
        at = at.f_back
    return is_agent(frame)


def hear_kept_symbols(patches: Patches, on_symbol: OnSymbol) -> None:
    """Call `on_symbol` for functions that a library looked up earlier: ctypes caches them without an event."""
    try:
        import _ctypes
        import ctypes
    except ImportError:
        return
    function = _ctypes.CFuncPtr

    def get(self: Any, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if isinstance(found, function):
            on_symbol((self, name), sys._getframe(1))
        return found

    patches.replace(ctypes.CDLL, "__getattribute__", get)


# ── fork_exec ───────────────────────────────────────────────────────────────────────────────────────
def hear_fork_exec(patches: Patches, on_program: OnProgram) -> None:
    """Call `on_program` before `fork_exec` starts a program, unless the standard library calls it.

    `subprocess` has already raised its event by then, and `multiprocessing` starts processes of the run.
    """
    try:
        import _posixsubprocess
    except ImportError:  # not on this system
        return
    real = _posixsubprocess.fork_exec

    def fork_exec(*args: Any) -> Any:
        frame = sys._getframe(1)
        if not is_known_start(frame):
            on_program(args[1] if len(args) > 1 else "", frame)
        return real(*args)

    patches.replace(_posixsubprocess, "fork_exec", fork_exec)
    subprocess = sys.modules.get("subprocess")
    if hasattr(subprocess, "_fork_exec"):
        patches.replace(subprocess, "_fork_exec", fork_exec)
