"""Who uses a socket: the agent, or a library that reports about itself.

The standard library acts for its caller (`logging.handlers`, `asyncio`, `smtplib`), so the nearest other code on the
stack is the user. A `logging` handler also carries log records of libraries: those belong to the library.
"""

from __future__ import annotations

import _socket
import os
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from spanreplay.model import ids
from spanreplay.runtime.caller.caller import (
    AGENT,
    FOREIGN,
    FRAMES_MAX,
    LIBRARY,
    between,
    entries,
    handed,
    is_ours,
    origin_of,
)
from spanreplay.runtime.process.outside_io import is_telemetry_stack

BY_AGENT: Final = "agent"
BY_LIBRARY: Final = "library"
BY_NOBODY: Final = ""
"""Only the standard library is on the stack, for example a loop's callback or a thread of `logging`."""
type_of: Final[Callable[[Any], int]] = _socket.socket.type.__get__
"""Return a socket's kind as a plain number, without looking up the enumeration member."""
BARE: Final = frozenset({_socket.SOCK_DGRAM, _socket.SOCK_RAW})
"""Kinds of sockets that send datagrams."""
_LOGGING: Final = f"{os.sep}logging{os.sep}"


def is_stream(sock: Any) -> bool:
    """Whether a socket has a connection."""
    return type_of(sock) not in BARE


def who_asks(frame: FrameType | None) -> str:
    """Return whose code uses a socket in this frame: BY_AGENT, BY_LIBRARY or BY_NOBODY."""
    first, is_log = frame, False
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        filename = frame.f_code.co_filename
        if ids.is_stdlib_file(filename):
            is_log = is_log or _LOGGING in filename
        elif is_ours(filename):
            if frame.f_code in between:
                pass
            elif is_log:
                return BY_LIBRARY  # a log message of spanreplay
            elif frame.f_code in entries:
                return BY_AGENT if handed.by == AGENT else BY_LIBRARY
            else:
                return BY_NOBODY
        else:
            origin = origin_of(frame)
            if origin == AGENT:
                return BY_LIBRARY if is_telemetry_stack(first) else BY_AGENT
            if origin in (FOREIGN, LIBRARY) and frame.f_code not in between:
                return BY_LIBRARY
        frame = frame.f_back
    # Records passed on by a `logging` thread may be anybody's, and a library's log differs in a replay
    return BY_LIBRARY if is_log else BY_NOBODY
