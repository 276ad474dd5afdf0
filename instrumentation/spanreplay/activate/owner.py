"""Ends a replay when the command that started it is gone: killed, it can't end the agent any more."""

from __future__ import annotations

import _thread  # its locks and threads are never patched
import os
import posix  # getpid of os is a recorded read, and its _exit ends the run
from collections.abc import Callable
from typing import Final

from spanreplay.model import config, guard

__all__ = ["install"]

_NAME: Final = "SPANREPLAY_REPLAY_OWNER"
_LOOK_S: Final = 1.0
_FINISH_S: Final = 5.0
"""How long the end of the replay may take: it removes the replay's files."""
_STAT_BYTES: Final = 512
_STATUS: Final = 143
"""As a shell reports a process ended by SIGTERM."""


def install(finish: Callable[[int], object]) -> None:
    """Watch the command that the environment names, here and in forked processes; no-op if it names none."""
    text = config.read_setting(_NAME)
    if not text.isdecimal():
        return
    owner = int(text)
    if not _is_there(owner, is_parent=False):  # a container numbers its processes by itself
        return

    def watch() -> None:
        _thread.start_new_thread(_end_with, (owner, posix.getppid() == owner, finish))

    watch()
    os.register_at_fork(after_in_child=watch)


def _wait(seconds: float) -> None:
    never = _thread.allocate_lock()
    never.acquire()
    never.acquire(timeout=seconds)


def _is_there(owner: int, *, is_parent: bool) -> bool:
    if is_parent:
        return posix.getppid() == owner
    try:
        posix.kill(owner, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        descriptor = posix.open(f"/proc/{owner}/stat", posix.O_RDONLY)
    except OSError:  # a system without /proc
        return True
    try:
        state = posix.read(descriptor, _STAT_BYTES).rpartition(b")")[2].split()[:1]
    except OSError:  # it has ended meanwhile
        return False
    finally:
        posix.close(descriptor)
    return state != [b"Z"]  # killed, but nobody has asked for its status


def _end_with(owner: int, is_parent: bool, finish: Callable[[int], object]) -> None:
    while _is_there(owner, is_parent=is_parent):
        _wait(_LOOK_S)
    _thread.start_new_thread(_end_late, ())
    guard.guarded("the end of the replay", finish, _STATUS)
    posix._exit(_STATUS)


def _end_late() -> None:
    _wait(_FINISH_S)
    posix._exit(_STATUS)
