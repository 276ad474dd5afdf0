"""Applications of task queues and message consumers that ask their model with httpx."""

from __future__ import annotations

from typing import Final

from support.workers import ASKING

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
