"""A program that goes on to use the connection of an HTTP response: what passes there is no HTTP, and not recorded."""

from __future__ import annotations

from typing import Final

import pytest

from support.replaying import Workplace
from support.tcp_server import answering

AGENT: Final = """
import sys
import requests
import spanreplay

@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return amount * 2

print(quote(1))
with requests.post(f"http://127.0.0.1:{sys.argv[1]}/exec/start", json={"order": 1}, stream=True) as response:
    reader = response.raw._fp.fp
    taken = reader.raw  # as Docker's SDK does
    print(reader.peek() or taken.read(100))
print(quote(2))
"""
ANSWERS: Final = {
    "switched": b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nordered",
    "not switched": b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\nordered",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_p12_a_connection_that_is_taken_over_ends_the_replay(answer: str, workplace: Workplace) -> None:
    """The verdict is incomplete and says why: neither identical nor an error of a stand-in."""
    agent = workplace.write("agent.py", AGENT)
    with answering(ANSWERS[answer], reads=True) as (port, asked):
        assert "ordered" in workplace.record(agent, str(port)).stdout
        assert workplace.recording().completeness().is_complete == (answer == "not switched")
        replayed = workplace.replay(agent, str(port))
    assert len(asked) == 1
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert replayed.verdict["divergences"] == []
    assert "a connection was used for more than an HTTP response" in replayed.verdict["reasons"][0]
    assert replayed.stdout == "2\n"
