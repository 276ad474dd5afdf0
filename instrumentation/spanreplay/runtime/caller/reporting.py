"""Tells requests that a reporting tool sends by itself, wherever its server runs, from those that it makes for others.

A tool reports from a thread or task of its own, or when the process ends: then no code but its own, that of transports
and the standard library's is on the stack. It also wraps other code (threads, requests), whose requests stay as they
are: what a thread or task runs first has to be the tool's.
"""

from __future__ import annotations

import sys
from enum import Enum
from types import FrameType
from typing import Final

from spanreplay.model import ids, owners
from spanreplay.model.here import PACKAGE
from spanreplay.runtime.caller.caller import FRAMES_MAX, is_among

__all__ = ["is_of_flags", "is_sent_by_tool", "is_tool_alone"]

_SENDING: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods of reports. What some tools fetch reaches the agent: prompts, flags."""
_ROOTS: Final = ("/threading.py", "/concurrent/futures/thread.py", "/asyncio/events.py")
_BEGIN: Final = frozenset({"_bootstrap_inner", "run", "_worker", "_run"})
"""Functions of these modules of the standard library that begin the work of a thread, a pool's thread, a task."""
_SCHEDULES: Final = owners.compile_row("apscheduler schedule")
"""Distributions with which tools do something from time to time."""
_FILES_MAX: Final = 4096


class _Code(Enum):
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
    """REPORTS or GIVES if only a tool's code runs here: GIVES if one that fetches for the agent is among it."""
    first, found = _Code.STANDARD, _Code.REPORTS
    frame = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        name = frame.f_code.co_filename
        kind = _known.get(name) or _classify(name)
        if kind is _Code.OTHER:
            return None
        if kind is _Code.ROOT and frame.f_code.co_name in _BEGIN:
            break
        if kind is _Code.CARRIES:
            first = kind
        elif kind is not _Code.STANDARD and kind is not _Code.ROOT:
            first = _Code.REPORTS
            found = kind if kind is _Code.GIVES else found
        if frame.f_back is None:
            break
        frame = frame.f_back
    return found if first is _Code.REPORTS else None


def _classify(filename: str) -> _Code:
    kind = _find_kind(filename)
    if len(_known) < _FILES_MAX:
        _known[filename] = kind
    return kind


def _find_kind(filename: str) -> _Code:
    if filename.startswith(PACKAGE):
        return _Code.STANDARD
    if ids.is_stdlib_file(filename):
        return _Code.ROOT if filename.endswith(_ROOTS) else _Code.STANDARD
    if ids.is_agent_file(filename):
        return _Code.OTHER
    if is_among(filename, (owners.TELEMETRY,)):
        return _Code.GIVES if is_among(filename, (owners.GIVING,)) else _Code.REPORTS
    return _Code.CARRIES if is_among(filename, (owners.TRANSPORTS, owners.RETRIES, _SCHEDULES)) else _Code.OTHER
