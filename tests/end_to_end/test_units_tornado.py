"""Tornado's own server: each request is a separate run, and replays with the provider and the client gone."""

from __future__ import annotations

import asyncio
import contextlib
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

from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.suites import replay_suite
from support.units import ASKING, Server, await_true, find_own_number, path_of, prepare, response_of, serve_with

APP: Final = (
    ASKING
    + """
import asyncio, json, sys

import tornado.httpserver
import tornado.ioloop
import tornado.netutil
import tornado.process
import tornado.web
import tornado.websocket

known = {}

class Chat(tornado.web.RequestHandler):
    async def post(self):
        given = json.loads(self.request.body)
        first = await ask(given["text"])
        self.write({"first": first, "again": await ask(given["text"] + " again"), "at": time.time(),
                    "id": uuid.uuid4().hex, "started": STARTED, "ip": self.request.remote_ip})

class Stream(tornado.web.RequestHandler):
    async def get(self, name):
        for number in range(3):
            self.write(f"{number} {await ask(name)}\\\\n")
            await self.flush()

    def on_finish(self):
        known["streams"] = known.get("streams", 0) + 1

class Fail(tornado.web.RequestHandler):
    def get(self):
        if self.get_argument("how", "") == "raise":
            raise KeyError("no such order")
        self.send_error(404)

class Known(tornado.web.RequestHandler):
    async def get(self):
        if "answer" not in known:
            known["answer"] = await ask("known")
        self.write(known["answer"])

class Slow(tornado.web.RequestHandler):
    async def get(self):
        self.write("first ")
        await self.flush()
        await ask("slow")
        await asyncio.Event().wait()

class Login(tornado.web.RequestHandler):
    def get(self):
        self.set_signed_cookie("user", "ann")
        self.write(self.xsrf_token)

class Socket(tornado.websocket.WebSocketHandler):
    async def on_message(self, message):
        await self.write_message(await ask(message))
        if message == "bye":
            self.close(1000, "bye")
        elif message == "fail":
            raise KeyError(message)

app = tornado.web.Application(
    [("/chat", Chat), ("/stream/(.*)", Stream), ("/fail", Fail), ("/known", Known), ("/slow", Slow),
     ("/login", Login), ("/socket", Socket)],
    compress_response=True, cookie_secret="not-a-secret-of-anyone", static_path=".",
)

async def work(sockets):
    tornado.httpserver.HTTPServer(app).add_sockets(sockets)
    await asyncio.Event().wait()

async def main():
    await ask("warm up")
    app.listen(int(sys.argv[1]), "127.0.0.1", xheaders=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    if sys.argv[2:] == ["loop"]:
        app.listen(int(sys.argv[1]), "127.0.0.1")
        tornado.ioloop.IOLoop.current().start()
    if sys.argv[2:] == ["start"]:
        server = tornado.httpserver.HTTPServer(app)
        server.bind(int(sys.argv[1]), "127.0.0.1")
        server.start(2)
        tornado.ioloop.IOLoop.current().start()
    if sys.argv[2:] == ["fork_processes"]:
        sockets = tornado.netutil.bind_sockets(int(sys.argv[1]), "127.0.0.1")
        tornado.process.fork_processes(2)
        asyncio.run(work(sockets))
    asyncio.run(main())
"""
)
COMMAND: Final = ("app.py", "1")


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a server."""
    workplace = prepare(tmp_path, provider, APP)
    workplace.environ["SPANREPLAY_APP"] = "app:app"
    return workplace


@contextmanager
def serving(place: Workplace, *options: str) -> Iterator[Server]:
    """Start the server and stop it."""
    port = free_port()
    with serve_with(place, port, "app.py", str(port), *options) as server:
        yield server


def insist_identical(place: Workplace, run_id: str, *options: str) -> None:
    """Assert that a unit replays alone."""
    replayed = place.replay(*COMMAND, *options, source=run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"


def test_p2_p3_each_of_40_concurrent_requests_of_20_users_is_a_run(provider: Provider, place: Workplace) -> None:
    """Each run has its user, its own calls and nobody else's; one of them replays alone."""

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        baggage = f"user.id=user-{number % 20},session.id=session-{number}"
        answered = await client.post("/chat", json={"text": f"question-{number}"}, headers={"baggage": baggage})
        assert answered.status_code == 200

    async def ask_all(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
            await asyncio.gather(*(ask(client, number) for number in range(40)))

    with serving(place) as server:
        asyncio.run(ask_all(server.url))
        server.await_ends()
        server.stop()
    provider.stop()
    units = {find_own_number(unit): unit for unit in server.units()}
    assert sorted(units) == list(range(40))
    assert all(unit.root.user_id == f"user-{number % 20}" for number, unit in units.items())
    insist_identical(place, units[7].run_id)
    place.write("app.py", APP.replace('"again": await', '"later": await'))
    assert place.replay(*COMMAND, source=units[7].run_id).causes() == [("changed_call", "http:response")]


@pytest.mark.parametrize("how", [(), ("loop",)], ids=["asyncio", "IOLoop"])
@pytest.mark.sampled(1)
def test_p3_p4_streams_and_failures_replay_alone(how: tuple[str, ...], provider: Provider, place: Workplace) -> None:
    """Chunks of a stream, compressed responses, an exception and an error status; one start serves a whole suite."""
    with serving(place, *how) as server:
        for path in ("/stream/pears?a=1", "/fail?how=raise", "/fail", "/known", "/known"):
            httpx.get(server.url + path, timeout=TIMEOUT_S, headers={"X-Forwarded-For": "10.1.2.3"})
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    assert [path_of(unit) for unit in units] == ["/stream/pears", "/fail", "/fail", "/known", "/known"]
    assert [response_of(unit)["status"] for unit in units] == [200, 500, 404, 200, 200]
    assert [unit.root.outcome for unit in units] == ["ok", "error", "ok", "ok", "ok"]
    assert response_of(units[0])["parts"] >= 3
    assert response_of(units[0])["body"]["text"].startswith("0 ")
    for unit in units[:2]:
        assert unit.completeness().is_complete, unit.completeness().reasons
        insist_identical(place, unit.run_id, *how)
    assert place.replay(*COMMAND, *how, source=units[4].run_id, options=("--warm", "0")).status == 3
    options = ["--process", units[0].run_id, "--warm", "all"]
    suite = replay_suite(place, *COMMAND, *how, options=options)
    assert (suite.status, suite.report["counts"]) == (0, {"identical": 5}), suite.stderr


def test_p3_requests_that_have_ended_survive_kill_9(provider: Provider, place: Workplace) -> None:
    """Only the request in progress is incomplete."""
    with serving(place) as server:
        httpx.get(f"{server.url}/known", timeout=TIMEOUT_S)
        server.await_ends()
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as client:
            client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            await_true(lambda: any("llm" in [c.kind for c in unit.calls] for unit in server.units()[1:]))
            server.process.send_signal(signal.SIGKILL)
            server.process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    ended, dead = server.units()
    assert not dead.completeness().is_complete
    assert ended.completeness().is_complete, ended.completeness().reasons
    insist_identical(place, ended.run_id)


def test_p3_a_client_that_goes_away_is_recorded(provider: Provider, place: Workplace) -> None:
    """The run of its request has the part that was sent, and the disconnection."""
    with serving(place) as server:
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as client:
            client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(100)
            await_true(lambda: any("llm" in [c.kind for c in unit.calls] for unit in server.units()))
        await_true(lambda: any("http:disconnect" in [c.boundary for c in u.calls] for u in server.units()))
        with contextlib.suppress(ProcessLookupError):
            server.stop()
    (unit,) = server.units()
    assert unit.root.outcome == "cancelled"


def test_p3_signed_cookies_tokens_and_static_files_replay_alone(provider: Provider, place: Workplace) -> None:
    """What Tornado itself draws and sends is as recorded."""
    place.write("page.html", "<p>hello</p>")
    with serving(place) as server:
        for path in ("/login", "/static/page.html"):
            assert httpx.get(server.url + path, timeout=TIMEOUT_S).status_code == 200
        server.await_ends()
        server.stop()
    provider.stop()
    for unit in server.units():
        assert unit.completeness().is_complete, unit.completeness().reasons
        insist_identical(place, unit.run_id)


def test_p3_p4_websocket_sessions_replay_alone(provider: Provider, place: Workplace) -> None:
    """One ended by its client, one by the handler, one by an exception; the session shows a change."""

    async def talk(url: str, *words: str) -> list[str]:
        async with websockets.connect(url.replace("http", "ws") + "/socket", open_timeout=TIMEOUT_S) as connected:
            for word in words:
                await connected.send(word)
            return [str(said) async for said in connected] if words[-1] != "two" else [str(await connected.recv())]

    with serving(place) as server:
        assert "You asked: one" in asyncio.run(talk(server.url, "one", "two"))[0]
        assert len(asyncio.run(talk(server.url, "bye"))) == 1
        with contextlib.suppress(websockets.ConnectionClosedError):
            asyncio.run(talk(server.url, "one", "fail"))
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    assert [unit.root.outcome for unit in units] == ["ok", "ok", "error"]
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
    suite = replay_suite(place, *COMMAND, options=["--process", units[0].run_id])
    assert (suite.status, suite.report["counts"]) == (0, {"identical": 3}), suite.stderr
    place.write("app.py", APP.replace("self.close(1000", "self.close(1001"))
    assert place.replay(*COMMAND, source=units[1].run_id).causes() == [("changed_call", "http:websocket.send")]


@pytest.mark.parametrize("how", ["start", "fork_processes"])
def test_p2_p3_requests_to_several_processes_replay_alone(how: str, provider: Provider, place: Workplace) -> None:
    """The processes share what their server did before it forked them; no port is opened in a replay."""
    with serving(place, how) as server:
        for number in range(4):
            httpx.post(f"{server.url}/chat", json={"text": f"question-{number}"}, timeout=TIMEOUT_S)
        server.await_ends()
        parent = server.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
        server.process.kill()  # first: it starts children anew
        for child in children:
            os.kill(int(child), signal.SIGTERM)
        server.process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    units = server.units()
    assert len(units) == 4
    assert all("worker" in unit.root.env["unit"] for unit in units)
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
    insist_identical(place, units[2].run_id, how)
