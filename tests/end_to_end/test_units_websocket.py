"""Websocket sessions: each is a separate run with all its messages, and replays by itself."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import pytest
import websockets

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import Server, await_true, prepare, trace_of
from support.units import serve as serve_app

APP: Final = """
import asyncio, time, uuid

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from groq import AsyncGroq

client = AsyncGroq()
app = FastAPI()

async def ask(text):
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content

@app.websocket("/chat")
async def chat(socket: WebSocket):
    await socket.accept(subprotocol="chat")
    said = []
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            if message.get("bytes") is not None:
                await socket.send_bytes(message["bytes"][::-1])
            elif message["text"] == "bye":
                await socket.close(4001, "as asked")
                return
            else:
                said.append(message["text"])
                reply = await ask(" ".join(said))
                await socket.send_json({"reply": reply, "at": time.time(), "id": str(uuid.uuid4())})
    except WebSocketDisconnect as gone:
        await ask(f"left with {gone.code}")

@app.websocket("/pings")
async def pings(socket: WebSocket):
    await socket.accept()
    while True:
        try:
            text = await asyncio.wait_for(socket.receive_text(), 0.05)
        except asyncio.TimeoutError:
            await socket.send_text("ping")
        else:
            await socket.send_text(await ask(text))
            await socket.close()
            return
"""
UVICORN: Final = ("-m", "uvicorn", "app:app")
HYPERCORN: Final = ("-m", "hypercorn", "app:app")


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    return prepare(tmp_path, provider, APP)


def serve(place: Workplace, command: tuple[str, ...], **environ: str) -> AbstractContextManager[Server]:
    """Start the application under a server."""
    at = "--port {port}" if command == UVICORN else "-b 127.0.0.1:{port}"
    return serve_app(place, command=command, at=at, **environ)


def connect(server: Server, path: str, **options: Any) -> Any:
    """A client's connection to the application."""
    return websockets.connect(server.url.replace("http", "ws") + path, open_timeout=TIMEOUT_S, **options)


async def chat(server: Server, number: int, *, is_left: bool = False) -> list[str]:
    """Send three questions and a binary message; then leave, or ask the application to close."""
    baggage = {"baggage": f"user.id=user-{number % 5},session.id=session-{number}"}
    baggage["traceparent"] = f"00-{number + 1:032x}-00f067aa0ba902b7-01"
    async with connect(server, "/chat", additional_headers=baggage, subprotocols=["chat"]) as socket:
        answers = []
        for part in range(3):
            await socket.send(f"question-{number} {part}")
            answers.append(str(await socket.recv()))
        await socket.send(b"\xff\x00\x01")
        assert await socket.recv() == b"\x01\x00\xff"
        if is_left:
            await socket.close(3001)
        else:
            await socket.send("bye")
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "as asked")
    return answers


def sent(unit: Recording) -> list[dict[str, Any]]:
    """The messages that the application sent."""
    return [json.loads(c.request)["arguments"] for c in unit.calls if c.boundary == "http:websocket.send"]


async def _chat_all(server: Server, count: int) -> list[list[str]]:
    return await asyncio.gather(*(chat(server, number, is_left=number % 2 == 1) for number in range(count)))


@pytest.mark.parametrize(
    ("command", "code"),
    [(UVICORN, 3001), (HYPERCORN, 1006)],  # hypercorn does not pass on the client's code
    ids=["uvicorn", "hypercorn"],
)
@pytest.mark.sampled(1)
def test_p2_p4_a_chat_is_a_run_and_replays_alone(
    command: tuple[str, ...], code: int, provider: Provider, place: Workplace
) -> None:
    """Concurrent sessions are runs without each other's words; each ending replays; a change names its message."""
    count = 20
    with serve(place, command) as server:
        answers = asyncio.run(_chat_all(server, count))
        await_true(lambda: sum(unit.completeness().is_complete for unit in server.units()) == count)
        server.stop()
    provider.stop()
    units = {int(unit.root.session_id.removeprefix("session-")): unit for unit in server.units()}
    assert sorted(units) == list(range(count))
    for number, unit in units.items():
        assert unit.root.user_id == f"user-{number % 5}"
        assert trace_of(unit) == number + 1
        assert unit.root.outcome == "ok"
        texts = [text for call in unit.calls for text in (call.request, call.response)]
        assert {each for text in texts for each in re.findall(r"question-\d+", text)} == {f"question-{number}"}
        found = [json.loads(each["text"])["reply"] for each in sent(unit) if each.get("frame") == "text"]
        assert found == [json.loads(answer)["reply"] for answer in answers[number]]
    closed = sent(units[0])[-1]
    assert (closed["type"], closed["code"], closed["reason"]) == ("websocket.close", 4001, "as asked")
    assert f"left with {code}" in "".join(call.request for call in units[1].calls)
    for number in (0, 1):
        replayed = place.replay(*command, source=units[number].run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"
    place.write("app.py", APP.replace('{"reply": reply,', '{"reply": reply if len(said) < 3 else "changed",'))
    changed = place.replay(*command, source=units[0].run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes() == [("changed_call", "http:websocket.send")]
    assert changed.verdict["divergences"][0]["diff"][0]["path"].startswith("arguments.text")


def test_p4_a_wait_for_a_message_that_timed_out_replays(provider: Provider, place: Workplace) -> None:
    """An application that stops waiting, sends a message and waits again does the same in its replay."""

    async def wait(server: Server) -> None:
        async with connect(server, "/pings") as socket:
            assert [await socket.recv(), await socket.recv()] == ["ping", "ping"]
            await socket.send("hello")
            async for text in socket:
                if text != "ping":
                    break

    with serve(place, UVICORN) as server:
        asyncio.run(wait(server))
        await_true(lambda: [unit.completeness().is_complete for unit in server.units()] == [True])
        server.stop()
    provider.stop()
    (unit,) = server.units()
    replayed = place.replay(*UVICORN, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


def test_p5_ended_sessions_are_whole_when_the_process_is_killed(provider: Provider, place: Workplace) -> None:
    """After kill -9, an ended session replays; the one in flight says that it did not end."""

    async def hold(server: Server) -> None:
        await chat(server, 0)
        async with connect(server, "/chat", subprotocols=["chat"]) as socket:
            await socket.send("hello")
            await socket.recv()
            server.process.send_signal(signal.SIGKILL)
            server.process.communicate(timeout=TIMEOUT_S)

    with serve(place, UVICORN) as server:
        asyncio.run(hold(server))
    provider.stop()
    ended, in_flight = server.units()
    assert ended.completeness().is_complete
    assert in_flight.completeness().reasons[0] == "the run did not end: its process was killed or is still running"
    replayed = place.replay(*UVICORN, source=ended.run_id)
    assert replayed.status == 0, replayed.stderr
    assert place.replay(*UVICORN, source=in_flight.run_id).status == 4


def test_p5_a_server_that_stops_ends_its_sessions(provider: Provider, place: Workplace) -> None:
    """The session gets the server's disconnection, is complete, and replays."""

    async def hold(server: Server) -> None:
        async with connect(server, "/chat", subprotocols=["chat"]) as socket:
            await socket.send("hello")
            await socket.recv()
            server.process.terminate()
            await socket.wait_closed()

    with serve(place, UVICORN) as server:
        asyncio.run(hold(server))
        server.process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    (unit,) = server.units()
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert "left with 1012" in "".join(call.request for call in unit.calls)
    replayed = place.replay(*UVICORN, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


REFUSING: Final = """
@app.websocket("/refused")
async def refused(socket: WebSocket):
    await ask("may they come in?")
    await socket.close(4003)

@app.websocket("/raises")
async def raises(socket: WebSocket):
    await socket.accept()
    raise KeyError(await ask(await socket.receive_text()))
"""


def test_p2_p4_a_refused_session_and_one_that_raises_replay(provider: Provider, place: Workplace) -> None:
    """The application's work before accepting is in the run, and so is its final exception."""
    place.write("app.py", APP + REFUSING)

    async def ask_both(server: Server) -> None:
        with pytest.raises(websockets.InvalidStatus):
            await connect(server, "/refused")
        async with connect(server, "/raises") as socket:
            await socket.send("hello")
            await socket.wait_closed()

    with serve(place, UVICORN) as server:
        asyncio.run(ask_both(server))
        await_true(lambda: sum(unit.completeness().is_complete for unit in server.units()) == 2)
        server.stop()
    provider.stop()
    refused, raising = server.units()
    assert [each["type"] for each in sent(refused)] == ["websocket.close"]
    assert raising.root.outcome == "error"
    assert "builtins.KeyError" in raising.calls[-1].request
    for unit in (refused, raising):
        replayed = place.replay(*UVICORN, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr


SABOTAGE: Final = """
from spanreplay.units import asgi_websocket
def broken(*args, **kwargs): raise ValueError
asgi_websocket.describe_message = asgi_websocket._record_end = broken
"""


def test_p2_an_error_of_ours_lets_a_session_through(place: Workplace) -> None:
    """Client and application exchange messages even though none can be recorded; the run says so."""
    place.write("app.py", APP + SABOTAGE)
    with serve(place, UVICORN) as server:
        answers = asyncio.run(chat(server, 0))
        await_true(lambda: [unit.root.outcome for unit in server.units()] == ["ok"])
        server.stop()
    assert len(answers) == 3
    (unit,) = server.units()
    assert "a message of this session could not be recorded" in unit.completeness().reasons
