"""Sessions of Socket.IO: each is a run of its own, whose id holds how many came before it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest
import websockets

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import Server, await_true, prepare
from support.units import serve as serve_app

APP: Final = """
import socketio
from groq import AsyncGroq

client = AsyncGroq()
server = socketio.AsyncServer(async_mode="asgi")
app = socketio.ASGIApp(server)

@server.event
async def question(sid, text):
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    await server.emit("answer", {"text": answer.choices[0].message.content, "sid": sid}, to=sid)
"""
COMMAND: Final = ("-m", "uvicorn", "app:app")


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    return prepare(tmp_path, provider, APP)


def serve(place: Workplace) -> AbstractContextManager[Server]:
    return serve_app(place, command=COMMAND, at="--port {port}")


async def ask(server: Server, text: str) -> str:
    """Open a session, put a question, and return the frame with its answer."""
    url = server.url.replace("http", "ws") + "/socket.io/?EIO=4&transport=websocket"
    async with websockets.connect(url, open_timeout=TIMEOUT_S) as socket:
        assert str(await socket.recv()).startswith("0{")
        await socket.send("40")
        assert str(await socket.recv()).startswith("40{")
        await socket.send(f'42["question","{text}"]')
        return str(await socket.recv())


async def _ask_all(server: Server) -> list[str]:
    first = await ask(server, "alone")
    return [first, *await asyncio.gather(*(ask(server, f"number {number}") for number in range(4)))]


def test_p2_p4_a_session_replays_without_those_before_it(provider: Provider, place: Workplace) -> None:
    """Five sessions, four of them at once: each replays alone with its own id; a changed question is named."""
    with serve(place) as server:
        answers = asyncio.run(_ask_all(server))
        await_true(lambda: sum(unit.completeness().is_complete for unit in server.units()) == len(answers))
        server.stop()
    provider.stop()
    assert len(set(answers)) == len(answers)
    assert all(answer.startswith('42["answer",') for answer in answers)
    for unit in server.units():
        replayed = place.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"
    place.write("app.py", APP.replace('"content": text', '"content": text + "?"'))
    changed = place.replay(*COMMAND, source=server.units()[-1].run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes()[0][0] == "changed_call"
