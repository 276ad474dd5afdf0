"""The work of a web framework for a request is recorded with it: files, dates, sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import prepare, response_of, serve

FASTAPI: Final = """
import asyncio, os
import aiofiles
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.staticfiles import StaticFiles

app = FastAPI()
app.add_middleware(GZipMiddleware, minimum_size=10)
app.add_middleware(SessionMiddleware, secret_key="none")
app.mount("/static", StaticFiles(directory=os.environ["DATA"]))

@app.get("/ask")
def answer(request: Request, response: Response):
    request.session["seen"] = True
    response.set_cookie("plain", "x", expires=3600)
    return {"answer": "y" * 100, "api_key": "kept-in-the-open-4711"}

@app.get("/limited")
async def limited():
    async def read():
        async with aiofiles.open(os.environ["DATA"] + "/report.txt") as report:
            return await report.read()
    return await asyncio.wait_for(read(), 60)

@app.get("/report")
def report():
    return FileResponse(os.environ["DATA"] + "/report.txt")
"""


@pytest.mark.parametrize("path", ["/ask", "/limited", "/report", "/static/report.txt"])
def test_p2_p4_what_starlette_does_for_a_request_is_the_request_s(
    path: str, provider: Provider, tmp_path: Path
) -> None:
    """Times in cookies, signatures and gzip come from the recording, and so does a deleted file."""
    code, data = tmp_path / "code", tmp_path / "data"
    code.mkdir()
    data.mkdir()
    (data / "report.txt").write_text("z" * 200)
    place = prepare(code, provider, FASTAPI)
    with serve(place, DATA=str(data)) as server:
        assert httpx.get(f"{server.url}{path}", timeout=TIMEOUT_S).headers["content-encoding"] == "gzip"
        server.stop()
    (unit,) = server.units()
    (data / "report.txt").unlink()
    replayed = place.replay("-m", "uvicorn", "app:app", source=unit.run_id, DATA=str(data))
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_r1_a_secret_in_a_compressed_response_is_redacted(provider: Provider, tmp_path: Path) -> None:
    """A response compressed by a middleware is recorded uncompressed."""
    place = prepare(tmp_path, provider, FASTAPI)
    with serve(place, DATA=str(tmp_path)) as server:
        answer = httpx.get(f"{server.url}/ask", timeout=TIMEOUT_S)
        server.stop()
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["api_key"] == "kept-in-the-open-4711"
    (unit,) = server.units()
    assert '"answer":"yyy' in response_of(unit)["body"]["text"].replace(" ", "")
    assert "kept-in-the-open-4711" not in response_of(unit)["body"]["text"]
