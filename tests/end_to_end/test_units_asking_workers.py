"""Requests that publish jobs and ask for their results: with Celery, RQ, arq and Dramatiq, as services do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.suites import insist_identical
from support.units import COMMAND, prepare, serve

JOBS: Final = """
import os

import dramatiq
from celery import Celery
from dramatiq.brokers.redis import RedisBroker

URL = os.environ["REDIS_URL"]
app = Celery("jobs", broker=f"{URL}/1", backend=f"{URL}/1")
dramatiq.set_broker(RedisBroker(url=f"{URL}/2"))

class Refused(Exception):
    pass

@app.task
def add(a, b):
    return a + b

@app.task
def fail(text):
    raise Refused(text)

@app.task
def total(numbers):
    return sum(numbers)

@dramatiq.actor
def multiply(a, b):
    return a * b

def work(a):
    return a
"""
APP: Final = """
import os
from contextlib import asynccontextmanager
from datetime import timedelta

import jobs
from arq import create_pool
from arq.connections import RedisSettings
from arq.jobs import Job as ArqJob
from celery import chain, chord, group
from fastapi import FastAPI
from redis import Redis
from rq import Queue
from rq.job import Job

URL = os.environ["REDIS_URL"]

@asynccontextmanager
async def lifespan(app):
    app.state.arq = await create_pool(RedisSettings(port=int(URL.rpartition(":")[2]), database=3))
    yield

app = FastAPI(lifespan=lifespan)
redis = Redis.from_url(f"{URL}/4")
queue = Queue(connection=redis)

def describe(job):
    status = str(job.get_status(refresh=False))
    return {"id": job.id, "status": status, "at": [str(job.created_at), str(job.enqueued_at)], "for": job.timeout}

@app.get("/rq")
def publish_rq():
    return describe(queue.enqueue(jobs.work, 1, job_timeout=77))

@app.get("/rq/later")
def publish_rq_later():
    return describe(queue.enqueue_in(timedelta(seconds=60), jobs.work, 2))

@app.get("/rq/{id}")
def fetch_rq(id: str):
    job = Job.fetch(id, connection=redis)
    return {"status": str(job.get_status()), "at": str(job.enqueued_at), "count": len(queue)}

@app.get("/dramatiq")
def publish_dramatiq():
    message = jobs.multiply.send(1, 2)
    return {"id": message.message_id, "at": message.message_timestamp}

@app.get("/arq")
async def publish_arq():
    return {"id": (await app.state.arq.enqueue_job("work", 1)).job_id}

@app.get("/arq/{id}")
async def fetch_arq(id: str):
    job = ArqJob(id, app.state.arq)
    return {"status": str(await job.status()), "info": str(await job.info())}

@app.get("/celery")
def publish_celery():
    return {"id": jobs.add.delay(1, 2).id}

@app.get("/celery/wait")
def wait():
    result = jobs.add.delay(2, 3)
    return {"value": result.get(timeout=60), "state": result.state, "at": str(result.date_done)}

@app.get("/celery/late")
def wait_in_vain():
    try:
        jobs.app.AsyncResult("unknown").get(timeout=0.5)
    except Exception as exc:
        return {"raised": repr(exc)}

@app.get("/celery/failed")
def wait_for_failure():
    result = jobs.fail.delay("no")
    value = result.get(timeout=60, propagate=False)
    try:
        result.get()
    except jobs.Refused as exc:
        return {"value": repr(value), "raised": repr(exc), "state": result.state}

@app.get("/celery/many")
def wait_for_many():
    sums = group(jobs.add.s(each, each) for each in range(3))().get(timeout=60)
    chained = chain(jobs.add.s(1, 2), jobs.add.s(4))().get(timeout=60)
    return {"sums": sums, "chained": chained, "total": chord([jobs.add.s(1, 2)])(jobs.total.s()).get(timeout=60)}

@app.get("/celery/revoke")
def revoke():
    result = jobs.add.apply_async((1, 2), countdown=600)
    result.revoke()
    return {"id": result.id, "active": jobs.app.control.inspect(timeout=0.5).active() is not None}

@app.get("/celery/{id}")
def fetch_celery(id: str):
    result = jobs.app.AsyncResult(id)
    return {"state": result.state, "ready": result.ready(), "value": str(result.result)}
"""
PUBLISHED: Final = ("rq", "dramatiq", "arq", "celery")
PATHS: Final = ("rq/later", *(f"celery/{each}" for each in ("wait", "late", "failed", "many", "revoke", "unknown")))


@contextmanager
def _a_worker(place: Workplace, url: str) -> Iterator[None]:
    """Run a Celery worker that nobody records."""
    words = [str(place.python), "-m", "celery", "-A", "jobs", "worker", "--pool", "solo"]
    environ = {**place.environ, "REDIS_URL": url, "SPANREPLAY_ENABLED": "false"}
    worker = subprocess.Popen(words, cwd=place.path, env=environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(timeout=TIMEOUT_S)


def test_p4_requests_that_publish_jobs_and_read_results_replay_alone(provider: Provider, tmp_path: Path) -> None:
    """Ids and times that the workers' packages make for a request are as recorded; no broker and no worker is asked."""
    place = prepare(tmp_path, provider, APP)
    place.write("jobs.py", JOBS)
    with a_redis(tmp_path) as port:
        environ = {"REDIS_URL": f"redis://127.0.0.1:{port}"}
        with _a_worker(place, environ["REDIS_URL"]), serve(place, command=COMMAND, **environ) as server:

            def ask(path: str) -> dict[str, object]:
                answer = httpx.get(f"{server.url}/{path}", timeout=TIMEOUT_S)
                assert answer.status_code == 200, answer.text
                found: dict[str, object] = answer.json()
                return found

            ids = {path: ask(path)["id"] for path in PUBLISHED}
            fetched = [f"{each}/{ids[each]}" for each in ("rq", "arq", "celery")]
            answers = {path: ask(path) for path in (*PATHS, *fetched)}
            server.await_ends()
            server.stop()
    assert answers["celery/wait"]["value"] == 5
    assert answers["celery/many"] == {"sums": [0, 2, 4], "chained": 7, "total": 3}
    assert answers["celery/failed"]["state"] == "FAILURE"
    assert answers["celery/revoke"]["active"] is True
    units = server.units()
    assert len(units) == len(PUBLISHED) + len(answers)
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
    place.environ |= environ
    insist_identical(place, *COMMAND, units=units)
    place.write("app.py", APP.replace("jobs.add.delay(2, 3)", "jobs.add.delay(2, 4)"))
    waiting = next(unit for unit in units if any(call.name == "celery.get_result" for call in unit.calls))
    changed = place.replay(*COMMAND, source=waiting.run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes() == [("changed_call", "tool:celery.send_task")]


IN_FILES: Final = """
import os

from celery import Celery

app = Celery("jobs", broker="filesystem://", backend=os.environ["BACKEND"])
folder = os.environ["QUEUE"]
app.conf.broker_transport_options = {
    "data_folder_in": folder, "data_folder_out": folder, "control_folder": f"{folder}-control"
}

@app.task
def add(a, b):
    return a + b
"""
WAITING: Final = """
import time

import jobs
from fastapi import FastAPI

app = FastAPI()

@app.get("/")
def wait():
    result = jobs.add.delay(1, 2)
    value = result.get(timeout=60)
    later = jobs.add.delay(3, value)
    while not later.ready():
        time.sleep(0.05)
    return {"value": value, "at": str(result.date_done), "later": later.result}
"""


@pytest.mark.parametrize(
    "backend", ["file://FOLDER/results", "db+sqlite:///FOLDER/results.db"], ids=["files", "database"]
)
def test_p4_results_in_another_store_are_the_request_s_too(backend: str, provider: Provider, tmp_path: Path) -> None:
    """Files or a database: what is prepared there on first use belongs to no request."""
    (tmp_path / "app").mkdir()
    place = prepare(tmp_path / "app", provider, WAITING)
    place.write("jobs.py", IN_FILES)
    for folder in ("results", "queue"):
        (tmp_path / folder).mkdir()
    place.environ |= {"BACKEND": backend.replace("FOLDER", str(tmp_path)), "QUEUE": str(tmp_path / "queue")}
    with _a_worker(place, ""), serve(place, command=COMMAND) as server:
        answers = [httpx.get(server.url, timeout=TIMEOUT_S).json() for _ in range(2)]
        server.await_ends()
        server.stop()
    assert [(each["value"], each["later"]) for each in answers] == [(3, 6)] * 2
    for unit in server.units():
        assert unit.completeness().is_complete, unit.completeness().reasons
    insist_identical(place, *COMMAND, units=server.units(), options=("--warm", "0"))


DRAWING: Final = """
import time

from flask import Flask, jsonify
from werkzeug.security import generate_password_hash

app = Flask(__name__)

@app.get("/")
def register():
    answer = jsonify(stored=generate_password_hash("secret", "pbkdf2:sha256:1"), at=time.time())
    answer.set_cookie("session", "known", max_age=3600)
    return answer
"""


@pytest.mark.parametrize("command", [("-m", "flask", "run"), ("-m", "waitress")], ids=["flask", "waitress"])
def test_p4_what_a_server_s_package_draws_for_the_application_is_as_recorded(
    command: tuple[str, ...], provider: Provider, tmp_path: Path
) -> None:
    """A salt of a password and the end of a cookie, made by functions of werkzeug that the application calls."""
    place = prepare(tmp_path, provider, DRAWING)
    at = "--port {port}" if "flask" in command else "--listen 127.0.0.1:{port} app:app"
    with serve(place, command=command, at=at) as server:
        answers = [httpx.get(server.url, timeout=TIMEOUT_S) for _ in range(2)]
        server.await_ends()
        server.stop()
    assert answers[0].json()["stored"] != answers[1].json()["stored"]
    insist_identical(place, *command, *at.format(port=server.port).split(), units=server.units())
