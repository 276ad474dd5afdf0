"""The network is denied in a replay, not merely unpatched; tested in child processes, because audit hooks stay."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.otlp_sink import serve
from support.replaying import Workplace

AGENT = """
import asyncio, os, socket, sys, threading
import spanreplay

port = int(os.environ["PORT"])

def dial():
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        return connection.recv(5).decode()

@spanreplay.boundary("tool", name="covered", effect="read")
def covered():
    return dial()

@spanreplay.boundary("tool", name="threaded", effect="read")
def threaded():
    found = []
    thread = threading.Thread(target=lambda: found.append(dial()))
    thread.start()
    thread.join()
    return found[0]

print(covered(), threaded())
"""
WAYS = {
    "connect": "print(dial())",
    "connect_ex": "s = socket.socket(); print(s.connect_ex(('127.0.0.1', port)))",
    "udp": "import _socket as c; s = c.socket(type=c.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', port)); print('sent')",
    "ipv6": "s = socket.socket(socket.AF_INET6)\ntry: s.connect(('::1', port))\nexcept OSError: pass\nprint('tried')",
    "unix": "s = socket.socket(socket.AF_UNIX)\ntry: s.connect('/no/such.sock')\nexcept OSError: pass\nprint('tried')",
    "look_up": "import _socket as c\ntry: c.getaddrinfo('model.invalid', 443)\nexcept OSError: pass\nprint('done')",
    "thread": "t = threading.Thread(target=lambda: print(dial())); t.start(); t.join()",
    "asyncio": (
        "async def main():\n"
        "    reader, writer = await asyncio.open_connection('127.0.0.1', port)\n"
        "    print(await reader.readexactly(5))\n"
        "    writer.close()\n"
        "asyncio.run(main())"
    ),
    "swallowed": "try: print(dial())\nexcept Exception: print('passed over')",
}


class Greeter:
    """A TCP server that says `hello` to every client, and counts them."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(30)
        self.port: int = self._socket.getsockname()[1]
        self.came = 0

    def serve(self) -> None:
        """Answer until the socket is closed."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.came += 1
            with connection:
                connection.sendall(b"hello")

    def stop(self) -> None:
        """Close the port; a waiting accept is woken."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def greeter() -> Iterator[Greeter]:
    """A server on loopback."""
    import threading

    made = Greeter()
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.stop()
    thread.join(30)


@pytest.fixture
def workplace(tmp_path: Path, greeter: Greeter) -> Workplace:
    """A directory whose agents know the server's port."""
    return Workplace(tmp_path, {"PORT": str(greeter.port)})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sampled(4)
def test_s27_uncovered_connection_is_denied_and_reported(way: str, workplace: Workplace, greeter: Greeter) -> None:
    """A new use of the network outside a boundary is stopped and named, and nobody is dialled."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent)
    workplace.write("agent.py", AGENT + WAYS[way])
    came = greeter.came
    replayed = workplace.replay(agent)
    assert replayed.status == 3, replayed.stderr
    assert replayed.stdout.startswith("hello hello\n")
    assert ("effect_blocked", "socket:connect") in replayed.causes()
    assert replayed.verdict["sockets_denied"] != []
    assert greeter.came == came


def test_s27_served_calls_dial_nobody(workplace: Workplace, greeter: Greeter) -> None:
    """Connections inside served boundaries are neither made nor reported."""
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent)
    came = greeter.came
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout)
    assert replayed.verdict["sockets_denied"] == []
    assert greeter.came == came == 2


TOOL = """
import _socket, sysconfig
code = '''
def work():
    for reach in (lambda: dial(), lambda: look_up("metadata.invalid", 80)):
        try:
            reach()
        except OSError as exc:
            failed.append(type(exc).__name__)
'''
space = {"dial": HOW, "look_up": _socket.getaddrinfo, "failed": []}
exec(compile(code, sysconfig.get_path("purelib") + "/newrelic/core/sender.py", "exec"), space)
thread = threading.Thread(target=space["work"])
thread.start()
thread.join()
print(space["failed"], file=sys.stderr)
"""


def test_s27_n4_what_a_reporting_tool_tries_by_itself_fails_as_offline(workplace: Workplace, greeter: Greeter) -> None:
    """A tool may ask where it runs. What it does for the agent is denied and reported."""
    by_itself = TOOL.replace("HOW", "functools.partial(_socket.socket().connect, ('127.0.0.1', port))")
    agent = workplace.write("agent.py", f"import functools\n{AGENT}{by_itself}")
    assert "['gaierror']" in workplace.record(agent).stderr
    came = greeter.came
    replayed = workplace.replay(agent)
    assert replayed.status == 0, replayed.stderr
    assert "['ConnectionRefusedError', 'gaierror']" in replayed.stderr
    assert replayed.verdict["sockets_denied"] == []
    workplace.write("agent.py", f"import functools\n{AGENT}{TOOL.replace('HOW', 'dial')}")
    for_the_agent = workplace.replay(agent)
    assert for_the_agent.status == 3
    assert ("effect_blocked", "socket:connect") in for_the_agent.causes()
    assert greeter.came == came


def test_s2_live_boundary_may_dial_also_from_its_threads(workplace: Workplace, greeter: Greeter) -> None:
    """Inside a call that the plan runs live, connections are allowed from any thread."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent)
    replayed = workplace.replay(agent, options=["--live", "tool:*"])
    assert (replayed.status, replayed.stdout) == (0, "hello hello\n"), replayed.stderr
    assert replayed.verdict["counts"]["live"] == 2
    assert replayed.verdict["sockets_denied"] == []
    assert greeter.came == 4


HARMLESS = """
assert socket.getaddrinfo("localhost", 80)
assert socket.getaddrinfo("127.0.0.1", 80)
assert socket.getaddrinfo(None, 0)
server = socket.create_server(("127.0.0.1", 0))
one, other = socket.socketpair()
one.sendall(b"x")
assert other.recv(1) == b"x"
async def main():
    serving = await asyncio.start_server(lambda r, w: None, "localhost", 0)
    serving.close()
asyncio.run(main())
print("fine")
"""


def test_what_asks_nobody_is_let_through(workplace: Workplace) -> None:
    """Local names, addresses, listening sockets and socket pairs are not connections."""
    agent = workplace.write("agent.py", AGENT + HARMLESS)
    workplace.record(agent)
    replayed = workplace.replay(agent)
    assert replayed.status == 0, replayed.stderr
    assert replayed.stdout.endswith("fine\n")


def test_own_collector_may_be_reached_and_nothing_else_on_its_host(workplace: Workplace, greeter: Greeter) -> None:
    """A replay delivers its own spans to the given collector, by name; another port there is denied."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent)
    workplace.write("agent.py", AGENT + WAYS["connect"])
    with serve() as sink:
        endpoint = sink.endpoint.replace("127.0.0.1", "localhost")
        replayed = workplace.replay(agent, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
        assert replayed.causes() == [("effect_blocked", "socket:connect")]
        assert replayed.verdict["sockets_denied"] == [f"127.0.0.1:{greeter.port}"]
        assert sink.accepted != []
