"""The agent that `bench.levels` measures: it repeats each of several works and reports the cost of one repetition.

It runs as a separate program, plain or recorded: `python level_works.py DATA_FILE`. DATA_FILE is outside of the code;
OPENAI_BASE_URL is the model's URL. Prints one JSON object: name → µs of CPU.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import json
import os
import queue
import random
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import openai

import spanreplay

REPEATS = 7
DATA = Path(sys.argv[1])
CODE = Path(__file__)
EXCHANGES = 500
REQUESTS = 20


@spanreplay.boundary("tool", name="warm", effect="read")
def warm(number: int) -> int:
    """Make the first call: it starts a run, and with it the bookkeeping and the instrumentation of event loops."""
    return number


def best(work: Callable[[int], Any], times: int) -> float:
    """Return the CPU µs of one repetition, from the best repeat."""
    found = []
    for _ in range(REPEATS):
        gc.collect(0)
        start = time.process_time_ns()
        work(times)
        found.append((time.process_time_ns() - start) / times / 1000)
    return min(found)


async def ping_pong(times: int) -> None:
    """Let two tasks pass a number to each other through queues."""
    there: asyncio.Queue[int] = asyncio.Queue()
    back: asyncio.Queue[int] = asyncio.Queue()

    async def answer() -> None:
        for _ in range(times):
            await back.put(await there.get())

    task = asyncio.create_task(answer())
    for number in range(times):
        await there.put(number)
        await back.get()
    await task


def run_loop(work: Callable[[int], Coroutine[Any, Any, None]], times: int) -> float:
    """Like `best` for a coroutine, in an event loop in which a call has ended; starting the loop isn't measured."""

    async def main() -> float:
        warm(1)
        await asyncio.sleep(0)
        found = []
        for _ in range(REPEATS):
            start = time.process_time_ns()
            await work(times)
            found.append((time.process_time_ns() - start) / times / 1000)
        return min(found)

    return asyncio.run(main())


async def sleep_nothing(times: int) -> None:
    """Wait for timers that fire immediately."""
    for _ in range(times):
        await asyncio.sleep(0.000001)


async def make_tasks(times: int) -> None:
    """Create and await tasks that do nothing."""
    for _ in range(times):
        await asyncio.create_task(asyncio.sleep(0))


def take_lock(times: int) -> None:
    """Take an uncontended lock."""
    lock = threading.Lock()
    for _ in range(times):
        with lock:
            pass


def use_queue(times: int) -> None:
    """Put and get one item."""
    items: queue.Queue[int] = queue.Queue()
    for number in range(times):
        items.put(number)
        items.get()


def wait_for_event(times: int) -> None:
    """Wait, with a timeout, for an event that is already set."""
    event = threading.Event()
    event.set()
    for _ in range(times):
        event.wait(1)


def read_time(times: int) -> None:
    for _ in range(times):
        time.time()


def read_monotonic(times: int) -> None:
    for _ in range(times):
        time.monotonic()


def read_date(times: int) -> None:
    for _ in range(times):
        dt.datetime.now()


def draw(times: int) -> None:
    for _ in range(times):
        random.random()  # noqa: S311 -- no key


def make_uuid(times: int) -> None:
    for _ in range(times):
        uuid.uuid4()


def look_at_data(times: int) -> None:
    path = str(DATA)
    for _ in range(times):
        os.path.exists(path)  # noqa: PTH110 -- what is measured


def look_at_code(times: int) -> None:
    path = str(CODE)
    for _ in range(times):
        os.path.exists(path)  # noqa: PTH110 -- what is measured


def read_data(times: int) -> None:
    path = str(DATA)
    for _ in range(times):
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123 -- what is measured
            stream.read()


def read_code(times: int) -> None:
    path = str(CODE)
    for _ in range(times):
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123 -- what is measured
            stream.read()


def read_variable(times: int) -> None:
    for _ in range(times):
        os.environ.get("HOME")


def insert(times: int) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("create table notes (number)")
    for number in range(times):
        database.execute("insert into notes values (?)", (number,))
    database.close()


def ask_by_httpx(client: httpx.Client, times: int) -> None:
    """Make one model call."""
    for number in range(times):
        body = {"model": "gpt-x", "messages": [{"role": "user", "content": f"question {number}"}]}
        client.post("chat/completions", json=body).json()


def serve(client: openai.OpenAI, times: int) -> None:
    """Handle a service's request: two model calls through the SDK, and some JSON."""
    for number in range(times):
        asked = json.loads(json.dumps({"number": number, "texts": ["order", "invoice"] * 20}))
        for text in asked["texts"][:2]:
            messages: Any = [{"role": "user", "content": f"{text} {number}"}]
            completion = client.chat.completions.create(model="gpt-x", messages=messages)
            json.dumps({"answer": completion.choices[0].message.content})


def serve_unit(client: openai.OpenAI, times: int) -> None:
    """Handle a request that is a run of its own, as each request to a recorded server is."""
    for number in range(times):
        with spanreplay.run(name="request", input={"number": number}) as unit:
            serve(client, 1)
            unit.result({"number": number})


def main() -> None:
    """Measure everything once."""
    warm(0)
    thread = threading.Thread(target=warm, args=(2,))  # from now on there are several threads
    thread.start()
    thread.join()
    found = {
        "asyncio ping-pong": run_loop(ping_pong, EXCHANGES),
        "asyncio.sleep": run_loop(sleep_nothing, 200),
        "asyncio.create_task": run_loop(make_tasks, 200),
        "Lock": best(take_lock, 5000),
        "Queue put and get": best(use_queue, 2000),
        "Event.wait": best(wait_for_event, 2000),
        "time.time": best(read_time, 3000),
        "time.monotonic": best(read_monotonic, 3000),
        "datetime.now": best(read_date, 3000),
        "random.random": best(draw, 3000),
        "uuid.uuid4": best(make_uuid, 1000),
        "os.environ.get": best(read_variable, 3000),
        "os.path.exists, data": best(look_at_data, 200),
        "os.path.exists, code": best(look_at_code, 1000),
        "file read, data": best(read_data, 200),
        "file read, code": best(read_code, 500),
        "sqlite insert": best(insert, 200),
    }
    with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"]) as client:
        found["model call, httpx"] = best(lambda times: ask_by_httpx(client, times), REQUESTS)
    sdk = openai.OpenAI(api_key="sk-bench")
    found["request with two model calls"] = best(lambda times: serve(sdk, times), REQUESTS)
    found["unit with two model calls"] = best(lambda times: serve_unit(sdk, times), REQUESTS)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
