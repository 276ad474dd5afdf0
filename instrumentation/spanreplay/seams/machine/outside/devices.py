"""What is behind a descriptor or a path: content, a channel of this process, or input from the machine itself.

The kernel's kind of descriptor decides, whichever library reads it.
"""

from __future__ import annotations

import itertools
import os
import stat
from typing import Final

from spanreplay.runtime.process.outside_io import unwatched

_fstat: Final = os.fstat
_stat: Final = os.stat
_readlink: Final = os.readlink
_scandir: Final = os.scandir
_open: Final = os.open
_DESCRIPTORS: Final = "/proc/self/fd"
DESCRIPTORS_MAX: Final = 1024
_MEMORY: Final = 1
"""The major number of `/dev/null` and its like."""
_RANDOM: Final = frozenset({8, 9})
_EMPTY: Final = frozenset({3, 5, 7})
"""Minor numbers: null, zero, full."""
_OWN_TERMINAL: Final = (5, 0)
"""The numbers of `/dev/tty`: whichever terminal the process has."""
_EVENTS: Final = {"anon_inode:inotify": "inotify", "anon_inode:[fanotify]": "fanotify"}
_TIMERS: Final = frozenset({"anon_inode:[timerfd]", "anon_inode:[signalfd]"})
KERNEL: Final = ("/proc/", "/sys/")
PIPE: Final = "the named pipe"


def _describe(found: os.stat_result, name: str, *, is_input: bool = False) -> tuple[str, str]:
    """Return (kind of leak, what is read there); ('', '') for what holds content and for channels of the process."""
    kind = stat.S_IFMT(found.st_mode)
    if stat.S_ISCHR(kind):
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        if major == _MEMORY and minor in _RANDOM | _EMPTY:
            return ("random", "random bytes") if minor in _RANDOM else ("", "")
        return "device", "standard input" if is_input else f"the device {name}"
    if is_input:
        return "device", "standard input"
    if stat.S_ISBLK(kind):
        return "device", f"the device {name}"
    if stat.S_ISFIFO(kind) and name.startswith("/"):
        return "device", f"{PIPE} {name}"
    if kind == 0 and name in _EVENTS:
        return "device", f"file events ({_EVENTS[name]})"
    if kind == 0 and name in _TIMERS:
        return "device", name.removeprefix("anon_inode:").strip("[]")
    return "", ""


def describe_descriptor(descriptor: int) -> tuple[str, str]:
    """Return the kind of leak that reading an open descriptor is, and what it reads; ('', '') if it is none."""
    try:
        found = _fstat(descriptor)
        if stat.S_IFMT(found.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK) and descriptor:
            return "", ""
        with unwatched():
            name = _readlink(f"{_DESCRIPTORS}/{descriptor}")
    except (OSError, ValueError):
        return "", ""
    return _describe(found, name, is_input=descriptor == 0)


def describe_path(path: str) -> tuple[str, str]:
    """Return the kind of leak that reading a file by its path is, and what it reads; ('', '') if it is none."""
    try:
        found = _stat(path)
    except (OSError, ValueError):
        return "", ""
    if stat.S_ISREG(found.st_mode):
        return ("device", path) if path.startswith(KERNEL) else ("", "")
    if _is_missing_terminal(found, path):
        return "", ""
    return _describe(found, os.path.abspath(path))  # noqa: PTH100 -- text


def _is_missing_terminal(found: os.stat_result, path: str) -> bool:
    """Whether this is the terminal of a process that has none: opening it fails, so that nothing is read."""
    if (os.major(found.st_rdev), os.minor(found.st_rdev)) != _OWN_TERMINAL:
        return False
    try:
        with unwatched():
            os.close(_open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return True
    return False


def watches_files() -> str:
    """Return through what this process watches files, also in native code; '' if it doesn't.

    Only the DESCRIPTORS_MAX lowest open descriptors are looked at, so that many connections don't hold a server up.
    """
    try:
        with unwatched(), _scandir(_DESCRIPTORS) as entries:
            for each in itertools.islice(entries, DESCRIPTORS_MAX):
                found = _find_events(int(each.name), each.path)
                if found:
                    return found
    except OSError:  # not on this system
        pass
    return ""


def _find_events(descriptor: int, path: str) -> str:
    """Return which file events a descriptor gives; '' if none, or if another thread has closed it by now."""
    try:
        is_anonymous = stat.S_IFMT(_fstat(descriptor).st_mode) == 0
        return _EVENTS.get(_readlink(path), "") if is_anonymous else ""
    except OSError:
        return ""
