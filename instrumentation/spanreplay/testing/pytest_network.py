"""Block the network in tests without a recording: inside a block, an audit hook denies all hosts except named ones.

Audit hooks can't be removed; outside a block this one is a no-op.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Final

from spanreplay.model.errors import ReplayMiss

_CONNECTS: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOK_UPS: Final = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})
_LOCAL_NAMES: Final = frozenset({"", "localhost", "0.0.0.0", "::"})  # noqa: S104 -- compared, never bound

_allowed: frozenset[str] | None = None
_is_hooked = False


class NetworkBlocked(ReplayMiss):
    """A test tried to reach a blocked host. Not an `Exception`, because retry loops swallow those."""


@contextmanager
def blocked(allowed: Iterable[str]) -> Iterator[None]:
    """Deny the network except for `allowed`: host names and addresses, with `*` and `?`. Unix domain sockets stay
    allowed. Blocks nest: the innermost one decides.
    """
    global _allowed, _is_hooked
    hosts = {host.lower() for host in allowed}
    before, _allowed = _allowed, None
    _allowed = frozenset(hosts.union(*map(_addresses, hosts)))
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_hook)
    try:
        yield
    finally:
        _allowed = before


def _hook(event: str, args: tuple[Any, ...]) -> None:
    allowed = _allowed
    if allowed is None:
        return
    if event in _CONNECTS:
        address = args[1] if len(args) > 1 else None
        if isinstance(address, tuple) and address:
            _check(address[0], allowed)
    elif event in _LOOK_UPS:
        _check(args[0], allowed, passed=_LOCAL_NAMES)


def _check(host: Any, allowed: frozenset[str], passed: frozenset[str] = frozenset()) -> None:
    name = host.decode("utf-8", "replace") if isinstance(host, bytes) else str(host or "")
    name = name.lower()
    if name in passed or any(fnmatchcase(name, pattern) for pattern in allowed):
        return
    raise NetworkBlocked(
        f"the network is blocked in this test, and {name or 'an empty address'} is not among its allowed hosts"
    )


def _addresses(host: str) -> set[str]:
    """The addresses of a host name: a connection only shows the address."""
    if "*" in host or "?" in host:
        return set()
    import socket

    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()
