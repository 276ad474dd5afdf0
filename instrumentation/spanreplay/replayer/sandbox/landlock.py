"""Linux Landlock: the kernel stops a thread, and everything it starts, from changing files outside some folders.

On request it denies TCP connections, too. It affects neither reading and executing nor datagrams and Unix sockets,
which Landlock doesn't cover. It has no rights for modes, owners, times and extended attributes. Landlock needs no
privileges and can't be lifted.

Source: Documentation/userspace-api/landlock.rst of Linux.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

ABI_MIN: Final = 2
"""Linux 5.19. ABI 1 denies every move between two folders, even if both are writable."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on every architecture Python builds for
_SET_NO_NEW_PRIVS: Final = 38
_GET_ABI: Final = 1
_PATH_BENEATH: Final = 1
_WRITE_FILE: Final = 1 << 1
_TRUNCATE: Final = 1 << 14
_TRUNCATE_ABI: Final = 3
_MAKE_AND_REMOVE: Final = 0b1_1111_1111 << 4
"""REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, _DIR, _REG, _SOCK, _FIFO, _BLOCK, _SYM."""
_REFER: Final = 1 << 13
NETWORK_ABI: Final = 4
"""Linux 6.7."""
_NET_PORT: Final = 2
_CONNECT_TCP: Final = 1 << 1


class Restricted(NamedTuple):
    """The kernel's restrictions from now on; `why` explains why there are none."""

    why: str = ""
    is_offline: bool = False
    """Whether TCP connections are denied."""


def restrict(folders: Iterable[str], files: Iterable[str] = (), ports: Iterable[int] | None = None) -> Restricted:
    """Let this thread, and everything it starts from now on, change only these paths and connect only to these ports.

    Paths that don't exist are skipped. Without `ports`, or if the kernel can't deny connections, it may connect
    anywhere. If Landlock is unavailable, nothing is denied.
    """
    if sys.platform != "linux":
        return Restricted("this system has no Landlock")
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):
        return Restricted("this Python can't call the kernel: it has no ctypes")
    kernel = _Kernel(ctypes, libc)
    try:
        abi = kernel.call(_CREATE_RULESET, None, 0, _GET_ABI)
        if abi < ABI_MIN:
            return Restricted(f"this kernel's Landlock has ABI {abi}, older than {ABI_MIN}")
        allowed = ports if abi >= NETWORK_ABI else None
        _restrict(kernel, abi, folders, files, allowed)
    except OSError as exc:
        return Restricted(f"this kernel, or the process's parent, does not allow Landlock: {exc.strerror}")
    return Restricted(is_offline=allowed is not None)


class _Kernel:
    """System calls through the C library."""

    def __init__(self, ctypes: Any, libc: Any) -> None:
        self._ctypes = ctypes
        self._libc = libc

    def call(self, number: int, *arguments: int | bytes | None) -> int:
        """Make a system call and return its result. Raises: OSError."""
        as_long = self._ctypes.c_long
        given = [a if a is None or isinstance(a, bytes) else as_long(a) for a in arguments]
        return self._checked(self._libc.syscall(as_long(number), *given))

    def gain_no_rights(self) -> None:
        """Prevent started programs from gaining privileges, as Landlock requires. Raises: OSError."""
        one, zero = self._ctypes.c_ulong(1), self._ctypes.c_ulong(0)
        self._checked(self._libc.prctl(_SET_NO_NEW_PRIVS, one, zero, zero, zero))

    def _checked(self, result: int) -> int:
        if result < 0:
            number = self._ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(result)


def _restrict(
    kernel: _Kernel, abi: int, folders: Iterable[str], files: Iterable[str], ports: Iterable[int] | None
) -> None:
    of_files = _WRITE_FILE | (_TRUNCATE if abi >= _TRUNCATE_ABI else 0)
    of_folders = of_files | _MAKE_AND_REMOVE | _REFER
    handled = struct.pack("=Q", of_folders) if ports is None else struct.pack("=QQ", of_folders, _CONNECT_TCP)
    ruleset = kernel.call(_CREATE_RULESET, handled, len(handled), 0)
    try:
        for paths, rights in ((folders, of_folders), (files, of_files)):
            for path in paths:
                _add_rule(kernel, ruleset, path, rights)
        for port in ports or ():
            kernel.call(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)
        kernel.gain_no_rights()
        kernel.call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _add_rule(kernel: _Kernel, ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        kernel.call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
