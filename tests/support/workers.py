"""Workers recorded by the tests, and the runs of their tasks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Final

from spanreplay import codec
from spanreplay.model.call import Recording
from support.replaying import TIMEOUT_S, Workplace
from support.units import await_true

CELERY_APP: Final = """
import os, random, time, uuid
from pathlib import Path

from celery import Celery
from groq import Groq

RESULTS = Path("results").absolute()
RESULTS.mkdir(exist_ok=True)
app = Celery("shop", broker="redis://127.0.0.1:PORT", backend=f"file://{RESULTS}")
app.conf.worker_enable_remote_control = False
app.conf.broker_connection_retry_on_startup = True
STARTED, SEED = time.time(), random.random()

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

WARM = ask("warm up")

@app.task(bind=True, max_retries=2)
def answer(self, number, user):
    first = ask(f"question-{number} of {user}")
    if number == 3 and self.request.retries == 0:
        raise self.retry(countdown=0)
    if number == 4:
        raise KeyError(number)
    told = note.delay(number, first)
    return {"answer": first, "again": ask(f"question-{number} again"), "told": told.id, "warm": WARM,
            "seed": SEED, "started": STARTED, "at": time.time(), "id": str(uuid.uuid4()), "own": self.request.id}

@app.task
def note(number, text):
    return f"noted {number}"
"""

RQ_APP: Final = """
import time, uuid

from groq import Groq
from redis import Redis
from rq import Queue, get_current_job

STARTED = time.time()

def queue():
    return Queue("jobs", connection=Redis(port=PORT))

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

def answer(number, user):
    first = ask(f"question-{number} of {user}")
    if number == 4:
        raise KeyError(number)
    told = queue().enqueue(note, number, first)
    return {"answer": first, "again": ask(f"question-{number} again"), "told": told.id, "started": STARTED,
            "at": time.time(), "id": str(uuid.uuid4()), "own": get_current_job().id}

def note(number, text):
    return f"noted {number}"
"""

ARQ_APP: Final = """
import asyncio, random, time, uuid

from arq import Retry, cron
from arq.connections import RedisSettings
from groq import AsyncGroq

STARTED = time.time()

async def ask(text):
    made = await AsyncGroq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

async def answer(ctx, number, user):
    first, again = await asyncio.gather(ask(f"question-{number} of {user}"), ask(f"question-{number} again"))
    if number == 3 and ctx["job_try"] == 1:
        raise Retry(defer=0)
    if number == 4:
        raise KeyError(number)
    told = await ctx["redis"].enqueue_job("note", number, text=first, _defer_by=0.01)
    return {"answer": first, "again": again, "told": told.job_id, "started": STARTED, "warm": ctx["warm"],
            "opened": ctx["opened"], "at": time.time(), "id": str(uuid.uuid4()), "own": ctx["job_id"]}

async def note(ctx, number, text):
    return f"noted {number}"

async def start(ctx):
    ctx["warm"] = await ask("warm up")

async def open_job(ctx):
    ctx["opened"] = "opened"

class Worker:
    functions = [answer, note]
    on_startup = start
    on_job_start = open_job
    redis_settings = RedisSettings(port=PORT)
    poll_delay = 0.05
"""

ASKING: Final = """
import os, random, time, uuid

import httpx

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"

def make_body(text):
    return {"model": "gpt-x", "messages": [{"role": "user", "content": text}]}

def ask(text):
    return httpx.post(URL, json=make_body(text), timeout=None).json()["choices"][0]["message"]["content"]

async def think(text):
    async with httpx.AsyncClient(timeout=None) as client:
        return (await client.post(URL, json=make_body(text))).json()["choices"][0]["message"]["content"]
"""

DRAMATIQ_APP: Final = (
    ASKING
    + """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.errors import Retry
from dramatiq.middleware import AsyncIO, CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

broker = RedisBroker(port=PORT)
broker.add_middleware(Results(backend=RedisBackend(port=PORT)))
broker.add_middleware(CurrentMessage())
broker.add_middleware(AsyncIO())
dramatiq.set_broker(broker)
STARTED, SEED = time.time(), random.random()

WARM = ask("warm up")

@dramatiq.actor(store_results=True, max_retries=1, min_backoff=1, max_backoff=2)
def answer(number, user):
    own = CurrentMessage.get_current_message()
    first = ask(f"question-{number} of {user}")
    if number == 3 and not own.options.get("retries"):
        raise Retry("once more", delay=1)
    if number == 4:
        raise KeyError(number)
    told = note.send_with_options(args=(number,), kwargs={"text": first}, delay=1)
    return {"answer": first, "again": ask(f"question-{number} again"), "told": told.message_id, "warm": WARM,
            "seed": SEED, "started": STARTED, "at": time.time(), "id": str(uuid.uuid4()), "own": own.message_id}

@dramatiq.actor
async def note(number, text):
    assert await think(text)
"""
)

HUEY_APP: Final = (
    ASKING
    + """
from huey import RedisHuey

huey = RedisHuey("shop", port=PORT)
STARTED, SEED = time.time(), random.random()
WARM = ask("warm up")

@huey.task(retries=1, context=True)
def answer(number, user, task=None):
    first = ask(f"question-{number} of {user}")
    if number == 3:
        raise KeyError(number)
    told = note(number, text=first)
    return {"answer": first, "again": ask(f"question-{number} again"), "told": told.id, "warm": WARM,
            "seed": SEED, "started": STARTED, "at": time.time(), "id": str(uuid.uuid4()), "own": task.id}

@huey.task()
def note(number, text):
    return f"noted {number}"
"""
)

APSCHEDULER_APP: Final = (
    ASKING
    + """
import asyncio, sys
from datetime import timezone

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler

STARTED, SEED = time.time(), random.random()

def answer(number, *, user):
    first = ask(f"question-{number} of {user}")
    if number == 2:
        raise KeyError(number)
    told = scheduler.add_job(note, args=[number, first], misfire_grace_time=None)
    return {"answer": first, "again": ask(f"question-{number} again"), "told": told.id, "warm": WARM,
            "seed": SEED, "started": STARTED, "at": time.time(), "id": str(uuid.uuid4())}

async def answer_async(number, *, user):
    first, again = await asyncio.gather(think(f"question-{number} of {user}"), think(f"question-{number} again"))
    return {"answer": first, "again": again, "warm": WARM, "at": time.time()}

def note(number, text):
    return f"noted {number}"

def add_jobs(functions):
    for number in range(3):
        for function in functions:
            scheduler.add_job(function, args=[number], kwargs={"user": f"user-{number}"}, misfire_grace_time=None)

WARM = ask("warm up")

async def serve():
    scheduler.start()
    add_jobs([answer, answer_async])
    await asyncio.Event().wait()

kind = sys.argv[1]
if kind == "asyncio":
    scheduler = AsyncIOScheduler(timezone=timezone.utc)
    asyncio.run(serve())
elif kind == "background":
    scheduler = BackgroundScheduler(timezone=timezone.utc)
    scheduler.start()
    add_jobs([answer])
    LATE = ask("after the start")
    while True:
        time.sleep(1)
else:
    scheduler = BlockingScheduler(timezone=timezone.utc)
    add_jobs([answer])
    scheduler.start()
"""
)


def record_until(place: Workplace, units: int, *command: str, status: int = 0) -> None:
    """Record a worker until `units` units are complete, then ask it to stop."""
    process = place.spawn([str(place.python), *command])

    def are_here() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return sum(each.completeness().is_complete for each in units_of(place)) >= units

    try:
        await_true(are_here)
    finally:
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == status, stderr


def kill_under_way(place: Workplace, ended: int, *command: str) -> tuple[Recording, list[Recording]]:
    """Kill a recorded worker when `ended` units have ended and one has not; return that one, and the others.

    Asserts that the others are whole, and that the one is not.
    """
    process = place.spawn([str(place.python), *command])

    def is_waiting() -> bool:
        assert process.poll() is None, process.communicate()[1]
        units = units_of(place)
        return len(units) > ended and sum(bool(unit.root.manifest) for unit in units) >= ended

    try:
        await_true(is_waiting)
    finally:
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        for pid in (process.pid, *children):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
    units = units_of(place)
    (cut,) = [unit for unit in units if not unit.root.manifest]
    assert not cut.completeness().is_complete
    others = [unit for unit in units if unit is not cut]
    assert all(unit.completeness().is_complete for unit in others)
    return cut, others


def units_of(workplace: Workplace, name: str = "") -> list[Recording]:
    """Return the runs of tasks, oldest first."""
    found = [each for each in workplace.recordings() if "unit" in each.root.env]
    return [each for each in found if not name or each.root.app == name]


def input_of(unit: Recording) -> dict[str, Any]:
    """Return a task's input."""
    value: dict[str, Any] = codec.decode(json.loads(unit.calls[0].response)["value"])
    return value


def output_of(unit: Recording) -> dict[str, Any]:
    """Return a task's output."""
    (found,) = [call for call in unit.calls if call.boundary == "compute:output"]
    arguments: dict[str, Any] = json.loads(found.request)["arguments"]
    return arguments
