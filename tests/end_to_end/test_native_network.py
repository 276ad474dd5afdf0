"""Native code connects directly, past every patch and audit hook: in a replay the kernel denies it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.native import install_library, needs_offline
from support.replaying import Workplace
from support.tcp_server import answering

AGENT: Final = """
import sys
import native
import spanreplay

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return f"answer to {question}"

ask("hello")
print(native.ask(int(sys.argv[1])))
"""
ASKS_ITSELF: Final = """
import socket, threading
import native
import spanreplay

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return f"answer to {question}"

server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]

def serve():
    for _ in range(2):
        asking, _ = server.accept()
        asking.sendall(ask("hello").encode())
        asking.close()

thread = threading.Thread(target=serve)
thread.start()
print(socket.create_connection(("127.0.0.1", port)).recv(100).decode())
print(native.ask(port))
thread.join()
"""
SENDS: Final = """
import sys
import native
import spanreplay

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return f"answer to {question}"

send = native.dial(int(sys.argv[1]))
print(ask("hello"))
send(b"one order")
"""


@pytest.fixture
def port_and_asked() -> Iterator[tuple[int, list[bytes]]]:
    """A server outside the program: its port, and the requests it got."""
    with answering(b"ordered", reads=False) as served:
        yield served


@needs_offline
def test_n14_a_replay_makes_no_connection_of_native_code(
    port_and_asked: tuple[int, list[bytes]], tmp_path: Path
) -> None:
    """No server is contacted again by any library; the program gets a permission error."""
    port, asked = port_and_asked
    place = Workplace(tmp_path, {"PYTHONPATH": install_library(tmp_path)})
    agent = place.write("agent.py", AGENT)
    assert place.record(agent, str(port)).stdout == "ordered\n"
    assert len(asked) == 1
    replayed = place.replay(agent, str(port))
    assert len(asked) == 1, "the server was asked by a replay"
    assert replayed.status == 3, replayed.stderr
    assert "Permission denied" in replayed.stderr
    assert replayed.verdict["sandbox"]["network"] == "kernel"
    assert "SPANREPLAY_SANDBOX=python" in replayed.verdict["divergences"][0]["hint"]


@needs_offline
@pytest.mark.parametrize("is_changed", [False, True], ids=["as recorded", "another order"])
def test_n14_a_connection_of_native_code_makes_a_run_incomplete(tmp_path: Path, is_changed: bool) -> None:
    """Nobody sees what goes through it: a replay that can't compare that is never identical."""
    place = Workplace(tmp_path, {"PYTHONPATH": install_library(tmp_path)})
    agent = place.write("agent.py", SENDS)
    with answering(b"", reads=True) as (port, asked):
        place.record(agent, str(port))
        (reason,) = place.recording().completeness().reasons
        assert reason == f"native code connected to 127.0.0.1:{port}, which is not recorded"
        if is_changed:
            place.write("agent.py", SENDS.replace("one", "two"))
        replayed = place.replay(agent, str(port))
        assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
        assert reason in replayed.verdict["reasons"]
        assert replayed.verdict["divergences"] == []
    assert asked == [b"one order"]


@needs_offline
def test_n14_a_program_that_asks_its_own_server_does_so_in_its_replay(tmp_path: Path) -> None:
    """The kernel can't tell the program's own server from others: its request to itself is in its recording."""
    place = Workplace(tmp_path, {"PYTHONPATH": install_library(tmp_path)})
    agent = place.write("agent.py", ASKS_ITSELF)
    place.record(agent)
    replayed = place.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.verdict["sandbox"]["network"] == "python"
