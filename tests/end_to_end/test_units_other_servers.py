"""Under daphne and granian, each request and websocket is a separate run, replayable with the provider stopped."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest
from websockets.sync.client import connect

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import ASKING, FLASK, Server, find_own_number, path_of, prepare, response_of, serve

APP: Final = f"""{ASKING}
import contextlib

from fastapi import FastAPI, Request, WebSocket

async def lifespan(app):
    print("ready", flush=True)
    yield

app = FastAPI(lifespan=contextlib.asynccontextmanager(lifespan))

@app.post("/chat")
async def chat(request: Request):
    reply = await ask((await request.json())["text"])
    return {{"reply": reply, "started": STARTED, "now": time.time(), "id": str(uuid.uuid4())}}

@app.websocket("/talk")
async def talk(socket: WebSocket):
    await socket.accept()
    for _ in range(2):
        await socket.send_text(await ask(await socket.receive_text()))
    await socket.receive()  # the client ends it
"""
SERVERS: Final = {
    # name → command, where it listens
    "daphne": (("-m", "daphne", "app:app"), "-b 127.0.0.1 -p {port}"),
    "granian": (
        ("-m", "granian", "--interface", "asgi", "app:app"),
        "--host 127.0.0.1 --port {port} --no-log --workers 2",
    ),
}
WORKERS: Final = {"granian": 2}
"""The number of processes that report readiness; daphne has no lifespan."""
servers = pytest.mark.parametrize("name", SERVERS)


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    return prepare(tmp_path, provider, APP)


def await_workers(name: str, server: Server) -> None:
    """Wait until all have loaded: a granian worker that is still loading ignores SIGTERM, and would stay forever."""
    said = server.process.stdout
    missing = WORKERS.get(name, 0)
    while missing:
        line = said.readline() if said is not None else ""
        assert line, "the server ended"
        missing -= line == "ready\n"


@servers
@pytest.mark.sampled(1)
def test_p2_p4_requests_under_other_servers_are_runs_that_replay_alone(
    name: str, provider: Provider, place: Workplace
) -> None:
    """With many concurrent users, no run holds another request's values; a sample replays; a change is named."""
    count, (command, at) = 12, SERVERS[name]
    with serve(place, command=command, at=at) as server:
        await_workers(name, server)

        def ask(number: int) -> str:
            headers = {"baggage": f"user.id=user-{number % 3},session.id=session-{number}"}
            body = {"text": f"question-{number}"}
            return httpx.post(f"{server.url}/chat", json=body, headers=headers, timeout=TIMEOUT_S).text

        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(ask, range(count)))
        server.stop()
    provider.stop()
    units = server.units()
    assert len(units) == count
    for unit in units:
        number = find_own_number(unit)
        assert response_of(unit)["body"]["text"] == answers[number]
    for unit in (units[0], units[-1]):
        replayed = place.replay(*command, source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    place.write("app.py", APP.replace('"reply": reply', '"reply": reply.upper()'))
    changed = place.replay(*command, source=units[0].run_id)
    assert changed.causes() == [("changed_call", "http:response")], changed.stderr


@servers
@pytest.mark.sampled(1)
def test_p2_p4_a_chat_under_other_servers_is_a_run_and_replays_alone(
    name: str, provider: Provider, place: Workplace
) -> None:
    """A websocket session is one run, from its handshake to its end."""
    command, at = SERVERS[name]
    with serve(place, command=command, at=at) as server:
        await_workers(name, server)
        with connect(f"{server.url.replace('http', 'ws', 1)}/talk", open_timeout=TIMEOUT_S) as socket:
            said = []
            for text in ("hello", "goodbye"):
                socket.send(text)
                said.append(socket.recv(timeout=TIMEOUT_S))
        server.await_ends()
        server.stop()
    provider.stop()
    (unit,) = (each for each in server.units() if path_of(each) == "/talk")
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert all(any(json.dumps(text)[1:-1] in (call.response or "") for call in unit.calls) for text in said)
    replayed = place.replay(*command, source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


WSGI: Final = f"""{FLASK}
@app.post("/chat")
def chat():
    return {{"reply": ask(request.json["text"]), "id": str(uuid.uuid4())}}
"""


def test_p2_p4_a_wsgi_request_under_granian_is_a_run_and_replays_alone(provider: Provider, place: Workplace) -> None:
    """Flask handles concurrent requests in its workers' threads."""
    place.write("app.py", WSGI)
    command = ("-m", "granian", "--interface", "wsgi", "--blocking-threads", "4", "app:app")
    with serve(place, command=command, at="--host 127.0.0.1 --port {port}") as server:

        def ask(number: int) -> str:
            body = {"text": f"question-{number}"}
            return httpx.post(f"{server.url}/chat", json=body, timeout=TIMEOUT_S).text

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(8)))
        server.stop()
    provider.stop()
    units = server.units()
    assert sorted(response_of(unit)["body"]["text"] for unit in units) == sorted(answers)
    replayed = place.replay(*command, source=units[0].run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
