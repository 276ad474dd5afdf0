"""Runs the agent as a child: its standard streams pass through, signals reach it, its end is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from spanreplay.errors import ConfigError

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KEYBOARD: Final = (signal.SIGINT, signal.SIGQUIT)


def _shares_terminal() -> bool:
    """Whether the keyboard's signals already reach the child, because we are the terminal's foreground group."""
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno() if sys.__stdin__ else 0) == os.getpgrp()
    except (OSError, ValueError):
        return False


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on to the child while it runs; only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, frame: FrameType | None) -> None:
        if number in _FROM_KEYBOARD and _shares_terminal():
            return
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_child(argv: Sequence[str], environ: Mapping[str, str], *, stdout: int | None = None) -> int:
    """Run a command to its end; its exit status, or minus the signal that ended it. Raises: ConfigError.

    `stdout` is a file descriptor that takes the place of standard output.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        process = subprocess.Popen(list(argv), env=dict(environ), stdout=stdout)
    except OSError as exc:
        raise ConfigError(f"cannot run {argv[0]!r}: {exc.strerror or exc}") from exc
    with _forwarding(process):
        return process.wait()


def as_shell_status(status: int) -> int:
    """An exit status as a shell tells it: 128 + n for a process that signal n ended."""
    return status if status >= 0 else 128 - status


def describe_end(status: int) -> str:
    """How a child ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
