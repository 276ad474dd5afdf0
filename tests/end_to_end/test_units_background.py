"""Requests completed by a background task of the process, and event loops watched for blocking calls."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx

from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import prepare, response_of, serve

BLOCKING: Final = """
import time
from contextlib import asynccontextmanager

from blockbuster import BlockBuster, BlockingError
from fastapi import FastAPI
from groq import AsyncGroq

client = AsyncGroq()

@asynccontextmanager
async def lifespan(app):
    watch = BlockBuster()
    watch.activate()
    yield
    watch.deactivate()

app = FastAPI(lifespan=lifespan)

@app.get("/{text}")
async def ask(text: str):
    try:
        time.sleep(0.001)
        slept = "slept"
    except BlockingError as exc:
        slept = str(exc)
    try:
        with open(__file__) as source:
            read = source.read(7)
    except BlockingError as exc:
        read = str(exc)
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return {"slept": slept, "read": read, "reply": made.choices[0].message.content}
"""
QUEUE: Final = """
import asyncio, time, uuid
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

PENDING = []

async def work():
    polls = 0
    while True:
        await asyncio.sleep(0.02)
        polls += 1
        now = time.time()
        for created, done in [job for job in PENDING if job[0] < now]:
            PENDING.remove((created, done))
            done.set_result(f"created {created}")
        if polls == 100:
            print("has polled", flush=True)

@asynccontextmanager
async def lifespan(app):
    working = asyncio.create_task(work())
    yield
    working.cancel()

app = FastAPI(lifespan=lifespan)

@app.get("/wait")
async def wait():
    done = asyncio.get_running_loop().create_future()
    PENDING.append((time.time(), done))

    async def parts():
        while not (await asyncio.wait([done], timeout=0.5))[0]:
            yield "still waiting\\n"
        yield done.result()

    return StreamingResponse(parts(), media_type="text/plain")
"""


def test_p2_p4_blocking_calls_are_found_and_ours_are_not(provider: Provider, tmp_path: Path) -> None:
    """With blockbuster, requests are whole runs; blocking calls of the application still raise, in a replay too."""
    workplace = prepare(tmp_path, provider, BLOCKING)
    with serve(workplace) as server:
        answer = httpx.get(f"{server.url}/hello", timeout=TIMEOUT_S).raise_for_status().json()
        server.await_ends()
        server.stop()
    assert answer["slept"] == "Blocking call to time.sleep"
    assert answer["read"].startswith("Blocking call to io.")
    (unit,) = server.units()
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert [call.kind for call in unit.calls if call.kind == "llm"] == ["llm"]
    provider.stop()
    replayed = workplace.replay("-m", "uvicorn", "app:app", source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_p4_a_task_of_the_process_does_in_a_replay_what_a_request_waits_for(provider: Provider, tmp_path: Path) -> None:
    """The task reads the request's clock, not the values that it read while waiting for the first request."""
    workplace = prepare(tmp_path, provider, QUEUE)
    with serve(workplace) as server:
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "has polled\n"
        answer = httpx.get(f"{server.url}/wait", timeout=TIMEOUT_S).raise_for_status().text
        server.await_ends()
        server.stop()
    (unit,) = server.units()
    assert response_of(unit)["body"]["text"] == answer
    assert unit.completeness().is_complete, unit.completeness().reasons
    replayed = workplace.replay("-m", "uvicorn", "app:app", source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
