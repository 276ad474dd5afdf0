"""A Redis server for a single test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.ports import free_port
from support.replaying import TIMEOUT_S
from support.units import await_true, listens


@contextmanager
def a_redis(folder: Path) -> Iterator[int]:
    """Run a separate Redis on loopback and yield its port."""
    server, port = shutil.which("redis-server"), free_port()
    assert server is not None, "redis-server is not installed: apt-get install redis-server"
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        await_true(lambda: listens(port, process))
        yield port
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
