"""`replay --serve` with a job: try its input by hand again and again while repairing its function."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import websockets

from spanreplay.model.call import Recording
from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.served import served_replay
from support.units import COMMAND, await_true, prepare, serve

ASK: Final = """
import time, uuid

from groq import Groq

def ask(text, name):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    if name == "nobody":
        raise KeyError(name)
    return {"reply": made.choices[0].message.content, "to": name, "at": time.time(), "id": uuid.uuid4().hex}
"""
RQ: Final = """
import ask
from redis import Redis
from rq import Queue, SimpleWorker

connection = Redis(port=PORT)

def publish():
    Queue("jobs", connection=connection).enqueue("ask.ask", "hello", name="ann")

if __name__ == "__main__":
    SimpleWorker([Queue("jobs", connection=connection)], connection=connection).work()
"""
ARQ: Final = """
import asyncio

import ask as asking
from arq import create_pool
from arq.connections import RedisSettings

async def ask(ctx, text, name):
    return asking.ask(text, name)

class Worker:
    functions = [ask]
    poll_delay = 0.05
    redis_settings = RedisSettings(port=PORT)

async def send():
    await (await create_pool(Worker.redis_settings)).enqueue_job("ask", "hello", name="ann")

def publish():
    asyncio.run(send())
"""
CELERY: Final = """
import ask as asking
from celery import Celery

app = Celery("shop", broker="redis://127.0.0.1:PORT")
app.conf.worker_enable_remote_control = False

@app.task
def ask(text, name):
    return asking.ask(text, name)

def publish():
    ask.delay("hello", name="ann")
"""
WORKERS: Final = {
    "rq": (RQ, ("shop.py",)),
    "arq": (ARQ, ("-m", "arq", "shop.Worker")),
    "celery": (CELERY, ("-m", "celery", "-A", "shop", "worker", "--pool", "solo")),
}


def units_of(place: Workplace) -> list[Recording]:
    """The runs of ended units."""
    return [each for each in place.recordings() if "unit" in each.root.env and each.root.manifest]


def record(place: Workplace, name: str) -> str:
    """One job, done by a recorded worker that is then stopped; its run."""
    source, command = WORKERS[name]
    place.write("ask.py", ASK)
    with a_redis(place.path) as port:
        place.write("shop.py", source.replace("PORT", str(port)))
        publish = [str(place.python), "-c", "import shop; shop.publish()"]
        subprocess.run(publish, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)
        process = place.spawn([str(place.python), *command])
        try:
            await_true(lambda: bool(units_of(place)) or process.poll() is not None)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
    (unit,) = units_of(place)
    return unit.run_id


@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.sampled(1)
def test_p3_p4_a_recorded_job_is_tried_by_hand(name: str, provider: Provider, tmp_path: Path) -> None:
    """Omitted arguments are as recorded; others reach the function, and its result or exception is returned."""
    place = prepare(tmp_path, provider, "")
    run = record(place, name)
    provider.stop()

    def post(url: str, given: Any, path: str = "") -> httpx.Response:
        return httpx.post(f"{url}/{path}", json=given, timeout=TIMEOUT_S)

    with served_replay(place, run, WORKERS[name][1]) as (url, shown, process):
        assert '"kwargs": {"name": "ann"}' in shown
        again, other = post(url, {}), post(url, {"kwargs": {"name": "bob"}})
        assert (again.status_code, other.status_code) == (200, 200)
        assert again.json()["result"]["to"] == "ann"
        assert other.json()["result"] == {**again.json()["result"], "to": "bob"}
        place.write("ask.py", ASK.replace('"to": name', '"for": name'))
        assert post(url, {"kwargs": {"name": "bob"}}).json()["result"]["for"] == "bob"
        assert "nobody" in post(url, {"kwargs": {"name": "nobody"}}).text
        unknown, elsewhere, text = post(url, {"nope": 1}), post(url, {}, "jobs"), post(url, "text")
        assert (unknown.status_code, elsewhere.status_code, text.status_code) == (400, 404, 400)
        assert "the recorded input has no member 'nope'; it has " in unknown.text
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 3, said
    assert said.count("✔ identical") == 1, said
    assert re.findall(r"✘ diverged at call \d+ \((\S+)\)", said) == ["compute:output"] * 3, said
    assert "job (changed: kwargs)" in said
    assert "the input differs from the recorded one (changed: kwargs)" in said


SOCKETS: Final = """
from fastapi import FastAPI, WebSocket

app = FastAPI()

@app.websocket("/chat")
async def chat(socket: WebSocket):
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()
"""


def test_p2_p4_a_websocket_session_is_not_served(provider: Provider, tmp_path: Path) -> None:
    """A session has many messages, not one answer: one line says so and what to do, and no server starts."""
    place = prepare(tmp_path, provider, SOCKETS)

    async def ask(url: str) -> None:
        async with websockets.connect(url.replace("http", "ws") + "/chat", open_timeout=TIMEOUT_S) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"

    with serve(place) as server:
        asyncio.run(ask(server.url))
        server.await_ends()
        server.stop()
    (unit,) = units_of(place)
    done = place.run("replay", unit.run_id, "--serve", "0", "--", str(place.python), *COMMAND)
    assert done.returncode == 1
    assert f"--serve gives one answer to one request, but {unit.run_id} is a websocket session" in done.stderr
    assert f"without --serve, `replay {unit.run_id}` gives its messages to the code that is there now" in done.stderr
