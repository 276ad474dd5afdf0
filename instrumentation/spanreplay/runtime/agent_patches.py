"""Patches that look like the functions they replace, check who is calling, and get the value from the run.

A built-in function that is a class attribute does not become a method; a Python function would. A bound method does not
either, so each patch is the bound `__call__`-like method of a small object.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, MethodType, ModuleType
from typing import Any, Final

from spanreplay.model import owners
from spanreplay.model.distributions import find_distribution
from spanreplay.runtime.caller.caller import (
    AGENT,
    FOREIGN,
    LIBRARY,
    classify,
    foreign,
    handed,
    is_among,
    known,
    serves_agent,
    serving,
    who_asks,
)
from spanreplay.runtime.calls.open_call import is_suppressed
from spanreplay.runtime.lanes import current_crossing, current_place
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Draw, Source, in_tools, of_libraries, of_servers
from spanreplay.runtime.run import Run, active_run

_getframe: Final = sys._getframe


class Patch:
    """The object behind one patched function; pickles and copies as the function's name."""

    __slots__ = ("__wrapped__", "bound", "module", "name")

    def __init__(self, module: str, name: str, real: Any) -> None:
        self.module = module
        self.name = name
        self.__wrapped__ = real
        self.bound: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return find_owner, (self.module, self.name)

    def __deepcopy__(self, memo: Any) -> Patch:
        return self

    def __getattr__(self, name: str) -> Any:
        # Pickle reduces a bound method to this object and the method's name
        if name == self.name:
            return self.bound
        raise AttributeError(name)


def find_owner(module: str, name: str) -> Any:
    """The object that holds the function `name` of a module: its patch, else the module."""
    owner = sys.modules[module]
    patch = getattr(getattr(owner, name), "__self__", None)
    return patch if isinstance(patch, Patch) else owner


WALL: Final = "wall"
"""The family of clocks that tell the date."""


class _Asked(threading.local):
    apart: Callable[[Source], Source] | None = None


_CARRIERS: Final = (owners.PASSES,)
"""Libraries that read the date for their caller, but the stopwatch for themselves.

For example, they measure how long a statement took to compile (once per process), or the age of a pooled connection.
"""
_SDKS: Final = (owners.MODEL_SDKS,)
_KEEPING: Final = (f"{os.sep}pool{os.sep}", f"{os.sep}dialects{os.sep}")
"""Parts of them that keep connections, and statements that were prepared on one."""
_asked: Final = _Asked()
"""For what is not the agent's own: the source of its values, by the caller last checked in this thread.

The read follows immediately.
"""


def read(source: Source, draw: Draw, shifted: Callable[[int], Any] | None = None) -> Any:
    """One read by the code that `asks` has just checked: recorded or replayed, except inside calls other than tools."""
    apart, _asked.apart = _asked.apart, None
    if apart is None:
        return _read(source, draw, shifted, is_secret=source.is_secret)
    return _read(apart(source), draw, shifted, is_secret=False)


def read_fitting(source: Source, draw: Draw, fits: Callable[[Any], bool]) -> Any:
    """Like `read`; a new value, and a note, if the recorded one does not fit what the program asks for now."""
    value = read(source, draw)
    if fits(value):
        return value
    run = active_run()
    if run is not None and run.reads is not None:
        lane, crossing = current_place(run.root_lane)
        run.reads.misfit(lane, source if crossing is None else in_tools(source))
    return draw()


def _read(source: Source, draw: Draw, shifted: Callable[[int], Any] | None, *, is_secret: bool) -> Any:
    run = active_run()
    if run is None or run.reads is None:
        return draw()
    lane, crossing = current_place(run.root_lane)
    if crossing is not None:
        if crossing.body_lane is None or crossing.is_live_by_plan:  # the result is recorded, not what it is made of
            return draw()
        lane, source = (crossing.body_lane if lane is crossing.lane else lane), in_tools(source)
        is_secret = False  # a replay serves the result, and would not know what is secret in it
    value = run.reads.read(lane, source, draw, shifted)
    if is_secret:
        run.redactor.learn_made(value)
    return value


def recorded_run() -> Run | None:
    """The run to which the agent's code adds a call here; None inside another call, whose result is recorded."""
    run = active_run()
    if run is None or is_suppressed() or current_crossing(run.root_lane) is not None:
        return None
    return run


def asks(frame: FrameType) -> bool:
    """Whether the code in this frame is the agent's, or a library's that works for it; tries the fast path first."""
    filename = frame.f_code.co_filename
    if filename in foreign:
        return False
    who = AGENT if known.get(filename) == AGENT else who_asks(frame)
    _asked.apart = of_libraries if who == LIBRARY else None
    if who == FOREIGN and handed.is_background:
        _note_background(filename)
    return who != FOREIGN


def _note_background(filename: str) -> None:
    run = active_run()
    if run is not None and run.leaks is not None and classify(filename) == LIBRARY:
        run.leaks.note_background(find_distribution(filename))


def picks(frame: FrameType) -> bool:
    """Like `asks`, but also true if a model SDK picks something here: a router picks which model to call."""
    if asks(frame):
        return True
    if handed.is_background or not is_among(frame.f_code.co_filename, _SDKS):
        return False
    _asked.apart = of_libraries
    return True


def draws(frame: FrameType) -> bool:
    """Like `asks`, but also true for a server or worker that draws a value for the agent, which calls it."""
    if asks(frame):
        return True
    if not serves_agent(frame):
        return False
    _asked.apart = of_servers
    return True


def read_beside(draw: Draw, shifted: Callable[[int], Any], frame: FrameType) -> Any:
    """A time for code whose reads are not recorded: in a replay, threads of libraries see the recorded time too.

    What they clean up by the clock, such as a cache or the counts of a rate limit, would else have expired.
    """
    if handed.is_background and known.get(frame.f_code.co_filename) == LIBRARY:
        run = active_run()
        shift = 0 if run is None or run.reads is None else run.reads.shift(WALL)
        if shift:
            return shifted(shift)
    return draw()


def patch_bare(patches: Patches, module: Any, name: str, source: Source, shifted: Any) -> None:
    """Replace `module.name`, which takes no arguments: the hot path."""
    real, is_secret = getattr(module, name), source.is_secret
    is_stopwatch, is_wall = source.family not in ("", WALL), source.family == WALL

    def call(patch: Patch) -> Any:
        frame = _getframe(1)
        filename = frame.f_code.co_filename
        if known.get(filename) == AGENT:
            return _read(source, real, shifted, is_secret=is_secret)
        if filename in foreign and filename not in serving:
            return real()
        if not (asks(frame) if is_stopwatch else draws(frame)):
            return read_beside(real, shifted, frame) if is_wall else real()
        if (is_stopwatch or any(part in filename for part in _KEEPING)) and is_among(filename, _CARRIERS):
            _asked.apart = of_libraries
        return read(source, real, shifted)

    install_patch(patches, module, name, call, Patch(module.__name__, name, real))


def patch_with(
    patches: Patches, module: Any, name: str, ask: Callable[..., Any], asks: Callable[[FrameType], bool] = asks
) -> None:
    """Replace `module.name`; for code that `asks` accepts (the agent's), `ask(*args, **kwargs)` gives the value."""
    real = getattr(module, name)

    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        if not asks(_getframe(1)):
            return real(*args, **kwargs)
        return ask(*args, **kwargs)

    install_patch(patches, module, name, call, Patch(module.__name__, name, real))


def install_patch(patches: Patches, owner: Any, name: str, call: Callable[..., Any], patch: Patch) -> None:
    """Put a patch in place of `owner.name`."""
    call.__name__ = name
    call.__qualname__ = name
    call.__doc__ = getattr(patch.__wrapped__, "__doc__", None)
    call.__module__ = patch.module
    patch.bound = MethodType(call, patch)
    patches.replace(owner, name, patch.bound)


_KEEPERS: Final = (("pathlib", "_NormalAccessor"), ("glob", "_StringGlobber"))
"""Classes of Python 3.10's and 3.13's standard library that keep their own references to functions of `os`."""
_ABILITIES: Final = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids")


def replace_copies(patches: Patches, real: Any, made: Any) -> None:
    """Replace a function wherever a standard library module refers to it by a name of its own.

    `bz2`, `tarfile` and `tokenize` do so with `open`.
    """
    for name in sorted(sys.stdlib_module_names & set(sys.modules)):
        module = sys.modules[name]
        if name.startswith("_") or not isinstance(module, ModuleType):
            continue
        names = object.__getattribute__(module, "__dict__")  # vars() would load a lazy module
        for key in [key for key, value in list(names.items()) if value is real]:
            patches.replace(module, key, made)


def replace_in_os(patches: Patches, name: str, call: Callable[..., Any]) -> None:
    """Replace `os.name`, also wherever the standard library compares it by identity."""
    real = getattr(os, name)
    install_patch(patches, os, name, call, Patch("os", name, real))
    made = getattr(os, name)
    for ability in _ABILITIES:
        known = getattr(os, ability)
        if real in known:
            patches.replace(os, ability, known | {made})
    for module, keeper in _KEEPERS:
        owner = getattr(sys.modules.get(module), keeper, None)
        if getattr(owner, name, None) is real:
            patches.replace(owner, name, staticmethod(made))


class TypeMembers:
    """The members of an immutable type as attributes that can be set.

    The type remains the same object for isinstance, pickle and pydantic. Raises: RuntimeError if the interpreter keeps
    no writable dictionary behind it.
    """

    __slots__ = ("_space", "_type")

    def __init__(self, owner: type) -> None:
        spaces = [d for d in gc.get_referents(owner.__dict__) if isinstance(d, dict)]
        if len(spaces) != 1 or "__doc__" not in spaces[0]:
            raise RuntimeError(f"this interpreter does not show the members of {owner.__name__}")
        object.__setattr__(self, "_type", owner)
        object.__setattr__(self, "_space", spaces[0])

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]  # `vars` shows the type's own
        space: dict[str, Any] = object.__getattribute__(self, "_space")
        return space

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_space")[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(object.__getattribute__(self, "_type")))
