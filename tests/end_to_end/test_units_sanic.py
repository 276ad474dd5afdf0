"""Sanic's own server: each request is a separate run, and replays with the provider and the client gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
import websockets

from spanreplay.model.call import Recording
from support.agents import ENVIRONMENTS
from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.served import served_replay
from support.suites import replay_suite
from support.units import (
    ASKING,
    COMMAND,
    Server,
    await_true,
    find_own_number,
    path_of,
    response_of,
    serve,
    serve_with,
)

PYTHON: Final = ENVIRONMENTS["servers"]
APP: Final = (
    ASKING.replace("groq", "openai").replace("Groq", "OpenAI")  # the SDK of that environment
    + """
import asyncio, os, sys

from sanic import Sanic
from sanic.exceptions import NotFound
from sanic.response import json
from sanic.worker.manager import WorkerManager

app = Sanic("shop")
app.config.update(USE_UVLOOP=False, RESPONSE_TIMEOUT=float(os.environ.get("LIMIT", "600")))

@app.before_server_start
async def warm(app):
    app.ctx.warm = await ask("warm up")

@app.post("/chat")
async def chat(request):
    first = await ask(request.json["text"])
    at = {"at": time.time(), "id": uuid.uuid4().hex, "started": STARTED, "warm": app.ctx.warm, "ip": request.ip}
    return json({"first": first, "again": await ask(request.json["text"] + " again"), **at})

@app.get("/stream/<name>")
async def stream(request, name):
    response = await request.respond(content_type="text/plain")
    for number in range(3):
        await response.send(f"{number} {await ask(name)}\\n")

@app.post("/upload", stream=True)
async def upload(request):
    said = b""
    async for part in request.stream:
        said += part
    return json({"reply": await ask(said.decode())})

@app.get("/fail")
async def fail(request):
    await ask("fail")
    raise KeyError("no such order") if request.args.get("how") == "raise" else NotFound("no such order")

@app.get("/slow")
async def slow(request):
    response = await request.respond(content_type="text/plain")
    await response.send(await ask("slow"))
    await asyncio.sleep(600)

@app.get("/late")
async def late(request):
    await ask("late")
    await asyncio.sleep(600)

@app.get("/pid")
async def pid(request):
    return json({"pid": os.getpid()})

@app.websocket("/socket")
async def talk(request, ws):
    while (said := await ws.recv()) is not None:
        await ws.send(await ask(said))
        if said == "bye":
            break

def wait_for_ack(manager):
    real_wait(manager)
    open("acknowledged", "w").close()

if __name__ == "__main__":
    real_wait, WorkerManager.wait_for_ack = WorkerManager.wait_for_ack, wait_for_ack
    app.run(port=int(sys.argv[1]), workers=int(sys.argv[2]), access_log=False, motd=False)
"""
)


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a server."""
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON}: tools/agents.sh builds it")
    environ = {**provider.environ(), "SPANREPLAY_GUARD": "production", "SPANREPLAY_APP": "app:app"}
    workplace = Workplace(tmp_path, environ, PYTHON)
    workplace.write("app.py", APP)
    return workplace


def command_of(port: int = 1, workers: int = 1) -> list[str]:
    """Return the arguments of Python that start the server."""
    return ["app.py", str(port), str(workers)]


@contextmanager
def serving(place: Workplace, workers: int = 1, **environ: str) -> Iterator[Server]:
    """Start the server and stop it.

    It is ready when its manager knows that its workers are. A signal before that makes Sanic 25.12.1 turn for ever,
    also where nothing is recorded (25 of 30 tries).
    """
    port = free_port()
    ready = place.path / "acknowledged"
    ready.unlink(missing_ok=True)
    with serve_with(place, port, *command_of(port, workers), **environ) as server:
        await_true(ready.exists)
        yield server


def insist_identical(place: Workplace, *units: Recording) -> None:
    """Assert that units are complete, and that one start of their process replays all of them."""
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
    options = [word for unit in units for word in ("--run", unit.run_id)]
    suite = replay_suite(place, *command_of(), options=options)
    assert (suite.status, suite.report["counts"]) == (0, {"identical": len(units)}), suite.stderr
    assert "1 start of the application" in suite.stderr


def test_p2_p3_requests_of_many_users_to_two_workers_are_runs(provider: Provider, place: Workplace) -> None:
    """Each run has its user, its own calls and nobody else's; one of them replays alone, and shows a change."""

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        baggage = f"user.id=user-{number % 5},session.id=session-{number}"
        answered = await client.post("/chat", json={"text": f"question-{number}"}, headers={"baggage": baggage})
        assert answered.status_code == 200

    async def ask_all(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
            await asyncio.gather(*(ask(client, number) for number in range(20)))

    with serving(place, workers=2) as server:
        asyncio.run(ask_all(server.url))
        server.await_ends()
        server.stop()
    provider.stop()
    units = {find_own_number(unit): unit for unit in server.units()}
    assert sorted(units) == list(range(20))
    assert all(unit.root.user_id == f"user-{number % 5}" for number, unit in units.items())
    replayed = place.replay(*command_of(workers=2), source=units[7].run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"
    place.write("app.py", APP.replace('"again": await', '"later": await'))
    assert place.replay(*command_of(), source=units[7].run_id).causes() == [("changed_call", "http:response")]


def test_p3_p4_streams_bodies_failures_and_sessions_replay_alone(provider: Provider, place: Workplace) -> None:
    """Chunks of a stream, chunks of a body, an exception, an error status and two websocket sessions."""

    async def talk(url: str, *words: str) -> None:
        async with websockets.connect(url.replace("http", "ws") + "/socket", open_timeout=TIMEOUT_S) as connected:
            for word in words:
                await connected.send(word)
                assert f"You asked: {word}" in str(await connected.recv())

    with serving(place) as server, httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client:
        client.get("/stream/pears?a=1")
        client.post("/upload", content=iter([b"apples ", b"and figs"]))
        for path in ("/fail?how=raise", "/fail", "/nowhere"):
            client.get(path)
        for words in (("one", "two"), ("bye",)):
            asyncio.run(talk(server.url, *words))
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    sent = ["/stream/pears", "/upload", "/fail", "/fail", "/nowhere", "/socket", "/socket"]
    assert [path_of(unit) for unit in units] == sent
    assert [response_of(unit)["status"] for unit in units[:5]] == [200, 200, 500, 404, 404]
    assert [unit.root.outcome for unit in units] == ["ok", "ok", "error", "ok", "ok", "ok", "ok"]
    assert response_of(units[0])["parts"] == 3
    assert response_of(units[0])["body"]["text"].startswith("0 ")
    assert "apples and figs" in response_of(units[1])["body"]["text"]
    insist_identical(place, *units)


def test_p3_requests_that_have_ended_survive_kill_9_of_their_worker(provider: Provider, place: Workplace) -> None:
    """Only the request in progress is incomplete."""
    with serving(place) as server:
        worker = httpx.get(f"{server.url}/pid", timeout=TIMEOUT_S).json()["pid"]
        httpx.get(f"{server.url}/stream/pears", timeout=TIMEOUT_S)
        server.await_ends()
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as client:
            client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            await_true(lambda: any("llm" in [c.kind for c in unit.calls] for unit in server.units()[2:]))
            os.kill(worker, signal.SIGKILL)
            while client.recv(1000):
                pass
        server.stop()
    provider.stop()
    _, ended, dead = server.units()[:3]
    assert not dead.completeness().is_complete
    insist_identical(place, ended)


def test_p3_clients_that_leave_and_requests_that_take_too_long(provider: Provider, place: Workplace) -> None:
    """The server cancels the application; a replay does so at the same call, and compares what was sent."""
    with serving(place, LIMIT="2") as server:
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as client:
            client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(100)
        await_true(lambda: any("http:disconnect" in [c.boundary for c in u.calls] for u in server.units()))
        assert httpx.get(f"{server.url}/late", timeout=TIMEOUT_S).status_code == 503
        server.await_ends()
        server.stop()
    provider.stop()
    left, late = server.units()
    assert (left.root.outcome, late.root.outcome) == ("cancelled", "cancelled")
    assert response_of(late)["status"] == 503
    insist_identical(place, left, late)


def test_p3_p4_another_body_can_be_tried(provider: Provider, place: Workplace) -> None:
    """`--serve` gives the application the recorded request with the parts that are sent."""
    with serving(place) as server:
        httpx.post(f"{server.url}/chat", json={"text": "hello", "name": "ann"}, timeout=TIMEOUT_S)
        server.await_ends()
        server.stop()
    provider.stop()
    (unit,) = server.units()
    with served_replay(place, unit.run_id, command_of()) as (url, _, _):
        answered = httpx.post(f"{url}/chat", json={"text": "hello", "name": "bob"}, timeout=TIMEOUT_S)
        assert json.loads(answered.text)["first"].endswith("You asked: hello")


def test_p3_p4_an_asgi_server_serves_the_same_application(provider: Provider, place: Workplace) -> None:
    """Its requests are that server's units: a request, a stream and a session replay."""

    async def talk(url: str) -> None:
        async with websockets.connect(url.replace("http", "ws") + "/socket", open_timeout=TIMEOUT_S) as connected:
            await connected.send("bye")
            assert "You asked: bye" in str(await connected.recv())

    with serve(place, "--loop", "asyncio") as server:
        httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        httpx.get(f"{server.url}/stream/pears", timeout=TIMEOUT_S)
        asyncio.run(talk(server.url))
        with contextlib.suppress(ProcessLookupError):
            server.await_ends()
            server.stop()
    provider.stop()
    units = server.units()
    assert [path_of(unit) for unit in units] == ["/chat", "/stream/pears", "/socket"]
    options = ["--process", units[0].run_id]
    suite = replay_suite(place, *COMMAND, "--loop", "asyncio", options=options)
    assert (suite.status, suite.report["counts"]) == (0, {"identical": 3}), suite.stderr
