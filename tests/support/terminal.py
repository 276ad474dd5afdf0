"""A pseudo-terminal: runs a program as if a person used it, and returns what that person would see."""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 180
ROWS = 24


@dataclass(frozen=True)
class Seen:
    """The terminal's screen, the piped output, and the exit status."""

    screen: str
    stdout: str
    status: int

    @property
    def lines(self) -> list[str]:
        """The lines of the screen."""
        return self.screen.splitlines()


def run_in_terminal(
    command: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    *,
    columns: int = 80,
    typed: str = "",
    is_piped: bool = False,
    is_background: bool = False,
) -> Seen:
    """Run a program in the foreground of a terminal to its end; `is_piped`: its standard output goes to a pipe.

    `is_background`: the terminal isn't its controlling terminal, as after `&` in another session.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # lines end as they were written
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)

    def take_terminal() -> None:
        if not is_background:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        list(command),
        cwd=folder,
        env={"TERM": "xterm", **environ},
        stdin=theirs,
        stdout=subprocess.PIPE if is_piped else theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    if typed:
        os.write(ours, typed.encode())
    screen, stdout = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector, os.fdopen(ours, "rb", buffering=0):
        selector.register(ours, selectors.EVENT_READ, screen)
        if process.stdout is not None:
            selector.register(process.stdout, selectors.EVENT_READ, stdout)
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            assert ready, bytes(screen)
            for key, _ in ready:
                if not (piece := _read(key.fd)):
                    selector.unregister(key.fileobj)
                key.data.extend(piece)
    status = process.wait(TIMEOUT_S)
    if process.stdout is not None:
        process.stdout.close()
    return Seen(screen.decode(), stdout.decode(), status)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the last program has closed the terminal
        return b""
