"""Tells requests that a reporting tool sends by itself, wherever its server runs, from those that it makes for others.

A tool reports from a thread or task of its own, or when the process ends: then no code but its own, that of transports
and the standard library's is on the stack. It also wraps other code (threads, requests), whose requests stay as they
are: what a thread or task runs first has to be the tool's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from enum import Enum
from types import CodeType, FrameType
from typing import Any, Final

from spanreplay.model import ids, owners
from spanreplay.model.here import PACKAGE
from spanreplay.runtime.caller.caller import FRAMES_MAX, is_among

__all__ = ["is_of_flags", "is_others", "is_sent_by_tool", "is_tool_alone", "passes_on"]

_SENDING: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods of reports. What some tools fetch reaches the agent: prompts, flags."""
_ROOTS: Final = ("/threading.py", "/concurrent/futures/thread.py", "/asyncio/events.py")
_BEGIN: Final = frozenset({"_bootstrap_inner", "run", "_worker", "_run"})
"""Functions of these modules of the standard library that begin the work of a thread, a pool's thread, a task."""
_SCHEDULES: Final = owners.compile_row("apscheduler schedule")
"""Distributions with which tools do something from time to time."""
_INSTRUMENTORS: Final = owners.compile_row("openinference-instrumentation-* opentelemetry-instrumentation-*")
_FILES_MAX: Final = 4096
_LAYERS_MAX: Final = 8


class _Code(Enum):
    OURS = "ours"
    ROOT = "root"
    STANDARD = "standard"
    CARRIES = "carries"
    REPORTS = "reports"
    GIVES = "gives"
    OTHER = "other"


_known: Final[dict[str, _Code]] = {}


def is_sent_by_tool(method: str) -> bool:
    """Whether a request that is made here is a tool's own: a report, or what it asks about its surroundings."""
    tool = _find_tool_alone()
    return tool is _Code.REPORTS or (tool is _Code.GIVES and method.upper() in _SENDING)


def is_of_flags() -> bool:
    """Whether a client of feature flags makes the request that is made here, for whomever."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        name = frame.f_code.co_filename
        kind = _known.get(name) or _classify(name)
        if kind is _Code.OTHER:
            return is_among(name, (owners.FLAGS,))
        if kind in (_Code.REPORTS, _Code.GIVES):
            return False
        frame = frame.f_back
    return False


def is_tool_alone() -> bool:
    """Whether the code that runs here is a reporting tool alone, in a thread or task of its own or at the end."""
    return _find_tool_alone() is not None


def _find_tool_alone() -> _Code | None:
    """REPORTS or GIVES if only a tool's code runs here: GIVES if one that fetches for the agent is among it.

    None if the stack is too deep to be seen whole: the agent may be further out.
    """
    found: _Code | None = None
    codes: set[CodeType] = set()
    outermost: list[FrameType] = []  # the tool's frames with which the thread or task begins
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        name = "" if frame is None else frame.f_code.co_filename
        kind = _Code.ROOT if frame is None else _known.get(name) or _classify(name)
        if kind is _Code.OTHER:
            return None
        if frame is None or (kind is _Code.ROOT and frame.f_code.co_name in _BEGIN):
            is_wrapper = any(_wraps(each, codes) for each in outermost)
            return None if not outermost or is_wrapper else found
        if kind in (_Code.REPORTS, _Code.GIVES):
            outermost.append(frame)
            found = kind if found is not _Code.GIVES else found
        else:
            codes.add(frame.f_code)
            if kind is not _Code.OURS:
                outermost.clear()
        frame = frame.f_back
    return None


def is_others(filename: str) -> bool:
    """Whether a code file is neither Python's nor ours nor a transport's nor a reporting tool's."""
    return (_known.get(filename) or _classify(filename)) is _Code.OTHER


def passes_on(frame: FrameType, inside: set[CodeType]) -> bool:
    """Whether a tool's code here only calls a function of others; `inside` is others' code that it has led to.

    That of an instrumentor never does anything else with others' code.
    """
    if is_among(frame.f_code.co_filename, (_INSTRUMENTORS,)):
        return True
    held = [code for each in frame.f_locals.values() if callable(each) for code in _iter_codes(each)]
    return not inside.isdisjoint(held)


def _wraps(frame: FrameType, codes: set[CodeType]) -> bool:
    """Whether a tool's code here may only pass on a call of the function that it wraps, which is another's.

    It holds a function of a transport, or one that is running further in; a replay may answer before that runs.
    """
    held = [code for each in frame.f_locals.values() if callable(each) for code in _iter_codes(each)]
    return any(code in codes or _classify(code.co_filename) in (_Code.CARRIES, _Code.OURS) for code in held)


def _iter_codes(function: Any) -> Iterator[CodeType]:
    """The code of a function or method, and of what it wraps: a replay may answer at any layer."""
    for _ in range(_LAYERS_MAX):
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
        inner = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
        if inner is None:
            return
        function = inner


def _classify(filename: str) -> _Code:
    kind = _find_kind(filename)
    if len(_known) < _FILES_MAX:
        _known[filename] = kind
    return kind


def _find_kind(filename: str) -> _Code:
    if filename.startswith(PACKAGE):
        return _Code.OURS
    if ids.is_stdlib_file(filename):
        return _Code.ROOT if filename.endswith(_ROOTS) else _Code.STANDARD
    if ids.is_agent_file(filename):
        return _Code.OTHER
    if is_among(filename, (owners.TELEMETRY,)):
        return _Code.GIVES if is_among(filename, (owners.GIVING,)) else _Code.REPORTS
    return _Code.CARRIES if is_among(filename, (owners.TRANSPORTS, owners.RETRIES, _SCHEDULES)) else _Code.OTHER
