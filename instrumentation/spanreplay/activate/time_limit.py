"""`spanreplay replay --timeout`: a replay that takes longer ends there, with a verdict.

A program that waits for ever by looking again and again (a queue that it polls, a loop that sleeps) never stands still,
so that nothing else finds it stuck.
"""

from __future__ import annotations

import _thread  # whose locks and threads nobody patches
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
"""As `timeout` of the shell has it."""
_SETTING: Final = "SPANREPLAY_REPLAY_TIMEOUT"


def install(session: Session, finish: Callable[[int], object]) -> None:
    """End this process after the seconds that its environment names; without any, do nothing. Raises: ConfigError."""
    text = config.read_setting(_SETTING)
    if text:
        _thread.start_new_thread(_end_after, (_read(text), posix.getpid(), session, finish))


def _read(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{_SETTING}={text!r} is no number of seconds", hint="give one like 60")
    return seconds


def _end_after(seconds: float, process: int, session: Session, finish: Callable[[int], object]) -> None:
    never = _thread.allocate_lock()
    never.acquire()
    never.acquire(timeout=seconds)
    if posix.getpid() != process:
        return
    guard.guarded("the time limit", session.stall_for_ever, f"the program had not ended after {seconds:g} s")
    guard.guarded("the end of the replay", finish, EXIT_TIMED_OUT)
    for stream in (sys.stdout, sys.stderr):
        guard.guarded("standard output", stream.flush)
    posix._exit(EXIT_TIMED_OUT)
