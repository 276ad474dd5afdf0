"""Run the agent as a child process: pass its standard streams and signals through, and report how it ended."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import click

from spanreplay.cli.agent import seeded_start
from spanreplay.model.errors import ConfigError

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KEYBOARD: Final = (signal.SIGINT, signal.SIGQUIT)
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SIGNALLED: Final = 128
_LOOK_S: Final = 1.0
ENDS_WITHIN_S: Final = 5.0
"""How long the agent of a replay may take to end after a signal that ends this command; then it is killed.

A server handles such a signal by finishing its work, which may never happen in a replay.
"""


def _shares_terminal() -> bool:
    """Whether the child already gets the keyboard's signals, because we are in the terminal's foreground group."""
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno() if sys.__stdin__ else 0) == os.getpgrp()
    except (OSError, ValueError):
        return False


class _Forwarder:
    """Forwards signals to the child, including those that arrive before it has started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self.ended_by = 0
        """The first signal that is to end this command, 0 if there was none."""
        self.is_interrupted = False
        """Whether the keyboard has sent a signal, which the child may handle in its own way (a debugger does)."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Forward a signal, or keep it until the child has started."""
        if number in _FROM_KEYBOARD and _shares_terminal():
            self.is_interrupted = True
            return
        if number in _ENDING:
            self.ended_by = self.ended_by or number
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)

    def pass_to(self, process: subprocess.Popen[bytes]) -> None:
        """Set the started child as the target, and forward the signals kept so far."""
        self._process = process
        for number in self._early:
            process.send_signal(number)


@contextmanager
def _forwarding() -> Iterator[_Forwarder]:
    """Forward signals while the child runs; in other threads than the main one, forward none."""
    forwarder = _Forwarder()
    if threading.current_thread() is not threading.main_thread():
        yield forwarder
        return
    before = {number: signal.signal(number, forwarder.handle) for number in _FORWARDED}
    try:
        yield forwarder
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_child(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    timeout_s: float | None = None,
    cwd: Path | None = None,
    hash_secret: bytes = b"",
    is_replay: bool = False,
) -> int:
    """Run a command to its end; return its exit status, or minus the signal that ended it. Raises: ConfigError.

    `stdout` and `stderr` are file descriptors for the child's standard output and error. A child that takes longer
    than `timeout_s` is killed. `cwd` is the folder to start it in; default: this one. For `hash_secret` see
    `hashing_as`.

    With `is_replay`, a signal that ends this command ends the child too, at the latest after ENDS_WITHIN_S, and no
    further child is started after it. Raises: Exit.
    """
    if is_replay and _ended.by:
        raise click.exceptions.Exit(_SIGNALLED + _ended.by)
    sys.stdout.flush()
    sys.stderr.flush()
    with _forwarding() as forwarder:
        try:
            with hashing_as(hash_secret, argv, environ) as (words, source):
                process = subprocess.Popen(
                    words, env=dict(environ), stdout=stdout, stderr=stderr, cwd=cwd, pass_fds=source
                )
        except OSError as exc:
            raise ConfigError(f"cannot run {argv[0]!r}: {exc.strerror or exc}") from exc
        forwarder.pass_to(process)
        if not is_replay:
            return _wait(process, timeout_s, lambda: False)
        status = _wait(process, timeout_s, lambda: bool(forwarder.ended_by))
    is_interrupted = forwarder.is_interrupted and as_shell_status(status) == _SIGNALLED + signal.SIGINT
    _ended.by = _ended.by or forwarder.ended_by or (signal.SIGINT if is_interrupted else 0)
    return status


class _Ended:
    by = 0
    """The signal that was to end this command, 0 if there was none."""


_ended: Final = _Ended()


def _wait(process: subprocess.Popen[bytes], timeout_s: float | None, is_ending: Callable[[], bool]) -> int:
    """Wait for a child; kill it if it takes longer than `timeout_s`, or than ENDS_WITHIN_S once `is_ending`."""
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    is_told = False
    while True:
        if not is_told and is_ending():
            is_told, deadline = True, min(deadline, time.monotonic() + ENDS_WITHIN_S)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            process.kill()
            return process.wait()
        try:  # a handled signal doesn't end a wait
            return process.wait(min(left_s, _LOOK_S))
        except subprocess.TimeoutExpired:
            continue


@contextmanager
def hashing_as(
    secret: bytes, argv: Sequence[str], environ: Mapping[str, str]
) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """The command line that starts a command with a recorded hash secret, and the file descriptors to pass to it.

    The command line is unchanged without a secret, if PYTHONHASHSEED fixes the hashes, and on systems other than Linux.
    """
    if not secret or environ.get("PYTHONHASHSEED", "random") not in ("", "random") or not seeded_start.is_possible():
        yield list(argv), ()
        return
    source, target = os.pipe()
    try:
        os.write(target, secret)
        os.close(target)
        yield [sys.executable, "-I", "-S", seeded_start.__file__, str(source), *argv], (source,)
    finally:
        os.close(source)


def as_shell_status(status: int) -> int:
    """The exit status as a shell reports it: 128 + n for a process that signal n ended."""
    return status if status >= 0 else _SIGNALLED - status


def describe_end(status: int) -> str:
    """Describe how a child ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
