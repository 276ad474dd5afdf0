"""A RabbitMQ node for a single test module: on loopback, with its own name, folder, ports and port mapper."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.ports import free_port
from support.replaying import TIMEOUT_S
from support.units import await_true, listens

_SERVER: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""The script that the Debian package's wrapper starts as a user of its own."""
_CONTROL: Final = "/usr/lib/rabbitmq/bin/rabbitmqctl"


class Broker:
    """A running node."""

    def __init__(self, port: int, environ: Mapping[str, str]) -> None:
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/"
        self._environ = environ

    def close_connections(self) -> None:
        """Close the connections of all clients, as an administrator does."""
        words = [_CONTROL, "close_all_connections", "maintenance"]
        subprocess.run(words, env=self._environ, check=True, capture_output=True, timeout=TIMEOUT_S)


@contextmanager
def a_rabbitmq(folder: Path) -> Iterator[Broker]:
    """Run a separate RabbitMQ whose files are in `folder`."""
    assert shutil.which(_SERVER), "rabbitmq-server is not installed: apt-get install rabbitmq-server"
    port, mapper = free_port(), free_port()
    environ = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper),
        "RABBITMQ_NODENAME": f"test{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    with (folder / "rabbitmq.log").open("w") as log:
        process = subprocess.Popen([_SERVER], env=environ, stdout=log, stderr=log, text=True, start_new_session=True)
    try:
        await_true(lambda: listens(port, process))
        yield Broker(port, environ)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=TIMEOUT_S)
        subprocess.run(["epmd", "-port", str(mapper), "-kill"], env=environ, capture_output=True, check=False)
