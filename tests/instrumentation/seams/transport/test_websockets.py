"""The websockets seam with a real server: recorded, the server stopped, replayed in a second process."""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets.asyncio.client
import websockets.sync.client
import websockets.sync.server

from spanreplay.model.call import Recording
from spanreplay.seams.transport import websockets as _websockets
from support.in_process import recorded
from support.replaying import Workplace
from support.transports import assert_patches, recorded_calls

SEAMS = ((_websockets.install, websockets.asyncio.client), (_websockets.install, websockets.sync.client))


def _answer(connection: Any) -> None:
    """Echo with a number that is never used twice; `silence` is not answered, `bye` closes the connection."""
    for message in connection:
        if message == "bye":
            connection.close(4001, "as you wish")
            return
        if isinstance(message, bytes):
            connection.send(message + uuid.uuid4().bytes)
        elif message != "silence":
            for n in range(2):
                connection.send(f"{n} {message} {uuid.uuid4().hex}")


class _Server:
    def __init__(self) -> None:
        self._server = websockets.sync.server.serve(_answer, "127.0.0.1", 0)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def stop(self) -> None:
        """Close the port; may be called twice."""
        self._server.shutdown()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[_Server]:
    """A server that runs while the test does, unless the test stops it."""
    running = _Server()
    yield running
    running.stop()


@pytest.fixture
def there(server: _Server, workplace: Workplace) -> Workplace:
    """A directory to record in; its agents get the server as $WS."""
    return Workplace(workplace.path, {**workplace.environ, "WS": server.url})


ASYNC = """
import asyncio, os, websockets
from websockets.asyncio.client import connect

async def main():
    async with connect(os.environ["WS"]) as ws:
        for word in ("one", "two"):
            await ws.send(word)
            print(await ws.recv(), await ws.recv())
        await ws.send(b"raw")
        print(await ws.recv())
        await ws.send(["in ", "pieces"])
        print(await ws.recv(), await ws.recv(decode=False))
        await ws.send("silence")
        try:
            await asyncio.wait_for(ws.recv(), 0.2)
        except asyncio.TimeoutError:
            print("nothing came")
        await ws.send("three")
        print(await ws.recv(), isinstance(ws, websockets.asyncio.client.ClientConnection))
    print(ws.close_code)
    ws = await connect(os.environ["WS"])
    await ws.send("four")
    await ws.send("bye")
    try:
        async for message in ws:
            print(message)
    except websockets.ConnectionClosed as exc:
        print(type(exc), exc, exc.rcvd.code, exc.rcvd.reason)
    try:
        await connect("ws://127.0.0.1:9")
    except OSError as exc:
        print(type(exc), exc)

asyncio.run(main())
"""
SYNC = """
import os, websockets
from websockets.sync.client import connect

with connect(os.environ["WS"]) as ws:
    for word in ("one", "two"):
        ws.send(word)
        print(ws.recv(), ws.recv())
    ws.send("silence")
    try:
        ws.recv(timeout=0.2)
    except TimeoutError as exc:
        print(type(exc), exc)
    ws.send("three")
    print(ws.recv(timeout=5))
ws = connect(os.environ["WS"])
ws.send("bye")
try:
    ws.recv()
except websockets.ConnectionClosed as exc:
    print(type(exc), exc)
try:
    connect("ws://127.0.0.1:9")
except OSError as exc:
    print(type(exc), exc)
"""


@pytest.mark.parametrize("source", [ASYNC, SYNC], ids=["asyncio", "threads"])
def test_s26_websockets_replay_byte_for_byte_without_the_server(
    source: str, server: _Server, there: Workplace, assert_identical: Callable[..., None]
) -> None:
    """Messages, timeouts, closing and refused connections replay in order with the server stopped."""
    agent = there.write("agent.py", source)
    before = there.record(agent)
    server.stop()
    recording: Recording = there.recording()
    assert_identical(there.replay(agent), before.stdout, recording)
    assert len(recording.calls) == 3


GIVEN_UP = """
import os
from websockets.sync.client import connect
with connect(os.environ["WS"]) as ws:
    ws.send("silence")
    try:
        ws.recv(timeout={})
    except TimeoutError:
        print("nothing came")
    ws.send("three")
    print(ws.recv(timeout={}))
"""


def test_p12_n2_a_longer_wait_than_one_that_was_given_up_is_a_difference(there: Workplace) -> None:
    """A shorter one is none; nor is another limit of a wait that ended with a message."""
    there.write("agent.py", GIVEN_UP.format(0.2, 5))
    there.record("agent.py")
    for silent, answered, verdict in ((0.1, 5, "identical"), (0.2, 9, "identical"), (3, 5, "diverged")):
        there.write("agent.py", GIVEN_UP.format(silent, answered))
        replayed = there.replay("agent.py")
        assert replayed.verdict["verdict"] == verdict, (silent, answered)
    assert "ran out after 0.2 s when recorded, and would last 3 s now" in replayed.stderr


def test_s28_changed_websocket_message_is_named(there: Workplace) -> None:
    """Another message is a changed call that names the message, and no connection is made."""
    source = """
import os
from websockets.sync.client import connect
with connect(os.environ["WS"]) as ws:
    for word in ("one", os.environ["N"]):
        ws.send(word)
        ws.recv()
"""
    agent = there.write("agent.py", source)
    there.record(agent, N="two")
    replayed = there.replay(agent, N="too")
    assert replayed.status == 3
    assert replayed.verdict["divergences"][0]["diff"][0]["path"].startswith("sent[1]")
    assert replayed.verdict["sockets_denied"] == []


PARTS = """
import os
from websockets.sync.client import connect
ws = connect(os.environ["WS"])
for word in ("one", "two")[: int(os.environ["SENT"])]:
    ws.send(word)
for _ in range(int(os.environ["READ"])):
    ws.recv()
ws.close()
"""


def test_s28_websocket_used_less_or_further_is_named(there: Workplace) -> None:
    """Messages that are not read or sent any more are an underrun; more than recorded are an overrun."""
    agent = there.write("agent.py", PARTS)
    there.record(agent, SENT="2", READ="3")
    assert there.replay(agent, SENT="2", READ="3").status == 0
    found = [there.replay(agent, SENT=sent, READ=read) for sent, read in (("2", "1"), ("1", "0"), ("2", "4"))]
    assert [f.status for f in found] == [3, 3, 3]
    assert [f.causes()[0][0] for f in found] == ["stream_underrun", "stream_underrun", "stream_overrun"]


def test_realtime_websocket_is_an_llm_call(server: _Server) -> None:
    """A realtime model's connection is recorded as a call of that model."""

    def agent() -> None:
        with websockets.sync.client.connect(server.url + "/v1/realtime?model=gpt-x") as ws:
            ws.send("hi")
            ws.recv()

    (call,) = recorded(agent, SEAMS).calls
    assert (call.boundary, call.meta["model"]) == ("llm:openai.realtime", "gpt-x")


SAYS_SECRET = """
import os
from websockets.sync.client import connect
secret = os.environ["CANARY"].encode()
with connect(os.environ["WS"]) as ws:
    ws.send('{"key": "%s"}' % secret.decode())
    print(len(ws.recv(decode=False)), len(ws.recv()))
    if os.environ.get("BINARY"):
        ws.send(b"\\xff\\x00" + secret + b"\\xff")
        print(len(ws.recv()))
"""
CANARY = "sk-proj-" + "Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"


def _files_with(path: Path, secret: str) -> list[str]:
    """The files of a data directory that hold a secret, also as base64 at any offset."""
    needles = [secret.encode(), *(base64.b64encode(b"." * n + secret.encode())[4:-4] for n in range(3))]
    files = [file for file in (path / ".spanreplay").rglob("*") if file.is_file()]
    return [file.name for file in files if any(needle in file.read_bytes() for needle in needles)]


def test_r1_secret_in_a_websocket_is_in_no_file(there: Workplace) -> None:
    """Text is redacted even if the agent takes it as bytes; its replay is complete."""
    agent = there.write("agent.py", SAYS_SECRET)
    recorded = there.record(agent, CANARY=CANARY)
    assert recorded.stdout
    assert _files_with(there.path, CANARY) == []
    assert there.recording().completeness().is_complete
    assert "rdx-" in there.recording().calls[0].response


def test_r1_secret_in_binary_messages_makes_a_hole(there: Workplace) -> None:
    """A received secret in bytes of an unknown format is not stored, and the run says why it is incomplete."""
    agent = there.write("agent.py", SAYS_SECRET)
    there.record(agent, CANARY=CANARY, BINARY="1")
    assert _files_with(there.path, CANARY) == []
    reasons = there.recording().completeness().reasons
    assert any("holds a secret" in reason for reason in reasons), reasons
    replayed = there.replay(agent, CANARY=CANARY, BINARY="1")
    assert replayed.status == 4
    assert replayed.verdict["sockets_denied"] == []


def test_websocket_suppressed_is_no_call(server: _Server) -> None:
    """A connection under OTel's suppression is not recorded."""
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    def agent() -> None:
        with suppress_instrumentation(), websockets.sync.client.connect(server.url) as ws:
            ws.send("hi")
            ws.recv()

    assert recorded_calls(agent, SEAMS) == ()


def test_websockets_uninstall_restores_the_originals() -> None:
    """Each target is patched, and is the same object again afterwards."""
    connector = websockets.asyncio.client.connect
    name = "connect" if "connect" in vars(connector) else "__await_impl__"
    assert_patches(SEAMS, (connector, name), (websockets.sync.client, "connect"))
