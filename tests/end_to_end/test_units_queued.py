"""Requests that queue their text and wait: a task or a thread of the process calls the model for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.sampling import sampled
from support.suites import replay_suite
from support.units import COMMAND, Server, path_of, prepare, response_of, serve

THREAD: Final = """
import queue, threading, time, uuid
from concurrent.futures import Future

from fastapi import FastAPI
from groq import Groq

app, jobs, client = FastAPI(), queue.Queue(), Groq()

def work():
    while True:
        text, reply = jobs.get()
        job = uuid.uuid4().hex
        made = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
        said = made.choices[0].message.content
        reply.set_result({"job": job, "said": said, "at": time.time(), "id": uuid.uuid4().hex})

threading.Thread(target=work, daemon=True).start()

@app.post("/ask/{text}")
def ask(text: str):
    reply = Future()
    jobs.put((text, reply))
    return reply.result()
"""
LIFESPAN: Final = """
import asyncio, time, uuid
from contextlib import asynccontextmanager

from fastapi import FastAPI
from groq import AsyncGroq

client = AsyncGroq()

@asynccontextmanager
async def lifespan(app):
    app.state.jobs = asyncio.Queue()
    task = asyncio.create_task(work(app.state.jobs))
    yield
    task.cancel()

app = FastAPI(lifespan=lifespan)

@app.post("/ask/{text}")
async def ask(text: str):
    reply = asyncio.get_running_loop().create_future()
    await app.state.jobs.put((text, reply))
    return await reply
"""
TASK: Final = f"""{LIFESPAN}
async def work(jobs):
    while True:
        text, reply = await jobs.get()
        job = uuid.uuid4().hex
        made = await client.chat.completions.create(model="gpt-x", messages=[{{"role": "user", "content": text}}])
        said = made.choices[0].message.content
        reply.set_result({{"job": job, "said": said, "at": time.time(), "id": uuid.uuid4().hex}})
"""
A_TASK_EACH: Final = f"""{LIFESPAN}
async def answer(text, reply):
    made = await client.chat.completions.create(model="gpt-x", messages=[{{"role": "user", "content": text}}])
    reply.set_result({{"said": made.choices[0].message.content, "at": time.time(), "id": uuid.uuid4().hex}})

async def work(jobs):
    tasks = set()
    while True:
        tasks.add(asyncio.create_task(answer(*await jobs.get())))
"""
STREAM: Final = """
import queue, threading

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from groq import Groq

app, jobs, client = FastAPI(), queue.Queue(), Groq()

def work():
    while True:
        text, parts = jobs.get()
        messages = [{"role": "user", "content": text}]
        for each in client.chat.completions.create(model="gpt-x", messages=messages, stream=True):
            if each.choices and each.choices[0].delta.content:
                parts.put(each.choices[0].delta.content)
        parts.put(None)

threading.Thread(target=work, daemon=True).start()

@app.post("/ask/{text}")
def ask(text: str):
    parts = queue.Queue()
    jobs.put((text, parts))
    return StreamingResponse(iter(parts.get, None), media_type="text/plain")
"""
LAZY_THREAD: Final = (
    THREAD.replace("threading.Thread(target=work, daemon=True).start()\n", "")
    .replace("        job = uuid.uuid4().hex\n", "")
    .replace('"job": job, ', "")
    .replace("    reply = Future()", "    begin()\n    reply = Future()")
    + """
import functools

@functools.lru_cache
def begin():
    threading.Thread(target=work, daemon=True).start()
"""
)
LAZY_TASK: Final = """
import asyncio, time, uuid

from fastapi import FastAPI
from groq import AsyncGroq

app, client = FastAPI(), AsyncGroq()

class Batcher:
    task = None

    async def ask(self, text):
        if self.task is None:
            self.jobs = asyncio.Queue()
            self.task = asyncio.create_task(self.work())
        reply = asyncio.get_running_loop().create_future()
        await self.jobs.put((text, reply))
        return await reply

    async def work(self):
        while True:
            text, reply = await self.jobs.get()
            made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
            said = made.choices[0].message.content
            reply.set_result({"said": said, "at": time.time(), "id": uuid.uuid4().hex})

batcher = Batcher()

@app.post("/ask/{text}")
async def ask(text: str):
    return await batcher.ask(text)
"""
SHARED: Final = f"""{LIFESPAN}
async def work(jobs):
    while True:
        batch = [await jobs.get()]
        WAIT
        text = " and ".join(sorted(text for text, _ in batch))
        made = await client.chat.completions.create(model="gpt-x", messages=[{{"role": "user", "content": text}}])
        for _, reply in batch:
            reply.set_result(made.choices[0].message.content)
"""
WAITS: Final = {
    "for a while": """await asyncio.sleep(1)
        while not jobs.empty():
            batch.append(jobs.get_nowait())""",
    "for two": "batch.append(await jobs.get())",
}
ALONE: Final = ("/ask/one", "/ask/five")
SHAPES: Final = {"thread": THREAD, "task": TASK, "a task each": A_TASK_EACH, "a stream": STREAM}


def _ask(server: Server, *texts: str) -> None:
    """Send all requests at the same time."""
    with ThreadPoolExecutor(len(texts)) as pool:
        for answer in pool.map(lambda text: httpx.post(f"{server.url}/ask/{text}", timeout=TIMEOUT_S), texts):
            assert answer.status_code == 200


def _record(provider: Provider, place: Workplace, level: str = "calls") -> dict[str, Recording]:
    with serve(place, SPANREPLAY_LEVEL=level) as server:
        _ask(server, "one")
        _ask(server, "two", "three", "four")
        _ask(server, "five")
        server.await_ends()
        server.stop()
    provider.stop()
    return {path_of(unit): unit for unit in server.units()}


@pytest.mark.parametrize(
    ("shape", "level"), [*((shape, "calls") for shape in SHAPES), ("thread", "full"), ("task", "full")]
)
@pytest.mark.sampled(3)
def test_p2_p4_what_is_done_beside_a_request_is_served_to_its_replay(
    shape: str, level: str, provider: Provider, tmp_path: Path
) -> None:
    """Answers, ids and times that a task of the process got for a request are served, for that request alone.

    Values drawn before the task made a call for one of several requests belong to none of them.
    """
    place = prepare(tmp_path, provider, SHAPES[shape])
    units = _record(provider, place, level)
    assert len(units) == 5
    assert all(path.removeprefix("/ask/") in response_of(unit)["body"]["text"] for path, unit in units.items())
    for path in ("/ask/one", "/ask/three", "/ask/five"):
        unit = units[path]
        replayed = place.replay(*COMMAND, source=unit.run_id)
        if path in ALONE or "job" not in SHAPES[shape]:
            assert replayed.verdict["verdict"] == "identical", replayed.stderr
            assert replayed.verdict["counts"]["beside"] == 1
        else:
            assert replayed.status in {0, 4}, replayed.stderr


@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.sampled(1)
def test_p4_a_unit_that_waits_for_work_that_others_share_is_incomplete(
    waits: str, provider: Provider, tmp_path: Path
) -> None:
    """One call for two requests can't be made for one: nothing has changed, and the verdict names the call."""
    place = prepare(tmp_path, provider, SHARED.replace("WAIT", WAITS[waits]))
    with serve(place) as server:
        _ask(server, "one", "two")
        server.await_ends()
        server.stop()
    provider.stop()
    for unit in sampled(server.units(), 1):
        replayed = place.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 4, replayed.stderr
        (reason,) = replayed.verdict["reasons"]
        assert reason.startswith("the unit waits, perhaps for work beside it: llm:openai.chat.completions")


def test_p2_p4_a_suite_serves_what_is_done_beside_its_units(provider: Provider, tmp_path: Path) -> None:
    """This holds in a suite with one start of the application, too."""
    place = prepare(tmp_path, provider, TASK)
    _record(provider, place)
    suite = replay_suite(place, *COMMAND, options=("--app", "app:app"))
    assert suite.status in {0, 4}, suite.stderr
    assert suite.report["counts"]["identical"] >= len(ALONE) + 1  # the first of the concurrent requests
    assert suite.report["starts"] == 1


@pytest.mark.parametrize("shape", ["thread", "task"])
@pytest.mark.sampled(1)
def test_p4_work_that_an_earlier_request_started_is_there_with_that_request(
    shape: str, provider: Provider, tmp_path: Path
) -> None:
    """A thread or task started by the first request works for later ones too: `--warm all` replays those with it.

    Alone, a later one starts it itself: its calls get answers, but the unit is not called identical.
    """
    place = prepare(tmp_path, provider, {"thread": LAZY_THREAD, "task": LAZY_TASK}[shape])
    with serve(place) as server:
        for text in ("one", "two", "three"):
            _ask(server, text)
        server.await_ends()
        server.stop()
    provider.stop()
    first, *later = server.units()
    assert place.replay(*COMMAND, source=first.run_id).status == 0
    for unit in later:
        alone = place.replay(*COMMAND, source=unit.run_id)
        assert alone.status == 4, alone.stderr
        assert "an earlier unit had started" in alone.verdict["reasons"][0]
        assert "--warm all" in alone.verdict["reasons"][0]
        assert alone.verdict["divergences"] == [], "ids and times are as recorded"
        warm = place.replay(*COMMAND, source=unit.run_id, options=("--warm", "all"))
        assert warm.status == 0, warm.stderr
    found = place.replay(*COMMAND, source=later[-1].run_id, options=("--warm", "auto"))
    assert [each["run_id"] for each in found.verdict["warm_up"]["units"]] == [first.run_id], found.stderr


def test_p4_what_a_task_has_drawn_is_missed_until_it_is_written(provider: Provider, tmp_path: Path) -> None:
    """An id drawn after a task's call is written with the next call: until then the replay reports it as missing."""
    place = prepare(tmp_path, provider, TASK)
    with serve(place) as server:
        _ask(server, "one")
        server.await_ends()
        (unit,) = server.units()
        replayed = place.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 4, replayed.stderr
        (reason,) = replayed.verdict["reasons"]
        assert reason.endswith("is not written yet")
        _ask(server, "two")
        replayed = place.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        server.stop()


def test_p4_a_change_of_a_request_is_a_divergence_although_work_is_done_beside_it(
    provider: Provider, tmp_path: Path
) -> None:
    """The background task gets the recorded answer; the response that the request makes of it is compared."""
    place = prepare(tmp_path, provider, TASK)
    unit = _record(provider, place)["/ask/one"]
    place.write("app.py", TASK.replace("return await reply", "return {**await reply, 'more': 1}"))
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.causes() == [("changed_call", "http:response")], replayed.stderr
