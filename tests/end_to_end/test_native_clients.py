"""HTTP clients in native code: a run that uses one says so, and a replay sends nothing again."""

from __future__ import annotations

from support.replaying import Workplace

CLIENT = """
import os


class Client:
    def post(self, url, body):
        os.write(2, b"a request has been sent\\n")
        return body
"""
AGENT = """
import primp
import spanreplay


@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return amount * 2


print(quote(1))
print(primp.Client().post("http://shop/order", quote(2)))
print(quote(3))
"""


def test_requests_in_native_code_are_holes_and_a_replay_makes_none(workplace: Workplace) -> None:
    """The recording names the line; a replay of the unchanged program ends there, incomplete."""
    workplace.write("primp.py", CLIENT)
    workplace.write("agent.py", AGENT)
    recorded = workplace.record("agent.py")
    assert recorded.stdout == "2\n4\n6\n"
    assert "a request has been sent" in recorded.stderr
    (leak,) = workplace.recording().root.manifest["leaks"]
    assert leak["said"].endswith("opened a socket to a server with primp outside of every boundary")
    assert leak["code"].startswith("agent.py:12 ")

    replayed = workplace.replay("agent.py")
    assert replayed.status == 4, replayed.stderr
    assert "a request has been sent" not in replayed.stderr
    assert replayed.verdict["sockets_denied"] == ["a server with primp"]


def test_a_request_in_native_code_that_is_new_has_diverged(workplace: Workplace) -> None:
    """A native request that was not made when recorded means that the program has changed."""
    workplace.write("primp.py", CLIENT)
    workplace.write("agent.py", AGENT.replace('primp.Client().post("http://shop/order", quote(2))', "quote(2)"))
    workplace.record("agent.py")
    workplace.write("agent.py", AGENT)
    replayed = workplace.replay("agent.py")
    assert replayed.causes() == [("effect_blocked", "socket:connect")]
    assert "a request has been sent" not in replayed.stderr
