"""Tells requests that a reporting tool sends by itself, wherever its server runs, from those that it makes for others.

A tool reports from a thread or task of its own, or when the process ends: then no code but its own, that of transports
and the standard library's is on the stack. It also wraps other code (threads, requests), whose requests stay as they
are: what a thread or task runs first has to be the tool's.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Final

from spanreplay.model import ids, owners
from spanreplay.model.here import PACKAGE
from spanreplay.runtime.caller.caller import FRAMES_MAX, is_among

__all__ = ["is_sent_by_tool", "is_tool_alone"]

_SENDING: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods of reports. What a tool fetches may reach the agent: prompts, flags."""
_ROOTS: Final = ("/threading.py", "/concurrent/futures/thread.py", "/asyncio/events.py")
_BEGIN: Final = frozenset({"_bootstrap_inner", "run", "_worker", "_run"})
"""Functions of these modules of the standard library that begin the work of a thread, a pool's thread, a task."""
_FILES_MAX: Final = 4096


class _Code(Enum):
    ROOT = "root"
    STANDARD = "standard"
    CARRIES = "carries"
    REPORTS = "reports"
    OTHER = "other"


_known: Final[dict[str, _Code]] = {}


def is_sent_by_tool(method: str) -> bool:
    """Whether a request that is made here is a tool's report."""
    return method.upper() in _SENDING and is_tool_alone()


def is_tool_alone() -> bool:
    """Whether the code that runs here is a reporting tool alone, in a thread or task of its own or at the end."""
    first = _Code.STANDARD
    frame = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        name = frame.f_code.co_filename
        kind = _known.get(name) or _classify(name)
        if kind is _Code.OTHER:
            return False
        if kind is _Code.ROOT and frame.f_code.co_name in _BEGIN:
            break
        if kind in (_Code.CARRIES, _Code.REPORTS):
            first = kind
        if frame.f_back is None:
            break
        frame = frame.f_back
    return first is _Code.REPORTS


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
        return _Code.REPORTS
    return _Code.CARRIES if is_among(filename, (owners.TRANSPORTS, owners.RETRIES)) else _Code.OTHER
