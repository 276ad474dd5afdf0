"""An effect outside every boundary is a hole in the run: the replay ends there and is incomplete."""

from __future__ import annotations

import os
from typing import Final

import pytest

from support.replaying import Workplace
from support.tcp_server import answering

AGENT: Final = """
import ctypes, os, socket
import spanreplay

@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return amount * 2

def dial():
    with socket.socket() as sock:
        sock.setblocking(False)
        print(sock.connect_ex(("127.0.0.1", 9)) != 0)

print(quote(1))
EFFECT
print(quote(2))
"""
EFFECTS: Final = {
    "socket": "dial()",
    "program": "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "fork_exec": "import multiprocessing.util as u; os.waitpid(u.spawnv_passfds(b'/bin/true', [b'true'], ()), 0)",
    "native code": "ctypes.CDLL(None).getppid()",
}


MANAGED: Final = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import spanreplay

@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return amount * 2

def work(shared, amount):
    shared[amount] = quote(amount)

if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        with ProcessPoolExecutor(2) as pool:
            list(pool.map(work, [shared] * 4, range(4)))
        print(sorted(shared.items()))
"""
DIAL: Final = """
import select

def dialled():
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(("127.0.0.1", int(sys.argv[1])))
    select.select([], [sock], [])
    sock.setblocking(True)
    return sock
"""
"""A connection that an event loop could have opened: it is not recorded."""
IN_A_THREAD: Final = f"""
import socket, sys, threading, time
import spanreplay

@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return amount * 2
{DIAL}
found = []

def dial():
    with dialled() as connection:
        found.append(connection.recv(100))

thread = threading.Thread(target=dial)
thread.start()
thread.join()
print(quote(len(found)))
"""
READS_AFTERWARDS: Final = f"""
import socket, sys, time
import spanreplay

@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return amount * 2
{DIAL}
with dialled() as connection:
    print(connection.recv(100), time.time(), time.time())
print(quote(1))
"""


@pytest.mark.parametrize("program", [IN_A_THREAD, READS_AFTERWARDS], ids=["in a thread", "reads afterwards"])
def test_p12_what_follows_a_denied_connection_is_no_divergence(program: str, workplace: Workplace) -> None:
    """A program that goes on without the data, or no longer reads the clock, has not changed: the recording ends."""
    agent = workplace.write("agent.py", program)
    with answering(b"7", reads=False) as (port, asked):
        workplace.record(agent, str(port))
        replayed = workplace.replay(agent, str(port))
    assert len(asked) == 1
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert f"opened a socket to 127.0.0.1:{port}" in replayed.verdict["reasons"][0]


@pytest.mark.parametrize("way", EFFECTS)
def test_p12_a_hole_that_the_recording_names_is_no_divergence(way: str, workplace: Workplace) -> None:
    """If the recording names a hole, the replay of an unchanged program is incomplete (4), never diverged."""
    agent = workplace.write("agent.py", AGENT.replace("EFFECT", EFFECTS[way]))
    workplace.record(agent)
    holes = workplace.recording().completeness().reasons
    assert len(holes) == 1
    assert holes[0].startswith("agent.py:")
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert [found["kind"] for found in replayed.verdict["divergences"]] == ["effect_blocked"]
    assert replayed.verdict["counts"]["missing"] == 0
    assert set(holes) <= set(replayed.verdict["reasons"])


def test_p12_a_replay_that_stops_where_nothing_was_recorded_is_not_identical(workplace: Workplace) -> None:
    """Also if the recording has no gaps: a program that only now reads a named pipe is stopped there."""
    agent = workplace.write("agent.py", AGENT.replace("EFFECT", ""))
    os.mkfifo(workplace.path / "pipe")
    workplace.record(agent)
    assert workplace.recording().completeness().is_complete
    workplace.write("agent.py", AGENT.replace("EFFECT", "print(open('pipe').read())"))
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert "what came through the named pipe" in replayed.verdict["reasons"][0]


def test_p12_an_effect_that_the_run_did_not_have_has_diverged(workplace: Workplace) -> None:
    """A program that only now reaches outside has changed, even if its run had a hole elsewhere."""
    agent = workplace.write("agent.py", AGENT.replace("EFFECT", EFFECTS["program"]))
    workplace.record(agent)
    workplace.write(
        "agent.py", agent.read_text().replace("print(quote(1))", f"print(quote(1)); {EFFECTS['native code']}")
    )
    replayed = workplace.replay("agent.py")
    assert (replayed.status, replayed.causes()[0]) == (3, ("effect_blocked", "native:ctypes")), replayed.stderr


def test_p12_what_differs_before_a_named_hole_has_diverged(workplace: Workplace) -> None:
    """The verdict reports a changed call before the hole."""
    agent = workplace.write("agent.py", AGENT.replace("EFFECT", EFFECTS["program"]))
    workplace.record(agent)
    workplace.write("agent.py", agent.read_text().replace("quote(1)", "quote(7)"))
    replayed = workplace.replay("agent.py")
    assert (replayed.status, replayed.causes()) == (3, [("changed_call", "tool:quote")])


def test_p12_a_process_that_nobody_can_reach_any_more_is_ended(workplace: Workplace) -> None:
    """After the hole left by a `multiprocessing` manager, nothing waits forever and no process remains."""
    agent = workplace.write("agent.py", MANAGED)
    workplace.record(agent)
    assert not workplace.recording().completeness().is_complete
    replayed = workplace.replay(agent)  # returns once no process has its standard output open any more
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert "_exit_function" not in replayed.stderr
