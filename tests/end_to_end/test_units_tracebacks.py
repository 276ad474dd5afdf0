"""Tracebacks that a server prints: an exception of the application shows the frames that it has without a recorder."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import ASKING, COMMAND, prepare, serve

ASGI = """
from fastapi import FastAPI

app = FastAPI()

@app.middleware("http")
async def passes(request, call_next):
    return await call_next(request)

@app.get("/")
async def fail():
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("broken") from error
"""
WSGI = """
def app(environ, start_response):
    raise RuntimeError("broken")
"""
PARTS = """
def app(environ, start_response):
    start_response("200 OK", [("content-type", "text/plain")])
    yield b"begins"
    raise RuntimeError("broken")
"""


BEHIND_A_MIDDLEWARE = f"""{ASKING}
from fastapi import FastAPI

app = FastAPI()

@app.middleware("http")
async def passes(request, call_next):
    return await call_next(request)

@app.get("/ask")
async def asked():
    return await ask("apples")

@app.get("/about")
async def about():
    return {{"started": STARTED}}
"""


def test_p4_a_call_without_an_answer_behind_a_middleware_is_told_in_the_verdict(
    tmp_path: Path, provider: Provider
) -> None:
    """A task group wraps it; the replay goes on to the next unit, and no traceback is printed."""
    workplace = prepare(tmp_path, provider, BEHIND_A_MIDDLEWARE)
    with serve(workplace) as server:
        for path in ("/ask", "/about"):
            httpx.get(server.url + path, timeout=TIMEOUT_S).raise_for_status()
        server.stop()
    first, second = server.units()
    workplace.write("app.py", BEHIND_A_MIDDLEWARE.replace("apples", "pears"))
    changed = workplace.replay(*COMMAND, source=first.run_id)
    assert changed.causes() == [("changed_call", "llm:openai.chat.completions")]
    assert "Traceback" not in changed.stderr
    behind = workplace.replay(*COMMAND, source=second.run_id, options=["--warm", "all"])
    assert behind.status == 0, behind.stderr
    assert [each["why"] for each in behind.verdict["warm_up"]["units"]] == [
        "changed_call at llm:openai.chat.completions"
    ]


@pytest.mark.parametrize("app", [ASGI, WSGI, PARTS], ids=["asgi", "wsgi", "parts"])
def test_p3_a_traceback_of_a_request_has_no_frame_of_the_recorder(tmp_path: Path, provider: Provider, app: str) -> None:
    """The server logs what the application raised, without a line that is the recorder's."""
    workplace = prepare(tmp_path, provider, app)
    options = () if app is ASGI else ("--interface", "wsgi")
    with serve(workplace, *options) as server:
        try:
            httpx.get(server.url, timeout=TIMEOUT_S)
        except httpx.HTTPError:
            assert app is PARTS
        server.process.send_signal(signal.SIGTERM)
        _, stderr = server.process.communicate(timeout=TIMEOUT_S)
    assert "RuntimeError: broken" in stderr
    assert "spanreplay" not in stderr
