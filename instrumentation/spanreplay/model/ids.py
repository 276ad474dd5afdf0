"""Run ids, span ids and call places."""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import time
from types import CodeType, FrameType
from typing import Final

from spanreplay.model import distributions as installed
from spanreplay.model import owners
from spanreplay.model.here import PACKAGE

# Never take ids from the global `random`: agents seed it, and a replay would repeat the recording's ids.
_random: Final = random.SystemRandom()
_span_ids: Final = random.Random(os.urandom(32))  # noqa: S311 -- unique, not secret; one system call each is expensive
_now_ns = now_ns = time.time_ns  # the real one, whatever is patched later
_monotonic_ns = time.monotonic_ns


def monotonic_ns() -> int:
    """Monotonic clock in nanoseconds; the real one, whatever is patched later."""
    return _monotonic_ns()


def new_run_id() -> str:
    """A UUIDv7 (RFC 9562) as 32 hexadecimal characters; sorts by time."""
    value = (_now_ns() // 1_000_000) << 80 | 0x7 << 76 | _random.getrandbits(12) << 64
    return f"{value | 0b10 << 62 | _random.getrandbits(62):032x}"


def new_span_id() -> int:
    """A random non-zero span id of 8 bytes."""
    return _span_ids.getrandbits(64) or 1


os.register_at_fork(after_in_child=lambda: _span_ids.seed(os.urandom(32)))


def new_trace_id() -> int:
    """A random non-zero trace id of 16 bytes."""
    return _random.getrandbits(128) or 1


_STDLIB: Final = tuple(
    {os.path.realpath(sysconfig.get_paths()[k]) + os.sep for k in ("stdlib", "platstdlib")}
    | {sysconfig.get_paths()["stdlib"] + os.sep}
)
_is_agent_file: dict[str, bool] = {}
_FILES_MAX: Final = 10_000


def is_agent_file(filename: str) -> bool:
    """Whether a code file is the agent's own: not a library's, the standard library's or ours."""
    known = _is_agent_file.get(filename)
    if known is None:
        is_foreign = filename.startswith(("<frozen", PACKAGE)) or is_stdlib_file(filename)
        known = not is_foreign and owners.owners().classify(filename) == owners.AGENT
        if len(_is_agent_file) < _FILES_MAX:
            _is_agent_file[filename] = known
    return known


def is_stdlib_file(filename: str) -> bool:
    """Whether a code file belongs to the standard library."""
    return filename.startswith(("<frozen", *_STDLIB)) and "-packages" not in filename


def find_caller(depth: int = 2, frames_max: int = 200) -> str:
    """`file:line qualname` of the nearest agent frame, paths relative to the working directory; '' if none."""
    frame: FrameType | None = sys._getframe(depth)
    known = _is_agent_file.get
    while frame is not None and frames_max:
        code = frame.f_code
        is_agent = known(code.co_filename)
        if is_agent or (is_agent is None and is_agent_file(code.co_filename)):
            seen = _seen.get((id(code), frame.f_lasti))
            return seen[1] if seen is not None else _remember_place(frame, code)
        frame = frame.f_back
        frames_max -= 1
    return ""


_seen: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""By instruction, because finding its line costs more than all the rest; holding the code keeps its id from reuse."""
_SEEN_MAX: Final = 2_000


def _remember_place(frame: FrameType, code: CodeType) -> str:
    place = describe_place(code, frame.f_lineno)
    if len(_seen) < _SEEN_MAX:
        _seen[(id(code), frame.f_lasti)] = (code, place)
    return place


def find_stack(depth: int = 2, frames_max: int = 200, places_max: int = 12) -> tuple[str, ...]:
    """The agent's frames, innermost first, in the form of `find_caller`; at most `places_max`."""
    frame: FrameType | None = sys._getframe(depth)
    found: list[str] = []
    for _ in range(frames_max):
        if frame is None or len(found) >= places_max:
            break
        if is_agent_file(frame.f_code.co_filename):
            found.append(describe_place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


_places: dict[tuple[str, str, int], str] = {}
_PLACES_MAX: Final = 10_000


def describe_place(code: CodeType, line: int) -> str:
    """`file:line qualname` of a line of code."""
    # Cached, so that a place keeps its name when the agent changes the working directory
    at = (code.co_filename, code.co_name, line)
    place = _places.get(at)
    if place is None:
        place = f"{shorten(code.co_filename)}:{line} {getattr(code, 'co_qualname', code.co_name)}"
        if len(_places) < _PLACES_MAX:
            _places[at] = place
    return place


def describe_function(function: object) -> str:
    """`file:line qualname` of a function's definition; '' if it has no code."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None:
        return ""
    return f"{shorten(code.co_filename)}:{code.co_firstlineno} {getattr(function, '__qualname__', code.co_name)}"


def unwrap(function: object) -> object:
    """The innermost function under `functools.wraps`; at most 16 layers are removed."""
    for _ in range(16):
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            return function
        function = inner
    return function


def shorten(filename: str) -> str:
    """Make a path relative to the installed packages or to the working directory, if it is below one of them."""
    below = installed.split_site(filename)[1]
    if below:
        return below
    try:
        here = os.getcwd() + os.sep  # noqa: PTH109 -- hot path
    except OSError:
        return filename
    return filename[len(here) :] if filename.startswith(here) else filename
