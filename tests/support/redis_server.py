"""A Redis server for a single test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.loopback import a_server
from support.ports import free_port


@contextmanager
def a_redis(folder: Path, *options: str) -> Iterator[int]:
    """Run a separate Redis on loopback, with more options of `redis-server`, and yield its port."""
    port = free_port()
    with a_server(
        "redis-server", port, ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *options]
    ):
        yield port
