"""Files that requests store beside the application's code, where a server's own folder is: later requests read them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import ASKING, COMMAND, Server, path_of, prepare, serve

APP: Final = f"""{ASKING}
import os
from pathlib import Path

from fastapi import FastAPI

app = FastAPI()
HERE = Path(__file__).parent
STORE = HERE / "store"
PROMPT = "prompt.txt"

@app.post("/{{name}}/{{text}}")
def put(name: str, text: str):
    STORE.mkdir(exist_ok=True)
    (STORE / "new").write_text(text)
    os.replace(STORE / "new", STORE / name)
    (HERE / "last.txt").write_text(name)

@app.get("/{{name}}")
async def answer(name: str):
    if not (STORE / name).exists():
        return {{"names": sorted(os.listdir(STORE)), "last": (HERE / "last.txt").read_text()}}
    return await ask((HERE / PROMPT).read_text() + (STORE / name).read_text())

@app.delete("/{{name}}")
def remove(name: str):
    (STORE / name).unlink()
"""


def send(server: Server, method: str, path: str) -> None:
    """Send one request and wait for its answer."""
    httpx.request(method, server.url + path, timeout=TIMEOUT_S).raise_for_status()


def unit_of(server: Server, path: str) -> Recording:
    """Return the last request with this path."""
    return [unit for unit in server.units() if path_of(unit) == path][-1]


@pytest.fixture
def server(tmp_path: Path, provider: Provider, request: pytest.FixtureRequest) -> Server:
    """A server whose requests have stored, read and removed files; none of them is here any more."""
    workplace = prepare(tmp_path, provider, APP)
    workplace.write("prompt.txt", "Say kindly: ")
    with serve(workplace, SPANREPLAY_LEVEL=str(request.param)) as server:
        for method, path in (
            ("POST", "/a/apples"),
            ("GET", "/a"),
            ("POST", "/b/pears"),
            ("GET", "/b"),
            ("DELETE", "/b"),
            ("GET", "/c"),
        ):
            send(server, method, path)
        server.await_ends()
        server.stop()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "last.txt").unlink()
    return server


@pytest.mark.parametrize(
    ("server", "path"), [("calls", "/a"), ("calls", "/b"), ("full", "/b"), ("full", "/c")], indirect=["server"]
)
def test_r8_p4_what_an_earlier_request_stored_beside_the_code_is_as_recorded(server: Server, path: str) -> None:
    """Each request that reads is identical alone, on a machine without the files; at `calls` it may not list them."""
    replayed = server.workplace.replay(*COMMAND, source=unit_of(server, path).run_id, options=("--warm", "0"))
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


@pytest.mark.parametrize("server", ["calls"], indirect=True)
def test_n14_s27_code_beside_what_requests_store_is_read_as_it_is(server: Server) -> None:
    """The prompt is no request's work: it shows that it has been edited."""
    server.workplace.write("prompt.txt", "Say rudely: ")
    replayed = server.workplace.replay(*COMMAND, source=unit_of(server, "/a").run_id, options=("--warm", "0"))
    assert replayed.causes()[0] == ("changed_call", "llm:openai.chat.completions")
    assert "prompt.txt, which the agent reads" in replayed.verdict["divergences"][0]["cause"]
