"""Jobs and websocket sessions that need state from earlier ones in their process: identical only after these."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest
import websockets

from spanreplay.model.call import Recording
from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.suites import replay_suite
from support.units import COMMAND, Server, await_true, prepare, serve

KNOWN: Final = """
import time, uuid

from groq import AsyncGroq, Groq

known = {}

def ask(text):
    if text not in known:
        made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
        known[text] = made.choices[0].message.content
    return {"reply": known[text], "count": len(known), "at": time.time(), "id": uuid.uuid4().hex}

async def aask(text):
    if text not in known:
        messages = [{"role": "user", "content": text}]
        made = await AsyncGroq().chat.completions.create(model="gpt-x", messages=messages)
        known[text] = made.choices[0].message.content
    return {"reply": known[text], "count": len(known), "at": time.time(), "id": uuid.uuid4().hex}
"""
"""A cache that jobs leave to later ones."""
RQ: Final = """
from redis import Redis
from rq import Queue, SimpleWorker

connection = Redis(port=PORT)

def main():
    import known
    jobs = Queue("jobs", connection=connection)
    SimpleWorker([jobs], connection=connection).work(burst=True)

def publish(texts):
    for text in texts:
        Queue("jobs", connection=connection).enqueue("known.ask", text)

if __name__ == "__main__":
    main()
"""
ARQ: Final = """
import asyncio

import known
from arq import create_pool
from arq.connections import RedisSettings

async def ask(ctx, text):
    return await known.aask(text)

class Worker:
    functions = [ask]
    max_jobs = 1
    poll_delay = 0.05
    redis_settings = RedisSettings(port=PORT)

async def send(texts):
    pool = await create_pool(Worker.redis_settings)
    for text in texts:
        await pool.enqueue_job("ask", text)

def publish(texts):
    asyncio.run(send(texts))
"""
WORKERS: Final = {
    "rq": (RQ, ("shop.py",)),
    "arq": (ARQ, ("-m", "arq", "shop.Worker", "--burst")),
}
SOCKETS: Final = """
import known
from fastapi import FastAPI, WebSocket

app = FastAPI()

@app.websocket("/chat")
async def chat(socket: WebSocket):
    await socket.accept()
    await socket.send_json(await known.aask(await socket.receive_text()))
    await socket.close()
"""
TEXTS: Final = ("one", "two", "one")


def _record_jobs(place: Workplace, name: str) -> tuple[str, ...]:
    """A recorded worker does three jobs one after another and ends; return the worker's command."""
    source, command = WORKERS[name]
    with a_redis(place.path) as port:
        place.write("shop.py", source.replace("PORT", str(port)))
        publish = [str(place.python), "-c", f"import shop; shop.publish({TEXTS!r})"]
        subprocess.run(publish, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)
        place.record(*command)
    return command


def _units(place: Workplace) -> list[Recording]:
    found = [each for each in place.recordings() if "unit" in each.root.env]
    assert len(found) == len(TEXTS)
    return found


def _insist(place: Workplace, units: Sequence[Recording], command: Sequence[str]) -> None:
    """Assert that alone the last unit diverges, and that after the others it is identical, as is each in a suite."""
    alone = place.replay(*command, source=units[-1].run_id, options=("--warm", "0"))
    assert alone.status == 3, alone.stderr
    assert f"spanreplay replay {units[-1].run_id} --warm all -- " in alone.stderr
    warm = place.replay(*command, source=units[-1].run_id, options=["--warm", "all"])
    assert warm.status == 0, warm.stderr
    assert [unit["why"] for unit in warm.verdict["warm_up"]["units"]] == ["", ""]
    assert "identical after warming up with 2 earlier units" in warm.stderr
    suite = replay_suite(place, *command, options=["--process", units[0].run_id, "--warm", "all"])
    assert (suite.status, suite.report["counts"]) == (0, {"identical": 3}), suite.stderr
    assert [len(unit.get("warm_up", {}).get("units", ())) for unit in suite.report["units"]] == [0, 1, 2]


@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.sampled(1)
def test_p3_p4_a_job_is_identical_behind_the_earlier_ones(name: str, provider: Provider, tmp_path: Path) -> None:
    """The jobs of a worker share a cache in one process, or on a loop."""
    place = prepare(tmp_path, provider, "")
    place.write("known.py", KNOWN)
    command = _record_jobs(place, name)
    provider.stop()
    units = _units(place)
    _insist(place, units, command)
    place.write("known.py", KNOWN.replace('"at": time.time()', '"now": time.time()'))
    changed = place.replay(*command, source=units[-1].run_id, options=["--warm", "all"])
    assert changed.causes() == [("changed_call", "compute:output")], changed.stderr
    assert [unit["why"] for unit in changed.verdict["warm_up"]["units"]] == ["changed_call at compute:output"] * 2


def test_p2_p4_a_websocket_session_is_identical_behind_the_earlier_ones(provider: Provider, tmp_path: Path) -> None:
    """Sessions that share a cache, one after another."""
    place = prepare(tmp_path, provider, SOCKETS)
    place.write("known.py", KNOWN)

    async def ask(url: str, text: str) -> None:
        async with websockets.connect(url.replace("http", "ws") + "/chat", open_timeout=TIMEOUT_S) as socket:
            await socket.send(text)
            assert "reply" in str(await socket.recv())

    with serve(place) as server:
        for text in TEXTS:
            asyncio.run(ask(server.url, text))
        server.await_ends()
        server.stop()
    provider.stop()
    _insist(place, _units(place), COMMAND)


SCHEDULED: Final = """
import asyncio, sys
from contextlib import asynccontextmanager
from datetime import timezone

import known
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from fastapi import FastAPI

scheduler = AsyncIOScheduler(timezone=timezone.utc)

@asynccontextmanager
async def lifespan(app):
    scheduler.start()
    yield

app = FastAPI(lifespan=lifespan)

@app.get("/later")
async def later(text: str):
    scheduler.add_job(known.aask, args=[text], misfire_grace_time=None)

@app.get("/now")
async def now(text: str):
    return await known.aask(text)

async def main():
    scheduler.start()
    ended = asyncio.Event()
    scheduler.add_listener(lambda event: ended.set(), EVENT_JOB_EXECUTED)
    for function, text in zip((known.aask, known.ask, known.aask), sys.argv[1:]):
        ended.clear()
        scheduler.add_job(function, args=[text], misfire_grace_time=None)
        await ended.wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_p3_p4_a_job_on_a_loop_is_identical_behind_the_earlier_ones(provider: Provider, tmp_path: Path) -> None:
    """Coroutines and functions that an `AsyncIOScheduler` calls share a cache."""
    place = prepare(tmp_path, provider, SCHEDULED)
    place.write("known.py", KNOWN)
    place.record("app.py", *TEXTS)
    provider.stop()
    _insist(place, _units(place), ("app.py", *TEXTS))


def _have_ended(server: Server, count: int) -> bool:
    return sum(bool(unit.root.manifest) for unit in server.units()) == count


@pytest.mark.parametrize("paths", [("/later", "/now"), ("/now", "/later")], ids=["request", "job"])
@pytest.mark.sampled(1)
def test_p3_p4_requests_and_jobs_of_one_process_are_replayed_before_a_unit(
    paths: tuple[str, str], provider: Provider, tmp_path: Path
) -> None:
    """A request needs what a job on the server's loop has left, and a job needs what a request has left."""
    place = prepare(tmp_path, provider, SCHEDULED)
    place.write("known.py", KNOWN)
    with serve(place) as server:
        for path, count in zip(paths, ((1, 3) if paths[0] == "/now" else (2, 3)), strict=True):
            assert httpx.get(f"{server.url}{path}?text=one", timeout=TIMEOUT_S).status_code == 200
            await_true(partial(_have_ended, server, count))
        server.stop()
    provider.stop()
    _insist(place, _units(place), COMMAND)
