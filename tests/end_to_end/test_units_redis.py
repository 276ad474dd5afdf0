"""Units that keep something in Redis, also in their own queue: what the program asks there is the unit's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.units import FLASK, prepare, serve
from support.workers import record_until, units_of

ARQ: Final = """
from arq import create_pool
from arq.connections import RedisSettings
import redis

kept = redis.Redis(port=PORT, db=1, decode_responses=True)
START = kept.incr("starts")

async def answer(ctx, number, user):
    async with ctx["redis"].pipeline() as pipe:
        made = await pipe.incr("seen").lpush("users", user).execute()
    return {"made": made, "kept": kept.incr("sync"), "start": START}

class Worker:
    functions = [answer]
    redis_settings = RedisSettings(port=PORT)
    poll_delay = 0.05
"""
RQ: Final = """
from redis import Redis
from rq import Queue

kept = Redis(port=PORT, db=1, decode_responses=True)
START = kept.incr("starts")

def answer(number, user):
    with kept.lock("one", timeout=60):
        return {"kept": kept.incr("sync"), "start": START}
"""
CELERY: Final = """
from celery import Celery
import redis

app = Celery("shop", broker="redis://127.0.0.1:PORT", backend="redis://127.0.0.1:PORT/2")
app.conf.worker_enable_remote_control = False
kept = redis.Redis(port=PORT, db=1, decode_responses=True)
START = kept.incr("starts")

@app.task
def answer(number, user):
    return {"kept": kept.incr("sync"), "start": START}
"""
PUBLISHERS: Final = {
    "arq": """
import asyncio, shop
from arq import create_pool

async def publish():
    pool = await create_pool(shop.Worker.redis_settings)
    for number in range(3):
        await pool.enqueue_job("answer", number, user="ann")

asyncio.run(publish())
""",
    "celery": """
import shop
for number in range(3):
    shop.answer.delay(number, "ann")
""",
    "rq": """
import shop
for number in range(3):
    shop.Queue("jobs", connection=shop.Redis(port=PORT)).enqueue(shop.answer, number, "ann")
""",
}
WORKERS: Final = {
    "arq": (ARQ, ("-m", "arq", "shop.Worker", "--burst")),
    "celery": (
        CELERY,
        ("-m", "celery", "-A", "shop", "worker", "--without-gossip", "--without-mingle", "--pool", "solo"),
    ),
    "rq": (RQ, ("-m", "rq.cli", "worker", "--burst", "--url", "redis://127.0.0.1:PORT", "jobs")),
}
ASKED: Final = {
    "arq": {"redis.pipeline", "redis.INCRBY"},
    "celery": {"redis.INCRBY"},
    "rq": {"redis.SET", "redis.INCRBY", "redis.EVALSHA"},
}


@pytest.mark.parametrize("name", WORKERS)
def test_p4_a_job_that_keeps_something_in_redis_replays_without_it(
    name: str, provider: Provider, tmp_path: Path
) -> None:
    """Its commands are calls of the job; those with which the worker asks for jobs are not."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    source, words = WORKERS[name]
    with a_redis(place.path) as port:
        place.write("shop.py", source.replace("PORT", str(port)))
        place.write("publish.py", PUBLISHERS[name].replace("PORT", str(port)))
        command = [word.replace("PORT", str(port)) for word in words]
        publish = [str(place.python), "publish.py"]
        subprocess.run(publish, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)
        if name == "celery":
            record_until(place, 3, *command)
        else:
            place.record(*command, PYTHONPATH=".")
    units = [unit for unit in units_of(place) if unit.root.app.endswith("answer")]
    assert len(units) == 3
    asked = ASKED[name]
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        names = [call.name for call in unit.calls if call.kind == "tool"]
        assert set(names) - {"redis.SCRIPT_LOAD"} == asked
        replayed = place.replay(*command, source=unit.run_id, PYTHONPATH=".")
        assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr


IN_THREADS: Final = f"""{FLASK}
import os, redis

kept = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)

@app.get("/count/<text>")
def count(text):
    return {{"said": ask(text), "count": kept.incr(text), "all": kept.hincrby("all", text)}}
"""


def test_p4_requests_in_threads_share_a_client_of_redis(provider: Provider, tmp_path: Path) -> None:
    """Each request replays alone, whichever thread and connection it had."""
    place = prepare(tmp_path, provider, IN_THREADS)
    words = ("-m", "waitress")
    at = "--listen 127.0.0.1:{port} app:app"
    with a_redis(tmp_path) as port:
        environ = {"REDIS_URL": f"redis://127.0.0.1:{port}"}
        with serve(place, command=words, at=at, **environ) as server:
            for text in ("a", "b", "a"):
                assert httpx.get(f"{server.url}/count/{text}", timeout=TIMEOUT_S).status_code == 200
            server.await_ends()
            server.stop()
    for unit in server.units():
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*words, *at.format(port=server.port).split(), source=unit.run_id, **environ)
        assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
