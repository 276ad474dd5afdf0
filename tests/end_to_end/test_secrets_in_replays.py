"""A replay knows the secrets that its recording hides, and sends no token to anybody."""

from __future__ import annotations

import pytest

from support.replaying import Replayed, Workplace

PASSWORD = "swordfish_blue_77"
AGENT = f"""
import spanreplay

PASSWORD = "{PASSWORD}"

@spanreplay.boundary("tool", effect="read")
def account():
    return {{"user": "bot", "password": PASSWORD}}

@spanreplay.boundary("tool", effect="write")
def login(text):
    return len(text) > 0

@spanreplay.boundary("tool", effect="write")
def send(key, note):
    return note

found = account()
print(login(f"log in as bot with {{PASSWORD}} please"))
print(send(found["password"], "done"))
"""


def _stored(workplace: Workplace) -> bytes:
    """Every byte below the data directory."""
    folder = workplace.path / ".spanreplay"
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def _said(replayed: Replayed) -> str:
    return f"{replayed.stdout}{replayed.stderr}{replayed.verdict}"


@pytest.fixture
def recorded(workplace: Workplace) -> Workplace:
    """A recorded agent that gets a password in a response; it is redacted as a secret and used."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    assert PASSWORD.encode() not in _stored(workplace)
    return workplace


def test_r9_a_value_learned_from_a_response_is_known_in_the_replay(recorded: Workplace) -> None:
    """An unchanged agent is identical, and neither verdict nor the replay's own record holds the value."""
    done = recorded.replay("agent.py")
    assert done.status == 0, done.stderr
    assert PASSWORD not in _said(done)
    assert PASSWORD.encode() not in _stored(recorded)


def test_r9_a_changed_request_shows_no_secret(recorded: Workplace) -> None:
    """A verdict about a changed request shows its token."""
    recorded.write("agent.py", AGENT.replace("log in as bot", "sign in as bot"))
    done = recorded.replay("agent.py")
    assert done.causes()[0] == ("changed_call", "tool:login")
    assert "rdx-" in done.stderr
    assert PASSWORD not in _said(done)
    assert PASSWORD.encode() not in _stored(recorded)


def test_r9_a_live_call_sends_no_token(workplace: Workplace) -> None:
    """A live call that would send a token is blocked, and its field is named; a flag allows it and reports it."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py", SPANREPLAY_SEAL="false")
    refused = workplace.replay("agent.py", options=["--live", "tool:send"])
    assert (refused.status, refused.verdict["verdict"]) == (1, "error")
    assert "live call 3 (tool:send) would send rdx-" in refused.stderr
    assert "in arguments.key, which stands for a value that the recording hides" in refused.stderr
    allowed = workplace.replay("agent.py", options=["--live", "tool:send", "--allow-tokens"])
    assert allowed.status == 0, allowed.stderr
    assert "a redaction token, live: call 3 (tool:send) in arguments.key" in allowed.stderr
    assert allowed.verdict["tokens_sent"] == [{"call": 3, "boundary": "tool:send", "field": "arguments.key"}]


def test_r9_a_live_call_sends_the_true_value_where_the_key_is(recorded: Workplace) -> None:
    """The agent sends the value that it received, as in the recorded run; the replay's own record has the token."""
    recorded.write("agent.py", AGENT.replace("    return note", "    return f'{note} {len(key)} {key[::-1]}'"))
    done = recorded.replay("agent.py", options=["--live", "tool:send"])
    assert done.stdout.splitlines()[-1] == f"done {len(PASSWORD)} {PASSWORD[::-1]}"
    assert "tokens_sent" not in done.verdict
    assert PASSWORD not in f"{done.stderr}{done.verdict}"
    assert PASSWORD.encode() not in _stored(recorded)


def test_r9_a_live_call_with_the_agents_own_secret_is_made(recorded: Workplace) -> None:
    """A value that the agent itself holds is not a token: redaction hides it in the record, not from the call."""
    done = recorded.replay("agent.py", options=["--live", "tool:login"])
    assert done.status == 0, done.stderr
