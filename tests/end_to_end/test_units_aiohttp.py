"""aiohttp's own server: each request is a separate run, and replays by itself with the provider stopped."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.suites import insist_identical
from support.units import await_true, path_of, prepare, response_of, serve

APP: Final = """
import asyncio, hashlib, os, sys, time, uuid

from aiohttp import web
from groq import AsyncGroq

STARTED = time.time()
client = AsyncGroq()
routes = web.RouteTableDef()
WARM = web.AppKey("warm", str)

async def ask(text):
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content

async def warm_up(app):
    app[WARM] = await ask("warm up")
    yield
    await ask("never in a replay")

@routes.post("/chat")
async def chat(request):
    text = (await request.json())["text"]
    first, second = await asyncio.gather(ask(text), ask(text + " again"))
    at = {"started": STARTED, "now": time.time(), "id": str(uuid.uuid4()), "warm": request.app[WARM]}
    return web.json_response({"reply": first, "second": second, "peer": request.remote, **at})

@routes.get("/stream/{text}")
async def stream(request):
    response = web.StreamResponse(headers={"x-tag": request.headers["Baggage"]})
    await response.prepare(request)
    for number in range(3):
        await response.write((await ask(f"{request.match_info['text']} part {number}")).encode())
    return response

@routes.post("/upload")
async def upload(request):
    digest = hashlib.sha256()
    async for part in request.content.iter_any():
        digest.update(part)
    return web.Response(text=digest.hexdigest(), headers={"x-tag": await ask("uploaded")})

@routes.post("/form")
async def form(request):
    found = await request.post()
    return web.Response(text=await ask(found["text"]) + " " + str(len(found["file"].file.read())))

@routes.get("/raises/{text}")
async def raises(request):
    raise KeyError(await ask(request.match_info["text"]))

@routes.get("/redirect/{text}")
async def redirect(request):
    raise web.HTTPFound("/elsewhere", headers={"x-tag": await ask(request.match_info["text"])})

@routes.get("/file/{text}")
async def file(request):
    return web.FileResponse("page.txt", headers={"x-tag": await ask(request.match_info["text"])})

@routes.get("/pid")
async def pid(request):
    return web.Response(text=str(os.getpid()))

@routes.get("/hang")
async def hang(request):
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"begun")
    await ask("hello")
    await asyncio.Event().wait()

def make(argv=None):
    app = web.Application(client_max_size=400_000)
    app.cleanup_ctx.append(warm_up)
    app.add_routes(routes)
    return app

async def make_later():
    return make()

async def serve():
    runner = web.AppRunner(make(), handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[-1])).start()
    await asyncio.Event().wait()
"""
RUN_APP: Final = (
    "import sys\nfrom app import make, web\nweb.run_app(make(), host='127.0.0.1', port=int(sys.argv[-1]))\n"
)
RUNNER: Final = "import asyncio\nfrom app import serve\nasyncio.run(serve())\n"


@dataclass(frozen=True)
class Kind:
    """A server: its command, the arguments with its port, and the name of its runs."""

    command: tuple[str, ...]
    at: str
    app: str


_GUNICORN: Final = ("-m", "gunicorn", "app:make_later", "-k", "aiohttp.GunicornWebWorker", "--workers", "2")
KINDS: Final = {
    "run_app": Kind(("main.py",), "{port}", "main"),
    "module": Kind(("-m", "aiohttp.web", "app:make", "-H", "127.0.0.1"), "-P {port}", "app:make"),
    "runner": Kind(("runner.py",), "{port}", "runner"),
    "gunicorn": Kind(_GUNICORN, "--bind 127.0.0.1:{port}", "app:make_later"),
}
RUN: Final = KINDS["run_app"]
PATHS: Final = ("/chat", "/stream/", "/upload", "/form", "/raises/", "/redirect/", "/file/", "/nothing/")
STATUS: Final = {"/raises/": 500, "/redirect/": 302, "/nothing/": 404}
COUNT: Final = 24


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    workplace = prepare(tmp_path, provider, APP)
    workplace.write("main.py", RUN_APP)
    workplace.write("runner.py", RUNNER)
    workplace.write("page.txt", "a page " * 20_000)
    return workplace


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 10_000):
        yield body[at : at + 10_000]


async def _ask(client: httpx.AsyncClient, number: int) -> str:
    path, text = PATHS[number % len(PATHS)], f"question-{number}"
    headers = {"baggage": f"user.id=user-{number % 5},session.id=session-{number}"}
    if path == "/chat":
        answer = await client.post(path, json={"text": text}, headers=headers)
    elif path == "/upload":
        answer = await client.post(path, content=_cut(bytes(range(256)) * 500), headers=headers)
    elif path == "/form":
        answer = await client.post(path, data={"text": text}, files={"file": b"x" * 300_000}, headers=headers)
    else:
        answer = await client.get(path + text, headers=headers)
    assert answer.status_code == STATUS.get(path, 200), answer.text
    return answer.text


async def _ask_all(url: str, count: int) -> list[str]:
    async with httpx.AsyncClient(timeout=TIMEOUT_S, base_url=url) as client:
        return await asyncio.gather(*[_ask(client, number) for number in range(count)])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(2)
def test_p2_p4_p6_requests_under_aiohttp_are_runs_that_replay_alone(
    name: str, provider: Provider, place: Workplace
) -> None:
    """With many users at once, no run holds another request's values; one of each shape replays; a change is named."""
    kind = KINDS[name]
    with serve(place, command=kind.command, at=kind.at) as server:
        answers = asyncio.run(_ask_all(server.url, COUNT))
        await_true(lambda: [unit.root.outcome for unit in server.units()].count("open") == 0)
        server.stop()
    provider.stop()
    units = server.units()
    assert len(units) == COUNT
    of_number = {int(unit.root.session_id.removeprefix("session-")): unit for unit in units}
    assert set(of_number) == set(range(COUNT))
    for number, unit in of_number.items():
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert (unit.root.user_id, unit.root.app) == (f"user-{number % 5}", kind.app)
        assert path_of(unit).startswith(PATHS[number % len(PATHS)])
        texts = [text for call in unit.calls for text in (call.request, call.response)]
        assert {each for text in texts for each in re.findall(r"question-\d+", text)} <= {f"question-{number}"}
        assert response_of(unit)["body"]["text"] == answers[number]
        assert response_of(unit)["status"] == STATUS.get(PATHS[number % len(PATHS)], 200)
    words = (*kind.command, *kind.at.format(port=1).split())
    replayed = place.replay(*words, source=of_number[3].run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"
    sample = range(len(PATHS)) if name == "run_app" else (0,)
    insist_identical(place, *words, units=[of_number[number] for number in sample])
    place.write("app.py", APP.replace('"reply": first', '"reply": first.upper()'))
    changed = place.replay(*words, source=of_number[0].run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes() == [("changed_call", "http:response")]


def test_p5_ended_units_under_aiohttp_are_whole_when_the_process_is_killed(
    provider: Provider, place: Workplace
) -> None:
    """After kill -9, the ended unit replays; the one in flight says that it did not end."""
    with serve(place, command=RUN.command, at=RUN.at) as server:
        worker = int(httpx.get(f"{server.url}/pid", timeout=TIMEOUT_S).text)
        httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.await_ends()
        with httpx.stream("GET", f"{server.url}/hang", timeout=TIMEOUT_S) as hanging:
            assert next(hanging.iter_text()) == "begun"
            os.kill(worker, signal.SIGKILL)
            server.process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    found = {path_of(unit): unit for unit in server.units()}
    assert found["/chat"].completeness().is_complete
    reasons = found["/hang"].completeness().reasons
    assert reasons == ("the run did not end: its process was killed or is still running",)
    replayed = place.replay(*RUN.command, "1", source=found["/chat"].run_id)
    assert replayed.status == 0, replayed.stderr
    assert place.replay(*RUN.command, "1", source=found["/hang"].run_id).status == 4


@pytest.mark.parametrize("name", ["run_app", "runner"])
def test_p5_a_client_of_aiohttp_that_went_away_ends_its_unit(name: str, provider: Provider, place: Workplace) -> None:
    """The unit is complete with outcome `cancelled`, and a replay disconnects at the same moment: the server tells the
    application at its next write, or cancels it if configured to.
    """
    kind, path = KINDS[name], {"run_app": "/endless", "runner": "/hang"}[name]
    place.write("app.py", APP.replace("def make(", ENDLESS + "def make("))
    with serve(place, command=kind.command, at=kind.at) as server:
        with httpx.stream("GET", f"{server.url}{path}", timeout=TIMEOUT_S) as hanging:
            assert next(hanging.iter_text()).startswith("begun")
        await_true(lambda: [unit.root.outcome for unit in server.units()] == ["cancelled"])
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert [call.boundary for call in unit.calls if call.boundary == "http:disconnect"] == ["http:disconnect"]
    replayed = place.replay(*kind.command, "1", source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


ENDLESS: Final = """
@routes.get("/endless")
async def endless(request):
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"begun")
    while True:
        await response.write((await ask("hello")).encode())

"""


async def _chat(url: str) -> list[str]:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/talk") as talk:
        found = []
        for text in ("hello", "again"):
            await talk.send_str(text)
            found.append(await talk.receive_str())
        await talk.ping()
        await talk.send_bytes(bytes([0, 255]))
        found.append(repr(await talk.receive_bytes()))
        await talk.send_str("close")
        await talk.receive()
        assert talk.close_code == 4000
        return found


def test_p2_p4_a_websocket_session_under_aiohttp_is_a_run_and_replays_alone(
    provider: Provider, place: Workplace
) -> None:
    """Each message is a call; a closed session and a vanished client replay; a change is named."""
    place.write("app.py", APP.replace("def make(", TALK + "def make("))
    with serve(place, command=RUN.command, at=RUN.at) as server:
        said = asyncio.run(_chat(server.url))
        with httpx.stream("GET", f"{server.url}/talk", headers=UPGRADE, timeout=TIMEOUT_S) as vanishing:
            assert vanishing.status_code == 101
        await_true(lambda: [unit.root.outcome for unit in server.units()] == ["ok", "ok"])
        server.stop()
    provider.stop()
    units = server.units()
    sent = [call for call in units[0].calls if call.boundary == "http:websocket.send"]
    texts = [json.loads(call.request)["arguments"].get("text") for call in sent]
    assert [text for text in texts if text] == said[:2]
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*RUN.command, "1", source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
    place.write("app.py", APP.replace("def make(", TALK.replace("await ask(m.data)", "'no'") + "def make("))
    changed = place.replay(*RUN.command, "1", source=units[0].run_id)
    assert changed.status == 3, changed.stderr


TALK: Final = """
@routes.get("/talk")
async def talk(request):
    socket = web.WebSocketResponse(heartbeat=30)
    await socket.prepare(request)
    async for m in socket:
        if m.data == "close":
            await socket.close(code=4000, message=b"enough")
        elif m.type == web.WSMsgType.TEXT:
            await socket.send_str(await ask(m.data))
        else:
            await socket.send_bytes(m.data[::-1])
    return socket

"""
UPGRADE: Final = {
    "upgrade": "websocket",
    "connection": "upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def test_p5_a_server_of_aiohttp_that_stops_cancels_its_units(provider: Provider, place: Workplace) -> None:
    """On SIGTERM the server cancels running requests after its timeout; the unit says so, and replays."""
    place.write("main.py", RUN_APP.replace("web.run_app(", "web.run_app(shutdown_timeout=0.1, app="))
    with (
        serve(place, command=RUN.command, at=RUN.at) as server,
        httpx.stream("GET", f"{server.url}/hang", timeout=TIMEOUT_S) as hanging,
    ):
        assert next(hanging.iter_text()) == "begun"
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert unit.root.outcome == "cancelled"
    replayed = place.replay(*RUN.command, "1", source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


SABOTAGE: Final = {
    "factory": ("factory", "open_unit"),
    "site": ("servers._aiohttp", "_note_service"),
    "request": ("aiohttp_web.exchange", "describe_request"),
    "response": ("aiohttp_web.exchange", "encode_headers"),
    "end": ("unit_run", "UnitRun.end"),
}


@pytest.mark.parametrize("part", SABOTAGE)
def test_p2_an_error_of_ours_lets_a_request_of_aiohttp_through(part: str, place: Workplace) -> None:
    """Whatever part of the recording fails, the client gets the application's response."""
    module, name = SABOTAGE[part]
    broken = f"import spanreplay.units.{module} as ours\ndef broken(*args, **kwargs): raise ValueError\n"
    place.write("app.py", f"{APP}\n{broken}ours.{name} = broken\n")
    with serve(place, command=RUN.command, at=RUN.at) as server:
        answer = httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.stop()
    assert answer.status_code == 200
    assert answer.json()["reply"].endswith("You asked: hello")


ROOM: Final = """
ROOM = []

@routes.get("/room")
async def room(request):
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    ROOM.append(socket)
    async for m in socket:
        for each in ROOM:
            await each.send_str(m.data)
    ROOM.remove(socket)
    return socket

"""


async def _meet(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/room") as first:
        await first.send_str("alone")
        assert await first.receive_str() == "alone"
        async with session.ws_connect(f"{url}/room") as second:
            await second.send_str("together")
            assert await first.receive_str() == await second.receive_str() == "together"


def test_p2_a_session_that_another_one_writes_to_says_so(provider: Provider, place: Workplace) -> None:
    """A message sent to the client by another request isn't the session's call: the run is incomplete, not diverged."""
    place.write("app.py", APP.replace("def make(", ROOM + "def make("))
    with serve(place, command=RUN.command, at=RUN.at) as server:
        asyncio.run(_meet(server.url))
        await_true(lambda: [unit.root.outcome for unit in server.units()] == ["ok", "ok"])
        server.stop()
    provider.stop()
    first, second = server.units()
    assert second.completeness().is_complete
    assert first.completeness().reasons == (
        "another request, or the process itself, wrote to this one's client: a replay does not do that",
    )
    replayed = place.replay(*RUN.command, "1", source=first.run_id)
    assert (replayed.status, replayed.verdict["divergences"]) == (4, []), replayed.stderr


SECRET: Final = "sk-proj-" + "Zq3vT8mK2wLx9RbN4cYd7HsJ" * 2


def test_p2_units_of_aiohttp_are_redacted(provider: Provider, place: Workplace) -> None:
    """A credential in a header of any case, one in a chunked body, and one in a compressed response are in no file;
    the unit replays.
    """

    def cut() -> Iterator[bytes]:
        for at in range(0, len(SECRET), 10):
            yield SECRET[at : at + 10].encode()

    place.write("app.py", APP.replace("def make(", LOGIN + "def make("))
    with serve(place, command=RUN.command, at=RUN.at) as server:
        headers = {"AuthoriZation": f"Bearer {SECRET}", "cookie": f"session={SECRET}"}
        answer = httpx.post(f"{server.url}/login", headers=headers, content=cut(), timeout=TIMEOUT_S)
        assert answer.text == f"Bearer {SECRET} {SECRET}"
        assert answer.headers["content-encoding"]
        await_true(lambda: [unit.root.outcome for unit in server.units()] == ["ok"])
        server.stop()
    provider.stop()
    kept = [file for file in (place.path / ".spanreplay").rglob("*") if file.is_file()]
    assert kept
    assert not [file for file in kept if SECRET.encode() in file.read_bytes()]
    (unit,) = server.units()
    assert response_of(unit)["body"]["text"].startswith("Bearer ")
    replayed = place.replay(*RUN.command, "1", source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


LOGIN: Final = """
@routes.post("/login")
async def login(request):
    response = web.Response(text=request.headers["authorization"] + " " + (await request.text()))
    response.enable_compression()
    return response

"""


def test_p2_a_server_of_aiohttp_that_its_process_asks_is_a_part_of_its_run(
    provider: Provider, place: Workplace
) -> None:
    """A script's requests to its own server belong to the script: one run, which replays."""
    agent = place.write("agent.py", APP + ASKS_ITSELF)
    recorded = place.record(agent)
    provider.stop()
    assert "unit" not in place.recording().root.env
    replayed = place.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


ASKS_ITSELF: Final = """
import aiohttp

async def main():
    runner = web.AppRunner(make())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        for number in range(2):
            async with session.post(f"http://127.0.0.1:{port}/chat", json={"text": f"question {number}"}) as answer:
                print((await answer.json())["reply"])
    await runner.cleanup()

asyncio.run(main())
"""
