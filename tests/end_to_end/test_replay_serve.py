"""`replay --serve`: try a recorded request by hand again and again while repairing its application."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.served import served_replay
from support.units import ASKING, COMMAND, FLASK, prepare, response_of, serve

FASTAPI: Final = f"""{ASKING}
from fastapi import FastAPI, Request

app = FastAPI()

@app.post("/chat/{{about}}")
async def chat(about: str, request: Request):
    sent = await request.json()
    at = {{"about": about, "now": time.time(), "tenant": request.headers["x-tenant"]}}
    return {{"reply": await ask(sent["text"]), "to": sent.get("name", "nobody"), **at}}
"""
WSGI: Final = f"""{FLASK}
@app.post("/chat/<about>")
def chat(about):
    sent = request.json
    at = {{"about": about, "now": time.time(), "tenant": request.headers["x-tenant"]}}
    return {{"reply": ask(sent["text"]), "to": sent.get("name", "nobody"), **at}}
"""
AIOHTTP: Final = f"""{ASKING}
from aiohttp import web

async def chat(request):
    sent = await request.json()
    at = {{"about": request.match_info["about"], "now": time.time(), "tenant": request.headers["x-tenant"]}}
    return web.json_response({{"reply": await ask(sent["text"]), "to": sent.get("name", "nobody"), **at}})

def make(argv=None):
    app = web.Application()
    app.router.add_post("/chat/{{about}}", chat)
    return app
"""
PATH: Final = "/chat/an%20%C3%A9toile"
SERVERS: Final = {
    "uvicorn": (FASTAPI, COMMAND, "--port {port}"),
    "gunicorn": (WSGI, ("-m", "gunicorn", "app:app"), "--bind 127.0.0.1:{port}"),
    "aiohttp": (AIOHTTP, ("-m", "aiohttp.web", "app:make"), "--hostname 127.0.0.1 --port {port}"),
}
BODY: Final = {"text": "hello", "name": "ann"}


@contextmanager
def served(place: Workplace, run: str, command: Sequence[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A listening replay that shows how to call it: its address and its process."""
    with served_replay(place, run, command) as (url, shown, process):
        assert shown == f"  curl -X POST {url}{PATH}\n"
        yield url, process


def record(provider: Provider, path: Path, name: str) -> tuple[Workplace, str, str]:
    """One recorded request: the workplace, its run, and the body of its answer."""
    app, command, at = SERVERS[name]
    place = prepare(path, provider, app)
    with serve(place, command=command, at=at) as server:
        answer = httpx.post(f"{server.url}{PATH}", json=BODY, headers={"x-tenant": "t-1"}, timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text
        server.await_ends()
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert response_of(unit)["body"]["text"] == answer.text
    return place, unit.run_id, answer.text


@pytest.mark.parametrize("name", SERVERS)
def test_p4_a_recorded_request_is_tried_by_hand(name: str, provider: Provider, tmp_path: Path) -> None:
    """Parts that aren't sent are as recorded; another body and another header reach the application."""
    place, run, text = record(provider, tmp_path, name)
    with served(place, run, SERVERS[name][1]) as (url, process):
        again = httpx.post(f"{url}{PATH}", timeout=TIMEOUT_S)
        assert (again.status_code, again.text) == (200, text)
        assert again.headers["content-type"].startswith("application/json")
        other = httpx.post(f"{url}{PATH}", json={**BODY, "name": "bob"}, headers={"x-tenant": "t-2"}, timeout=TIMEOUT_S)
        assert other.json() == {**again.json(), "to": "bob", "tenant": "t-2"}
        assert httpx.get(f"{url}/nowhere", timeout=TIMEOUT_S).status_code == 404
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 3, said
    assert said.count("✔ identical") == 1, said
    assert re.findall(r"✘ diverged at call \d+ \((\S+)\)", said) == ["http:response"] * 2, said
    assert "cause     perhaps the request differs from the recorded one (changed: body)" in said
    assert f"POST {PATH} (changed: body)" in said


def test_p4_an_application_is_mended_while_its_replay_listens(provider: Provider, tmp_path: Path) -> None:
    """Changed code gives the next answer; a call without a recorded answer fails."""
    place, run, text = record(provider, tmp_path, "uvicorn")
    with served(place, run, COMMAND) as (url, process):
        place.write("app.py", FASTAPI.replace('"reply": ', '"answer": '))
        mended = httpx.post(f"{url}{PATH}", timeout=TIMEOUT_S)
        assert mended.json()["answer"] == json.loads(text)["reply"]
        asked = httpx.post(f"{url}{PATH}", json={**BODY, "text": "another question"}, timeout=TIMEOUT_S)
        assert asked.status_code in (500, 502)
        assert httpx.get(url, headers={"host": "evil.example"}, timeout=TIMEOUT_S).status_code == 403
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 3, said
    assert said.count("✘ diverged") == 2, said


def test_p4_only_requests_are_served(provider: Provider, tmp_path: Path) -> None:
    """A script's run has no request: one line says so, and no server starts."""
    place = prepare(tmp_path, provider, "")
    place.write("agent.py", f"import asyncio\n{ASKING}\nprint(asyncio.run(ask('hello')))\n")
    place.record("agent.py")
    done = place.run("replay", place.recording().run_id, "--serve", "0", "--", str(place.python), "agent.py")
    assert done.returncode == 1
    assert "--serve needs the run of an HTTP request" in done.stderr
