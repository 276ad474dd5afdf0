"""Applications of task queues and message consumers that ask their model with httpx."""

from __future__ import annotations

import subprocess
from typing import Final

from support.replaying import TIMEOUT_S, Workplace
from support.workers import ASKING


def publish(place: Workplace, count: int) -> None:
    """Run the workplace's `publish.py`, which publishes that many jobs."""
    command = [str(place.python), "publish.py", str(count)]
    subprocess.run(command, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)


TASKIQ_APP: Final = (
    ASKING
    + """
import asyncio, threading

from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends, TaskiqEvents
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL_OF_REDIS = "redis://127.0.0.1:PORT"
broker = RedisStreamBroker(URL_OF_REDIS).with_result_backend(RedisAsyncResultBackend(URL_OF_REDIS))
broker.add_middlewares(SimpleRetryMiddleware())
STARTED = time.time()

@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def start(state):
    state.warm = await think("warm up")

@broker.task(retry_on_error=True, max_retries=2)
async def answer(number, user, context: Context = TaskiqDepends()):
    first, again = await asyncio.gather(think(f"question-{number} of {user}"), think(f"question-{number} again"))
    if number == 4:
        raise KeyError(number)
    told = await note.kicker().with_labels(depth=1).kiq(number, text=first)
    return {"answer": first, "again": again, "told": told.task_id, "started": STARTED, "warm": context.state.warm,
            "at": time.time(), "id": str(uuid.uuid4()), "own": context.message.task_id}

@broker.task
def note(number, text):
    noted = ask(f"question-{number} noted")
    if number == 5:
        threading.Event().wait()
    return noted
"""
)

FASTSTREAM_APP: Final = (
    ASKING
    + """
import asyncio, threading

from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

broker = RedisBroker("redis://127.0.0.1:PORT")
app = FastStream(broker)
STARTED, STATE = time.time(), {}

@app.on_startup
async def start():
    STATE["warm"] = await think("warm up")

@broker.subscriber(list="questions")
async def answer(body: dict):
    number = body["number"]
    first, again = await asyncio.gather(think(f"question-{number} asked"), think(f"question-{number} again"))
    if number == 2:
        raise KeyError(number)
    await broker.publish({"number": number, "text": first, "again": again}, stream="notes")

@broker.subscriber(stream=StreamSub("notes", group="all", consumer="one"))
@broker.publisher(list="done")
def note(body: dict):
    number = body["number"]
    noted = ask(f"question-{number} noted")
    if number == 4:
        threading.Event().wait()
    return {"noted": noted, "warm": STATE["warm"], "started": STARTED, "at": time.time(), "id": str(uuid.uuid4())}
"""
)

PROCRASTINATE_APP: Final = (
    ASKING
    + """
import asyncio, threading

from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=os.environ["DATABASE"]))
STARTED, WARM = time.time(), ask("warm up")

@app.task(name="answer", queue="jobs", retry=1, pass_context=True)
async def answer(context, number, user):
    first, again = await asyncio.gather(think(f"question-{number} of {user}"), think(f"question-{number} again"))
    if number == 2:
        raise KeyError(number)
    told = await note.configure(priority=1).defer_async(number=number, text=first)
    return {"answer": first, "again": again, "told": told, "started": STARTED, "warm": WARM, "at": time.time(),
            "id": str(uuid.uuid4()), "own": context.job.id}

@app.task(name="note", queue="jobs")
def note(number, text):
    noted = ask(f"question-{number} noted")
    if number == 3:
        threading.Event().wait()
    return noted
"""
)
