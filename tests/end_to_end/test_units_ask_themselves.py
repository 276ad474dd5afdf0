"""A service whose request sends another one to the service itself: two runs, each of which replays alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import ASKING, COMMAND, FLASK, path_of, prepare, serve

FASTAPI: Final = f"""{ASKING}
import httpx
from fastapi import FastAPI, Request

app = FastAPI()

@app.get("/inner/{{text}}")
async def inner(text: str):
    return {{"said": await ask(text)}}

@app.get("/outer/{{text}}")
async def outer(text: str, request: Request):
    async with httpx.AsyncClient(timeout=600) as asking:
        return (await asking.get(f"{{request.base_url}}inner/{{text}}")).json()
"""
WAITRESS: Final = f"""{FLASK}
import httpx

@app.get("/inner/<text>")
def inner(text):
    return {{"said": ask(text)}}

@app.get("/outer/<text>")
def outer(text):
    return httpx.get(f"{{request.host_url}}inner/{{text}}", timeout=600).json()
"""
AIOHTTP: Final = f"""{ASKING}
import sys
import httpx
from aiohttp import web

async def inner(request):
    return web.json_response({{"said": await ask(request.match_info["text"])}})

async def outer(request):
    async with httpx.AsyncClient(timeout=600) as asking:
        found = await asking.get(f"http://127.0.0.1:{{request.url.port}}/inner/{{request.match_info['text']}}")
    return web.json_response(found.json())

app = web.Application()
app.add_routes([web.get("/inner/{{text}}", inner), web.get("/outer/{{text}}", outer)])
if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]))
"""
SERVERS: Final = {
    "uvicorn on asyncio": (FASTAPI, (*COMMAND, "--loop", "asyncio"), "--port {port}"),
    "uvicorn on uvloop": (FASTAPI, (*COMMAND, "--loop", "uvloop"), "--port {port}"),
    "waitress": (WAITRESS, ("-m", "waitress"), "--listen 127.0.0.1:{port} app:app"),
    "aiohttp": (AIOHTTP, ("app.py",), "--port {port}"),
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.sampled(2)
def test_p2_p4_a_request_to_the_service_itself_is_a_run_and_a_call(
    name: str, provider: Provider, tmp_path: Path
) -> None:
    """In the calling run the answer comes from outside; the work for it is in the other run."""
    program, command, at = SERVERS[name]
    place = prepare(tmp_path, provider, program)
    with serve(place, command=command, at=at) as server:
        assert "You asked: hi" in httpx.get(f"{server.url}/outer/hi", timeout=TIMEOUT_S).text
        server.await_ends()
        server.stop()
    provider.stop()
    calls = {path_of(unit): [call.boundary.split(" ")[0] for call in unit.calls] for unit in server.units()}
    assert calls == {
        "/outer/hi": ["http:request", "http:GET", "http:response"],
        "/inner/hi": ["http:request", "llm:openai.chat.completions", "http:response"],
    }
    for unit in server.units():
        words = (*command, *at.format(port=server.port).split())
        replayed = place.replay(*words, source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
