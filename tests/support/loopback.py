"""A server program on loopback for a single test, which is killed at its end."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from support.replaying import TIMEOUT_S
from support.units import await_true, listens


@contextmanager
def a_server(program: str, port: int, options: Sequence[str]) -> Iterator[None]:
    """Run a program that listens on a port, in a block that begins when it does; its package has its name."""
    found = shutil.which(program)
    assert found is not None, f"{program} is not installed: apt-get install {program}"
    process = subprocess.Popen([found, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        await_true(lambda: listens(port, process))
        yield
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
