"""Run the agent as a child process: pass its standard streams and signals through, and report how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from spanreplay.cli.agent import seeded_start
from spanreplay.model.errors import ConfigError

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KEYBOARD: Final = (signal.SIGINT, signal.SIGQUIT)


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

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Forward a signal, or keep it until the child has started."""
        if number in _FROM_KEYBOARD and _shares_terminal():
            return
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
) -> int:
    """Run a command to its end; return its exit status, or minus the signal that ended it. Raises: ConfigError.

    `stdout` and `stderr` are file descriptors for the child's standard output and error. A child that takes longer
    than `timeout_s` is killed. `cwd` is the folder to start it in; default: this one. For `hash_secret` see
    `hashing_as`.
    """
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
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


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
    return status if status >= 0 else 128 - status


def describe_end(status: int) -> str:
    """Describe how a child ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
