"""How long a request may take, as its client was told: recorded in seconds, to be compared where it decides."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from typing import Any, Final

__all__ = [
    "TIMEOUT",
    "Timeout",
    "read_aiohttp_timeout",
    "read_httpx_timeout",
    "read_socket_timeout",
    "read_total_timeout",
]

TIMEOUT: Final = "timeout_s"
"""Meta member of a request: its limits in seconds, {} if there are none. Missing if nobody knows them."""
Timeout = dict[str, float]
"""The limits in seconds by name: `connect`; `read`, for each wait for data; `total`. A missing one is no limit."""
_OF_SOCKETS: Final = object()


def read_httpx_timeout(extensions: Mapping[str, Any]) -> Timeout | None:
    """Return the limits in a request's extensions; None if they say nothing."""
    given = extensions.get("timeout")
    return _make(given.get("connect"), given.get("read")) if isinstance(given, Mapping) else None


def read_socket_timeout(given: Any, default: Any = _OF_SOCKETS) -> Timeout:
    """Return the limits of a number, a pair (connect, read) or urllib3's `Timeout`; other objects mean the default."""
    if isinstance(given, tuple):
        return _make(*given[:2])
    if hasattr(given, "total"):
        return _make(getattr(given, "_connect", None), getattr(given, "_read", None), given.total)
    if default is not _OF_SOCKETS and not _is_number(given):
        return read_socket_timeout(default)
    return _make(given, given)


def read_aiohttp_timeout(given: Any) -> Timeout | None:
    """Return the limits of a `ClientTimeout`, or of a number of seconds in total."""
    if isinstance(given, (int, float)) or given is None:
        return _make(None, None, given)
    if not hasattr(given, "sock_read"):
        return None
    return _make(given.connect or given.sock_connect, given.sock_read, given.total)


def read_total_timeout(seconds: Any) -> Timeout:
    """Return the limits of a request that has one for all of it."""
    return _make(None, None, seconds)


def _make(connect: Any = None, read: Any = None, total: Any = None) -> Timeout:
    named = {"connect": connect, "read": read, "total": total}
    seconds = {name: _number(value) for name, value in named.items()}
    return {name: value for name, value in seconds.items() if value is not None}


def _is_number(value: Any) -> bool:
    return value is None or hasattr(value, "__float__") or hasattr(value, "__index__")


def _number(value: Any) -> float | None:
    if not _is_number(value):  # an object that stands for the default
        value = socket.getdefaulttimeout()
    try:
        seconds = math.inf if value is None else float(value)
    except (ArithmeticError, TypeError, ValueError):  # the library will say so
        return None
    return round(seconds, 3) if math.isfinite(seconds) else None
