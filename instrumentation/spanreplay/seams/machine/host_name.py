"""Seam: what the agent's code asks about the machine and its user; a replay answers as the recorded machine did.

Its name, its system, its processors, the user's name: they stand in prompts and decide how many workers a pool has.
The process ID stays real, because a program sends signals to it. Only code that puts the process ID into a name to make
it unique, such as a message ID, gets the recorded ID.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from spanreplay.model import ids
from spanreplay.runtime.agent_patches import Patch, asks, draws, install_patch, patch_bare, patch_with, read
from spanreplay.runtime.caller.caller import FRAMES_MAX, is_agent, is_ours
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Source, source

_KIND: Final = "environment"
_NAMES: Final = {"socket": ("gethostname",), "platform": ("node",)}
_SOURCES: Final = {
    (module, name): source(_KIND, f"{module}.{name}", is_loose=True)
    for module, names in _NAMES.items()
    for name in names
}
Asks = Callable[[FrameType], bool]


def _sizes(frame: FrameType) -> bool:
    """Whether the agent, or a library for it, asks how many processors there are, perhaps by making a pool."""
    caller: FrameType | None = frame
    for _ in range(FRAMES_MAX):
        filename = "" if caller is None else caller.f_code.co_filename
        if caller is None or not (ids.is_stdlib_file(filename) or is_ours(filename)):
            break
        caller = caller.f_back
    return caller is not None and draws(caller)


_FACTS: Final[dict[str, dict[str, Asks]]] = {
    "platform": dict.fromkeys(("machine", "platform", "processor", "release", "system", "version", "uname"), is_agent),
    "getpass": {"getuser": is_agent},
    "os": {"getlogin": is_agent, "uname": is_agent, "cpu_count": _sizes, "process_cpu_count": _sizes},
}
"""Module → functions, and whose calls count: libraries choose native code by the system, and workers by processors."""


def _unpack_uname(fields: Any) -> Any:
    return os.uname_result(fields)


def _unpack_platform(fields: Any) -> Any:
    return platform.uname_result(*fields)  # its processor is asked for when somebody needs it


def _pack_uname(fields: Any) -> list[str]:
    return list(fields)[:5]


_UNPACK: Final = {"os.uname": _unpack_uname, "platform.uname": _unpack_platform}


def _make_source(name: str) -> Source:
    fields = {"pack": _pack_uname, "unpack": _UNPACK[name]} if name in _UNPACK else {}
    return source(_KIND, name, is_loose=True, **fields)


_FACT_SOURCES: Final[dict[str, Source]] = {
    name: _make_source(name)
    for name in (f"{module}.{function}" for module, functions in _FACTS.items() for function in functions)
}


_PROCESS: Final = source(_KIND, "os.getpid", is_loose=True)
_getframe: Final = sys._getframe
_marking: Final[set[str]] = set()
"""Source files of modules that put the process ID into the names they make, such as message IDs."""


def _mark(module: Any, patches: Patches) -> None:
    _marking.add(module.__file__)
    real = os.getpid
    if not isinstance(getattr(real, "__self__", None), Patch):

        def call(patch: Patch) -> int:
            frame = _getframe(1)
            if frame.f_code.co_filename not in _marking or not asks(frame):
                return real()
            return int(read(_PROCESS, real))

        install_patch(patches, os, "getpid", call, Patch("os", "getpid", real))


def _tell(module: Any, name: str, asks: Asks, patches: Patches) -> None:
    real, fact = getattr(module, name), _FACT_SOURCES[f"{module.__name__}.{name}"]

    def tell(*args: Any, **kwargs: Any) -> Any:
        if args or kwargs:  # `platform.platform(terse=True)`: another question
            return real(*args, **kwargs)
        return read(fact, real)

    patch_with(patches, module, name, tell, asks)


def install(module: Any, patches: Patches) -> None:
    """Patch `socket`, `platform`, `getpass` or `os`, or `os.getpid` as `email.utils` or `mailbox` calls it."""
    if module.__name__ not in _NAMES and module.__name__ not in _FACTS:
        _mark(module, patches)
        return
    for name in _NAMES.get(module.__name__, ()):
        patch_bare(patches, module, name, _SOURCES[(module.__name__, name)], None)
    for name, asks_it in _FACTS.get(module.__name__, {}).items():
        if hasattr(module, name):
            _tell(module, name, asks_it, patches)
