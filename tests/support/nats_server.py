"""A NATS server for a single test, with streams kept in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.loopback import a_server
from support.ports import free_port


@contextmanager
def a_nats(folder: Path, *options: str, port: int = 0) -> Iterator[int]:
    """Run a separate NATS server on loopback, with more options of `nats-server`, and yield its port."""
    port = port or free_port()
    with a_server("nats-server", port, ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder), *options]):
        yield port
