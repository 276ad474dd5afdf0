"""A server that speaks MongoDB's protocol, for a single test: SecantusDB, a real database in a process of its own.

MongoDB's own server is packaged neither for Debian nor on PyPI.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from support.ports import free_port
from support.replaying import TIMEOUT_S
from support.units import await_true, listens

_PROGRAM: Final = """
import json, sys, threading
from secantus import SecantusDBServer
with SecantusDBServer(storage_path=":memory:", **json.loads(sys.argv[1])):
    threading.Event().wait()
"""


class MongoServer:
    """A running server that can be stopped."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port
        self.url = f"mongodb://127.0.0.1:{port}"

    def stop(self) -> None:
        """Stop it; its data is gone."""
        self._process.kill()
        self._process.communicate(timeout=TIMEOUT_S)


@contextmanager
def a_mongodb(folder: Path, **options: Any) -> Iterator[MongoServer]:
    """Run a separate server on loopback. Skips the test if SecantusDB is not installed."""
    if find_spec("secantus") is None:
        pytest.skip("SecantusDB has no wheel for this Python")
    port = free_port()
    command = [sys.executable, "-c", _PROGRAM, json.dumps({"port": port, **options})]
    environ = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    server = MongoServer(process, port)
    try:
        await_true(lambda: listens(port, process))
        yield server
    finally:
        server.stop()


@contextmanager
def a_name_server(port: int) -> Iterator[int]:
    """Answer that the cluster `cluster.mongo.test` has one server, `node.mongo.test`."""
    import dns.message
    import dns.rcode
    import dns.rdatatype
    import dns.rrset

    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            packet, peer = server.recvfrom(4096)
            if not packet:
                return
            answer = dns.message.make_response(dns.message.from_wire(packet))
            (question,) = answer.question
            kind, name = dns.rdatatype.to_text(question.rdtype), str(question.name)
            found = {"SRV": f"0 0 {port} node.mongo.test.", "TXT": '"replicaSet=secantus"'}.get(kind)
            if found is None or not name.endswith("cluster.mongo.test."):
                answer.set_rcode(dns.rcode.NXDOMAIN)
            else:
                answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", kind, found))
            server.sendto(answer.to_wire(), peer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.sendto(b"", server.getsockname())
        thread.join()
        server.close()
