"""A live session of Google's over a real websocket is one call of its model, and replays with the server gone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import websockets.sync.server

from support.replaying import Workplace
from support.wire_text import Line, make_text, read_turn

PATH = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
AGENT = f"""
import json, os
from websockets.sync.client import connect

with connect(os.environ["LIVE_URL"] + "{PATH}?key=k") as session:
    setup = {{"model": "models/gemini-live-x", "generationConfig": {{"temperature": 0.7}}}}
    session.send(json.dumps({{"setup": setup}}))
    print(json.loads(session.recv()))
    for text in ("hello", "and again"):
        turn = {{"role": "user", "parts": [{{"text": text}}]}}
        session.send(json.dumps({{"clientContent": {{"turns": [turn], "turnComplete": True}}}}))
        while True:
            message = json.loads(session.recv())
            print(message)
            if message["serverContent"].get("turnComplete"):
                break
"""


def _serve(connection: Any) -> None:
    for text in connection:
        message = json.loads(text)
        if "setup" in message:
            connection.send(json.dumps({"setupComplete": {}}))
            continue
        asked = message["clientContent"]["turns"][0]["parts"][0]["text"]
        said = make_text(read_turn([Line("user", asked)], [], ""))
        connection.send(json.dumps({"serverContent": {"modelTurn": {"parts": [{"text": said}]}}}))
        usage = {"promptTokenCount": 11, "responseTokenCount": 12}
        connection.send(json.dumps({"serverContent": {"turnComplete": True}, "usageMetadata": usage}))


@pytest.fixture
def live() -> Iterator[Any]:
    """A live model on a port of 127.0.0.1."""
    server = websockets.sync.server.serve(_serve, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


@pytest.mark.slow
def test_u1_s22_live_session_replays_byte_for_byte(live: Any, workplace: Workplace) -> None:
    """Model, answers, temperature and usage of both turns are in the call; the replay contacts no server."""
    workplace.environ["LIVE_URL"] = f"ws://127.0.0.1:{live.socket.getsockname()[1]}"
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent)
    live.shutdown()
    assert recorded.stdout.count("Answer") == 2
    (call,) = workplace.recording().calls
    meta = dict(call.meta)
    assert (call.boundary, meta["model"], meta["temperature"]) == ("llm:google.live", "gemini-live-x", 0.7)
    assert (meta["tokens_in"], meta["tokens_out"], meta["finish_reason"]) == (22, 24, "STOP")
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    assert replayed.verdict["sockets_denied"] == []
