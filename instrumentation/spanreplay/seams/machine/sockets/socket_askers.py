"""Who uses a socket: the agent, or a library that reports about itself.

The standard library carries out what its caller wants (`logging.handlers`, `asyncio`, `smtplib`), so the nearest other
code on the stack is who asks. A handler of `logging` carries the log of libraries too: what those log is theirs.
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
"""Only the standard library is on the stack: a loop's callback, a thread of `logging`'s."""
type_of: Final[Callable[[Any], int]] = _socket.socket.type.__get__
"""The kind of a socket as a plain number, without the look-up of an enumeration's member."""
BARE: Final = frozenset({_socket.SOCK_DGRAM, _socket.SOCK_RAW})
"""Kinds of sockets that send datagrams."""
_LOGGING: Final = f"{os.sep}logging{os.sep}"


def is_stream(sock: Any) -> bool:
    """Whether a socket has a connection."""
    return type_of(sock) not in BARE


def who_asks(frame: FrameType | None) -> str:
    """BY_AGENT, BY_LIBRARY or BY_NOBODY, whose code uses a socket in this frame."""
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
                return BY_LIBRARY  # a message of ours
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
    # What a thread of `logging`'s hands on may be anybody's, and a library logs otherwise in a replay
    return BY_LIBRARY if is_log else BY_NOBODY
