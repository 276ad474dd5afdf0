"""The work of applications within a request, recorded under concurrency and replayed alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.sampling import sampled
from support.units import COMMAND, path_of, response_of, serve

APP: Final = """
import asyncio, hashlib, random, time, uuid
from contextlib import asynccontextmanager

from fastapi import BackgroundTasks, FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse, Response
from groq import AsyncGroq, Groq
from starlette.middleware.base import BaseHTTPMiddleware

client, one_at_a_time, kept = AsyncGroq(), asyncio.Semaphore(1), set()

async def ask(text):
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

async def poll():
    while True:
        time.time()
        await ask("poll")
        await asyncio.sleep(0.01)

@asynccontextmanager
async def lifespan(app):
    polling = asyncio.create_task(poll())
    await asyncio.sleep(0.1)
    yield
    polling.cancel()

class Timed(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        begun = time.perf_counter()
        response = await call_next(request)
        response.headers["x-seconds"] = str(time.perf_counter() - begun)
        response.headers["x-request-id"] = uuid.uuid4().hex
        return response

app = FastAPI(lifespan=lifespan)
app.add_middleware(Timed)

@app.get("/background")
async def background(tasks: BackgroundTasks):
    tasks.add_task(ask, "behind the response")
    return await ask("before the response")

@app.get("/left")
async def left():
    kept.add(asyncio.create_task(ask("left running")))
    await asyncio.sleep(0)
    return "left"

@app.post("/upload")
async def upload(request: Request):
    return hashlib.sha256(await request.body()).hexdigest()

@app.get("/large")
async def large():
    return PlainTextResponse("x" * 300_000)

@app.get("/binary")
async def binary():
    return Response(bytes(range(256)), media_type="application/octet-stream")

@app.get("/guarded")
async def guarded(request: Request):
    if request.headers.get("authorization") != "Bearer sk-live-4f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c":
        raise HTTPException(401)
    return {"answer": await ask("hello"), "new_key": "sk-live-canary8b7c6d5e4f3a2b1c0d9e8f7a6b"}

@app.get("/raises")
async def raises():
    raise KeyError(await ask("hello"))

@app.get("/waits")
async def waits():
    async with one_at_a_time:
        await asyncio.sleep(random.random() / 1000)
        return {"answer": await ask("hello"), "at": time.time(), "number": random.random()}

@app.get("/races")
async def races():
    try:
        await asyncio.wait_for(asyncio.sleep(5), 0.01)
    except asyncio.TimeoutError:
        pass
    tasks = [asyncio.create_task(ask(f"race {number}")) for number in range(3)]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return sorted(task.result() for task in done)

@app.get("/executor")
async def executor():
    def work():
        messages = [{"role": "user", "content": "in a thread"}]
        return Groq().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content
    return await asyncio.get_running_loop().run_in_executor(None, work)
"""
KEY: Final = "sk-live-4f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
PATHS: Final = (
    "/background", "/left", "/upload", "/large", "/binary", "/guarded", "/raises", "/waits", "/races", "/executor",
    "/nowhere",
)  # fmt: skip
UPLOAD_BYTES: Final = 409_600
"""More than a server reads in one go."""


@dataclass(frozen=True)
class Recorded:
    """A stopped server: its directory, and the runs of its requests by path."""

    workplace: Workplace
    units: dict[str, Recording]
    process: Recording
    spool: bytes


async def _ask_all(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        bodies = {"/upload": bytes(range(256)) * (UPLOAD_BYTES // 256)}
        headers = {"authorization": f"Bearer {KEY}"}
        await asyncio.gather(
            *(
                client.request("POST" if path in bodies else "GET", path, content=bodies.get(path), headers=headers)
                for path in PATHS
            ),
            *(client.get("/waits") for _ in range(5)),
        )


LEVELS: Final = ("calls", "full")


@pytest.fixture(scope="module", params=LEVELS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """All the requests, made at the same time, at each level of recording."""
    with Provider() as provider:
        workplace = Workplace(tmp_path_factory.mktemp("units"), provider.environ())
        workplace.write("app.py", APP)
        with serve(workplace, SPANREPLAY_LEVEL=request.param) as server:
            asyncio.run(_ask_all(server.url))
            server.stop()
    found = {path_of(unit): unit for unit in server.units()}
    assert sorted(found) == sorted(PATHS)
    spool = b"".join(file.read_bytes() for file in (workplace.path / ".spanreplay" / "spool").iterdir())
    return Recorded(workplace, found, server.the_process(), spool)


@pytest.mark.parametrize(
    ("recorded", "path"),
    [
        *(("calls", path) for path in sampled([path for path in PATHS if path != "/races"], 5)),
        *(("full", path) for path in PATHS),
    ],
    indirect=["recorded"],
)
@pytest.mark.sampled(6)
def test_p2_p4_what_an_application_does_replays(path: str, recorded: Recorded) -> None:
    """Each unit is whole and replays identically, beside a task of the process that never ends.

    How many tasks are done when the first is reported done depends on the callback order, which `calls` leaves open.
    """
    unit = recorded.units[path]
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert all(call.lane.split("/")[0] == "unit" for call in unit.calls)
    replayed = recorded.workplace.replay(*COMMAND, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


def test_p2_calls_of_background_tasks_are_the_process_s(recorded: Recorded) -> None:
    """A task started by the lifespan stays in the run of the process, whatever request is running."""
    polls = [call for call in recorded.process.calls if "poll" in call.request]
    assert len(polls) > 2
    assert not [call for unit in recorded.units.values() for call in unit.calls if "poll" in call.request]


def test_p2_a_unit_has_what_its_tasks_had_under_way(recorded: Recorded) -> None:
    """Background work of the framework, and a task's call that outlives the response, belong to the unit."""
    asked = {p: [c.request for c in recorded.units[p].calls if c.kind == "llm"] for p in ("/background", "/left")}
    assert ["behind" in text for text in asked["/background"]] == [False, True]
    assert ["left running" in text for text in asked["/left"]] == [True]


def test_p2_a_body_in_parts_is_one_call(recorded: Recorded) -> None:
    """It is recorded whole, with the sizes of its parts, so that no secret is split."""
    (body,) = [call for call in recorded.units["/upload"].calls if call.boundary == "http:body"]
    value = json.loads(body.response)["value"]
    assert sum(value["parts"]) == UPLOAD_BYTES
    assert len(value["parts"]) > 1


def test_p2_units_are_redacted(recorded: Recorded) -> None:
    """Keys sent by a client or by the application are not in the spool."""
    assert KEY.encode() not in recorded.spool
    assert b"canary8b7c6d5e4f3a2b1c0d9e8f7a6b" not in recorded.spool
    assert response_of(recorded.units["/guarded"])["status"] == 200


def test_p2_an_exception_of_the_application_is_in_the_run(recorded: Recorded) -> None:
    """It comes after the framework's 500 response; the run's outcome is an error."""
    unit = recorded.units["/raises"]
    assert response_of(unit)["status"] == 500
    assert [json.loads(c.request)["arguments"] for c in unit.calls if c.name == "raised"] == [
        {"type": "builtins.KeyError"}
    ]
    assert unit.root.outcome == "error"


SECRETIVE: Final = """
import secrets, sqlite3
from fastapi import FastAPI

NAME = secrets.token_hex(32)
app = FastAPI()

@app.get("/")
def root():
    with sqlite3.connect(f"file:{NAME}?mode=memory", uri=True) as connection:
        return {"name": NAME, "answer": connection.execute("select 1").fetchall()}
"""


def test_r9_what_a_process_drew_as_a_secret_is_one_in_its_units(tmp_path: Path) -> None:
    """A value that `secrets` returned at application start is in no unit in clear text, and the units replay."""
    place = Workplace(tmp_path)
    place.write("app.py", SECRETIVE)
    with serve(place) as server:
        name = httpx.get(server.url, timeout=TIMEOUT_S).json()["name"]
        server.stop()
    (unit,) = server.units()
    assert len(name) == 64
    assert all(name not in text for call in unit.calls for text in (call.request, call.response))
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


LAZY: Final = """
import time
from fastapi import FastAPI

app, made = FastAPI(), []

@app.get("/")
def root():
    if not made:
        made.append(time.time())
    return {"since": made[0]}
"""


def test_p4_a_unit_that_needs_an_earlier_one_says_so(tmp_path: Path) -> None:
    """Memory left by the first request is missing in a replay of the second, and the verdict says so."""
    place = Workplace(tmp_path)
    place.write("app.py", LAZY)
    with serve(place) as server:
        assert httpx.get(server.url, timeout=TIMEOUT_S).json() == httpx.get(server.url, timeout=TIMEOUT_S).json()
        server.stop()
    first, second = server.units()
    assert place.replay(*COMMAND, source=first.run_id).status == 0
    replayed = place.replay(*COMMAND, source=second.run_id, options=("--warm", "0"))
    assert replayed.status == 3
    assert "1 unit of its process came before" in replayed.verdict["divergences"][0]["hint"]
