"""Connections made by uvloop itself, as Redis' and PostgreSQL's clients do in a service: calls, or a named hole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from support.replaying import Workplace
from support.tcp_server import answering

AGENT: Final = """
import asyncio, sys
import uvloop
import spanreplay

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return f"answer to {question}"

async def through_a_stream(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello")
    print((await reader.read(100)).decode())
    writer.close()

async def through_a_socket(port):
    sock = __import__("socket").socket()
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, b"hello")
    print((await loop.sock_recv(sock, 100)).decode())
    sock.close()

async def main():
    ask("first")
    await globals()[sys.argv[1]](int(sys.argv[2]))

uvloop.run(main())
"""


@pytest.fixture
def port_and_asked() -> Iterator[tuple[int, list[bytes]]]:
    """A server outside the program: its port, and the requests it got."""
    with answering(b"noted", reads=True) as served:
        yield served


def test_n14_s57_a_stream_of_uvloops_is_recorded_and_never_made_again(
    port_and_asked: tuple[int, list[bytes]], workplace: Workplace
) -> None:
    """What comes through `asyncio.open_connection` on uvloop's loop comes back, and nothing is sent."""
    port, asked = port_and_asked
    agent = workplace.write("agent.py", AGENT)
    assert workplace.record(agent, "through_a_stream", str(port)).stdout == "noted\n"
    replayed = workplace.replay(agent, "through_a_stream", str(port))
    assert (replayed.status, replayed.stdout) == (0, "noted\n"), replayed.stderr
    workplace.write("agent.py", AGENT.replace("hello", "good bye"))
    changed = workplace.replay(agent, "through_a_stream", str(port))
    assert (changed.status, changed.causes()) == (3, [("changed_call", "tool:socket.write")]), changed.stderr
    assert asked == [b"hello"]


def test_s57_n4_a_connection_of_uvloops_is_a_hole(
    port_and_asked: tuple[int, list[bytes]], workplace: Workplace
) -> None:
    """The recording says where it is; the unchanged program is incomplete, not diverged, and no request is repeated."""
    way, (port, asked) = "through_a_socket", port_and_asked
    agent = workplace.write("agent.py", AGENT)
    assert workplace.record(agent, way, str(port)).stdout == "noted\n"
    (reason,) = workplace.recording().completeness().reasons
    assert f"{way} opened a socket to 127.0.0.1:{port} outside of every boundary" in reason
    replayed = workplace.replay(agent, way, str(port))
    assert replayed.status == 4, replayed.stderr
    assert asked == [b"hello"]
