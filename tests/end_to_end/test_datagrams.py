"""A datagram is a write boundary: recorded, compared in a replay, and never sent by one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.replaying import Workplace

AGENT = """
import asyncio, logging, logging.handlers, os, socket, sys, threading

server = ("127.0.0.1", int(os.environ["PORT"]))
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.sendto(b"transfer:10|c", server)
sock.connect(server)
print(sock.getsockname(), sock.getpeername()[0])
sock.settimeout(30)
sock.send(b"ask the time")
print(sock.recv(100))
sock.sendmsg([b"ask ", b"again"])
buffer = bytearray(100)
size, source = sock.recvfrom_into(buffer)
print(buffer[:size])
sock.settimeout(0.01)
try:
    sock.recv(10)
except TimeoutError as exc:
    print("nothing came:", exc)
sock.close()

local = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
local.connect(sys.argv[1])
local.send(b"to the host")

def listen():
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.bind(("127.0.0.1", 0))
    ready.set()
    listening.recv(10)

ready = threading.Event()
threading.Thread(target=listen, daemon=True).start()
ready.wait()

log = logging.getLogger("app")
log.setLevel(logging.INFO)
log.addHandler(logging.handlers.SysLogHandler(address=server))
log.addHandler(logging.handlers.DatagramHandler(*server))
log.info("10 dollars are paid")

class Protocol(asyncio.DatagramProtocol):
    def __init__(self):
        self.answers = []
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.sendto(b"ask first")

    def datagram_received(self, data, address):
        self.answers.append(data)
        if len(self.answers) == 2:
            self.done.set_result(None)
        else:
            self.transport.sendto(b"ask second")

async def main():
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Protocol, remote_addr=server)
    await protocol.done
    print(protocol.answers, transport.get_extra_info("sockname"))
    transport.sendto(b"good bye")
    transport.close()

asyncio.run(main())
"""
CHANGES = {
    "dropped": ('sock.sendto(b"transfer:10|c", server)', "pass"),
    "log": ("10 dollars", "99 dollars"),
    "asyncio_later": ("ask second", "ask third"),
}
LIBRARY = """
import asyncio, os, socket, threading

class Client:
    def __init__(self, connects):
        host, port = os.environ.get("METRICS", "127.0.0.1"), int(os.environ["PORT"])
        (family, kind, _, _, self.address), *_ = socket.getaddrinfo(host, port, 0, socket.SOCK_DGRAM)
        self.sock = socket.socket(family, kind)
        self.connects = connects
        if connects:
            self.sock.connect(self.address)

    def count(self, name):
        if self.connects:
            self.sock.send(f"{name}:1|c".encode())
        else:
            self.sock.sendto(f"{name}:1|c".encode(), self.address)

    def count_soon(self, name):
        thread = threading.Thread(target=self.count, args=(name,))
        thread.start()
        thread.join()

    def ask(self):
        self.sock.send(b"ask")
        self.sock.settimeout(30)
        return self.sock.recv(10)

async def ask_once(seconds):
    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    class Protocol(asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            answer.set_result(data)

    address = "127.0.0.1", int(os.environ["PORT"])
    transport, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
    transport.sendto(b"ask", address)
    try:
        return await asyncio.wait_for(answer, seconds)
    finally:
        transport.close()
"""
REPORTING = """
import os
import counters, subprocess
subprocess.run(["true"])
for connects in (True, False):
    client = counters.Client(connects)
    for each in os.environ.get("EVENTS", "a,b").split(","):
        client.count(each)
    client.count_soon("soon")
"""


class Server:
    """A UDP server and a Unix server that keep received datagrams and answer questions."""

    def __init__(self, folder: Path) -> None:
        self.got: list[bytes] = []
        self.path = str(folder / "log.sock")
        self._inet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._inet.bind(("127.0.0.1", 0))
        self.port = str(self._inet.getsockname()[1])
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._unix.bind(self.path)
        self._threads = [threading.Thread(target=self._serve, args=(each,)) for each in (self._inet, self._unix)]
        for thread in self._threads:
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        while True:
            data, address = sock.recvfrom(65_536)
            if data == b"end":
                return
            self.got.append(data)
            if data.startswith(b"ask"):
                sock.sendto(b"answer to " + data, address)

    def settle(self) -> list[bytes]:
        """Everything received so far; then stop serving."""
        if not self._threads:
            return self.got
        for family, address in ((socket.AF_INET, ("127.0.0.1", int(self.port))), (socket.AF_UNIX, self.path)):
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.sendto(b"end", address)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._inet.close()
        self._unix.close()
        return self.got


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A datagram server."""
    made = Server(tmp_path)
    yield made
    made.settle()


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """A folder for an agent and its recordings, with a library in its own `site-packages`."""
    library = tmp_path / "lib" / "site-packages"
    library.mkdir(parents=True)
    (library / "counters.py").write_text(LIBRARY)
    return Workplace(tmp_path, {"PYTHONPATH": str(library)})


def test_n14_a_datagram_is_recorded_compared_and_never_sent(workplace: Workplace, server: Server) -> None:
    """UDP, Unix, logging handlers, asyncio: the run is complete, its replay identical, and every change diverges."""
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent, server.path, PORT=server.port)
    assert workplace.recording().completeness().reasons == ()
    sent = list(server.got)
    assert len(sent) == 9, sent
    same = workplace.replay(agent, server.path, PORT=server.port)
    assert (same.verdict["verdict"], same.status) == ("identical", 0), same.stderr
    assert same.stdout == recorded.stdout
    for name, (old, new) in CHANGES.items():
        assert AGENT.count(old) == 1, name
        changed = workplace.replay(workplace.write("agent.py", AGENT.replace(old, new)), server.path, PORT=server.port)
        assert changed.verdict["verdict"] == "diverged", name
        assert "tool:socket." in changed.causes()[0][1], (name, changed.stderr)
    assert server.settle() == sent


def test_n14_what_a_library_sends_is_dropped_by_a_replay(workplace: Workplace, server: Server) -> None:
    """Metrics are neither calls nor gaps; a replay drops any number of them, and the verdict names them."""
    agent = workplace.write("agent.py", REPORTING)
    workplace.record(agent, PORT=server.port)
    recording = workplace.recording()
    assert (recording.completeness().reasons, len(recording.calls)) == ((), 1)
    sent = list(server.got)
    assert len(sent) == 6, sent
    for given in ({}, {"EVENTS": "a,b,c,d"}, {"METRICS": "metrics.invalid"}):
        replayed = workplace.replay(agent, PORT=server.port, **given)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        listed = {each["what"]: each for each in replayed.verdict["not_compared"]}
        (named,) = listed["datagrams of libraries"]["names"]
        assert named.endswith(f":{server.port}")
    assert server.settle() == sent


def test_n14_what_a_library_learns_from_a_datagram_is_a_gap(workplace: Workplace, server: Server) -> None:
    """A library that waits for an answer makes an unrecorded request: the run is incomplete, and says where."""
    agent = workplace.write(
        "agent.py", "import counters, subprocess\nsubprocess.run(['true'])\nprint(counters.Client(True).ask())\n"
    )
    workplace.record(agent, PORT=server.port)
    (reason,) = workplace.recording().completeness().reasons
    assert reason == f"agent.py:3 <module> opened a socket to 127.0.0.1:{server.port} outside of every boundary"


def test_p12_a_library_without_its_answer_has_not_changed(workplace: Workplace, server: Server) -> None:
    """A replay drops what it sends: that it gets no answer and gives up is due to the gap, not to the program."""
    program = "import asyncio, counters, sys\nprint(asyncio.run(counters.ask_once(float(sys.argv[1]))))\n"
    agent = workplace.write("agent.py", f"import subprocess\nsubprocess.run(['true'])\n{program}")
    recorded = workplace.record(agent, "600", PORT=server.port)
    assert recorded.stdout
    sent = list(server.got)
    replayed = workplace.replay(agent, "600", PORT=server.port)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert "outside of every boundary" in replayed.verdict["reasons"][0]
    assert server.settle() == sent
