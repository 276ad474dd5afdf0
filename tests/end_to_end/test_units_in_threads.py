"""A library that runs uvicorn in its own thread serves units just as a server program does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from support.installing import install
from support.ports import free_port
from support.provider import Provider
from support.replaying import LONG_S, Workplace
from support.units import Server, await_true, path_of, response_of, serve

PORCH: Final = """
import threading, time, uuid
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

def serve(answer, port):
    async def ask(request):
        text = await answer(request.path_params["text"])
        return JSONResponse({"event": uuid.uuid4().hex, "at": time.time(), "text": text})

    server = uvicorn.Server(uvicorn.Config(Starlette(routes=[Route("/ask/{text}", ask)]), port=port, loop="asyncio"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.001)
    print("serving", flush=True)
    return thread
"""
APP: Final = """
import sys, threading, time
import porch
from groq import AsyncGroq, Groq

client, plain, is_asked, is_noted = AsyncGroq(), Groq(), threading.Event(), threading.Event()

async def answer(text):
    is_asked.set()
    is_noted.wait()
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

thread = porch.serve(answer, int(sys.argv[2]))
plain.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "warm up"}])
time.sleep(0.5)
open("warm", "w").close()
is_asked.wait()
open("noted", "w").close()
is_noted.set()
while thread.is_alive():
    time.sleep(0.05)
"""
COMMAND: Final = ("app.py",)


@pytest.fixture(params=["porch", "gradio"])
def asked(request: pytest.FixtureRequest, provider: Provider, tmp_path: Path) -> tuple[Workplace, list[Recording]]:
    """A program whose library has served two requests, some time after its start; the provider is gone."""
    (tmp_path / "work").mkdir()
    site = tmp_path / "site-packages"
    install(site, request.param, {"porch/__init__.py": PORCH}, requires=["uvicorn"])
    place = Workplace(tmp_path / "work", {**provider.environ(), "PYTHONPATH": str(site)})
    place.write("app.py", APP)
    with serve(place, command=COMMAND) as server:
        await_true((place.path / "warm").exists)
        _ask(server, "one")
        _ask(server, "two")
        server.await_ends()
        server.stop()
    provider.stop()
    (place.path / "noted").unlink()
    units = {path_of(each): each for each in place.recordings() if "unit" in each.root.env}
    return place, [units["/ask/one"], units["/ask/two"]]


def _ask(server: Server, text: str) -> None:
    assert httpx.get(f"{server.url}/ask/{text}", timeout=LONG_S).status_code == 200


def test_p2_p4_what_a_library_draws_for_a_request_is_the_requests(
    asked: tuple[Workplace, list[Recording]],
) -> None:
    """Ids and times of a response are as recorded, even though a library serves it in its own thread; a file that the
    program writes meanwhile isn't part of the unit.
    """
    place, units = asked
    for unit in units:
        assert "event" in response_of(unit)["body"]["text"]
        replayed = place.replay(*COMMAND, "--port", "1", source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_p2_p4_a_server_that_waits_makes_no_order(asked: tuple[Workplace, list[Recording]]) -> None:
    """The server's polling for shutdown isn't recorded as an order, so a replay doesn't wait for it."""
    place, _ = asked
    (process,) = [each for each in place.recordings() if "unit" not in each.root.env]
    (start,) = [call for call in process.calls if call.name == "start"]
    assert not any("Server.serve" in name or "_set_result" in name for name in start.meta["order"]["timers"])


ASKS_ITSELF: Final = """
import sys, threading, time
import httpx, uvicorn
from fastapi import FastAPI
from groq import Groq

app, client = FastAPI(), Groq()

def ask(text):
    made = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

@app.get("/ask/{text}")
def answer(text: str):
    return {"said": ask(text), "at": time.time()}

server = uvicorn.Server(uvicorn.Config(app, port=int(sys.argv[1])))
thread = threading.Thread(target=server.run)
thread.start()
while not server.started:
    time.sleep(0.001)
for text in ("one", "two"):
    print(httpx.get(f"http://127.0.0.1:{sys.argv[1]}/ask/{text}", timeout=600).json())
ask("three")
server.should_exit = True
thread.join()
"""


def test_p2_p4_a_program_that_asks_its_own_server(provider: Provider, tmp_path: Path) -> None:
    """Each request to itself is a unit that replays alone; the rest of the program then waits for it."""
    place = Workplace(tmp_path, provider.environ())
    place.write("app.py", ASKS_ITSELF)
    place.record("app.py", str(free_port()))
    provider.stop()
    units = {path_of(each): each for each in place.recordings() if "unit" in each.root.env}
    for path in ("/ask/one", "/ask/two"):
        replayed = place.replay("app.py", "1", source=units[path].run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    place.write("app.py", ASKS_ITSELF.replace('"content": text', '"content": text + "!"'))
    replayed = place.replay("app.py", "1", source=units["/ask/two"].run_id)
    assert replayed.causes()[0] == ("changed_call", "llm:openai.chat.completions"), replayed.stderr
