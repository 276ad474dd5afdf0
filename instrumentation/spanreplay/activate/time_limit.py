"""Ends a replay, with a verdict, if it exceeds `--timeout` or makes no call for too long.

A program that waits forever by polling (a queue, a loop with sleeps) never stands still, so the stall detector doesn't
notice it.
"""

from __future__ import annotations

import _thread  # its locks and threads are never patched
import posix  # getpid of os is a recorded read, and its _exit ends the run
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spanreplay.model import config, guard
from spanreplay.model.errors import ConfigError

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.session import Session

__all__ = ["EXIT_TIMED_OUT", "install"]

EXIT_TIMED_OUT: Final = 124
"""The same status as the `timeout` command."""
_WHOLE: Final = "SPANREPLAY_REPLAY_TIMEOUT"
_IDLE: Final = "SPANREPLAY_REPLAY_IDLE"


def install(session: Session, finish: Callable[[int], object]) -> None:
    """Set this process's time limit from its environment, in seconds; no-op if unset. Raises: ConfigError."""
    whole, idle = (_read(name, config.read_setting(name)) for name in (_WHOLE, _IDLE))
    if whole:
        _thread.start_new_thread(_end_after, (whole, posix.getpid(), session, finish))
    elif idle:
        _thread.start_new_thread(_end_when_idle, (idle, posix.getpid(), session, finish))


def _read(name: str, text: str) -> float:
    """Return the seconds of a setting; 0 if it is unset, or an idle time of 0. Raises: ConfigError."""
    if not text or (name == _IDLE and text == "0"):
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{name}={text!r} is no number of seconds", hint="give one like 60")
    return seconds


def _wait(seconds: float) -> None:
    never = _thread.allocate_lock()
    never.acquire()
    never.acquire(timeout=seconds)


def _end_when_idle(seconds: float, process: int, session: Session, finish: Callable[[int], object]) -> None:
    """End the replay if no call is made for this many seconds."""
    seen = -1
    while (made := sum(session.counts.values())) != seen:
        seen = made
        _wait(seconds)
    _end(f"the program has made no call for {seconds:g} s", process, session, finish)


def _end_after(seconds: float, process: int, session: Session, finish: Callable[[int], object]) -> None:
    _wait(seconds)
    _end(f"the program had not ended after {seconds:g} s", process, session, finish)


def _end(why: str, process: int, session: Session, finish: Callable[[int], object]) -> None:
    if posix.getpid() != process:
        return
    guard.guarded("the time limit", session.stall_for_ever, why)
    guard.guarded("the end of the replay", finish, EXIT_TIMED_OUT)
    for stream in (sys.stdout, sys.stderr):
        guard.guarded("standard output", stream.flush)
    posix._exit(EXIT_TIMED_OUT)
