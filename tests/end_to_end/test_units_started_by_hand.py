"""Servers that a program starts (CherryPy, cheroot, Quart): each request is a separate run that replays alone."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import prepare, response_of, serve_with
from support.workers import ASKING

_ANSWER: Final = '"at": time.time(), "id": str(uuid.uuid4().hex), "started": STARTED, "warm": WARM'
CHERRYPY: Final = f"""{ASKING}
import cherrypy

STARTED, WARM = time.time(), ask("warm up")

class Root:
    @cherrypy.expose
    @cherrypy.tools.json_in()
    @cherrypy.tools.json_out()
    def chat(self):
        text = cherrypy.request.json["text"]
        if "broken" in text:
            raise KeyError(text)
        return {{"reply": ask(text), "again": ask(text + " again"), {_ANSWER}}}

def listen():
    print(ask("after the start"), flush=True)

cherrypy.config.update({{"server.socket_port": PORT, "server.thread_pool": 4, "log.screen": False}})
cherrypy.engine.subscribe("start", listen, 90)
cherrypy.quickstart(Root())
"""
CHEROOT: Final = f"""{ASKING}
import json

from cheroot.wsgi import Server

STARTED, WARM = time.time(), ask("warm up")

def app(environ, start_response):
    text = json.loads(environ["wsgi.input"].read())["text"]
    if "broken" in text:
        raise KeyError(text)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({{"reply": ask(text), "again": ask(text + " again"), {_ANSWER}}}).encode()]

print("ready", flush=True)
Server(("127.0.0.1", PORT), app).start()
"""
QUART: Final = f"""{ASKING}
from quart import Quart, request

STARTED, WARM = time.time(), ask("warm up")
app = Quart(__name__)

@app.post("/chat")
async def chat():
    text = (await request.get_json())["text"]
    if "broken" in text:
        raise KeyError(text)
    return {{"reply": await think(text), "again": await think(text + " again"), {_ANSWER}}}

print("ready", flush=True)
app.run(port=PORT)
"""
PROGRAMS: Final = {"cherrypy": CHERRYPY, "cheroot": CHEROOT, "quart": QUART}
SIGNALS: Final = {"cherrypy": signal.SIGTERM, "cheroot": signal.SIGKILL, "quart": signal.SIGTERM}
"""How each server ends, after its units have."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_p2_p4_requests_to_a_server_that_a_program_starts_are_runs(
    name: str, provider: Provider, tmp_path: Path
) -> None:
    """With concurrent requests, one of which fails, each is a whole run, and identical with the provider stopped."""
    port = free_port()
    place = prepare(tmp_path, provider, PROGRAMS[name].replace("PORT", str(port)))
    with serve_with(place, port, "app.py") as server:
        said = server.process.stdout
        assert said is not None
        while not said.readline():
            assert server.process.poll() is None

        def ask(number: int) -> httpx.Response:
            text = f"question-{number}" if number else "a broken question"
            return httpx.post(f"{server.url}/chat", json={"text": text}, timeout=TIMEOUT_S)

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(4)))
        server.await_ends()
        server.process.send_signal(SIGNALS[name])
        server.process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    assert [answer.status_code for answer in answers] == [500, 200, 200, 200]
    units = server.units()
    assert len(units) == 4
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        models = [call for call in unit.calls if call.kind == "llm"]
        assert len(models) in (0, 2)
    answered = [unit for unit in units if len(unit.calls) == 5]
    assert sorted(response_of(unit)["body"]["text"] for unit in answered) == sorted(each.text for each in answers[1:])
    (failed,) = [unit for unit in units if unit not in answered]
    for unit in (answered[0], failed):
        replayed = place.replay("app.py", source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    place.write("app.py", PROGRAMS[name].replace("PORT", str(port)).replace('"id": str(', '"id": str.upper('))
    changed = place.replay("app.py", source=answered[0].run_id)
    assert changed.causes() == [("changed_call", "http:response")], changed.stderr


def test_p2_a_cheroot_server_beside_other_work_belongs_to_its_program(provider: Provider, tmp_path: Path) -> None:
    """A program that serves in a thread and asks that server itself has no units, and is identical as a whole."""
    port = free_port()
    source = CHEROOT.replace("Server((", "import threading\nserver = Server((").replace(").start()", ")")
    source += f"""
threading.Thread(target=server.safe_start, daemon=True).start()
while not server.ready:
    time.sleep(0.01)
print(httpx.post("http://127.0.0.1:{port}/chat", json={{"text": "mine"}}, timeout=None).json()["reply"])
server.stop()
"""
    place = prepare(tmp_path, provider, source.replace("PORT", str(port)))
    place.record("app.py")
    provider.stop()
    assert "unit" not in place.recording().root.env
    replayed = place.replay("app.py")
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
