"""APScheduler jobs: each execution is a separate run, and replays by itself with the provider stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import COMMAND, FLASK, await_true, prepare, serve
from support.workers import APSCHEDULER_APP, input_of, output_of, record_until, units_of

SERVED: Final = """
import os, threading
from contextlib import asynccontextmanager
from datetime import timezone

from apscheduler.schedulers.background import BackgroundScheduler
import httpx
from fastapi import FastAPI

def ask(text):
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": text}]}
    answered = httpx.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body, timeout=None)
    return answered.json()["choices"][0]["message"]["content"]

scheduler = BackgroundScheduler(timezone=timezone.utc)
refreshed = threading.Event()

def refresh(number):
    told = ask(f"refresh {number}")
    refreshed.set()
    return told

@asynccontextmanager
async def lifespan(app):
    scheduler.add_job(refresh, args=[0], misfire_grace_time=None)
    scheduler.start()
    app.state.warm = ask("warm up")
    refreshed.wait()
    yield

app = FastAPI(lifespan=lifespan)

@app.get("/")
def answer():
    scheduler.add_job(refresh, args=[1], misfire_grace_time=None)
    return {"answer": ask("hello"), "warm": app.state.warm}
"""

BESIDE_WSGI: Final = f"""{FLASK}
from datetime import timezone

from apscheduler.schedulers.background import BackgroundScheduler

scheduler = BackgroundScheduler(timezone=timezone.utc)
scheduler.start()

def refresh(number):
    return ask(ask(f"refresh {{number}}"))

@app.get("/")
def answer():
    scheduler.add_job(refresh, args=[1], misfire_grace_time=None)
    return {{"answer": ask("hello"), "at": time.time(), "id": uuid.uuid4().hex}}
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a program that schedules jobs."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("shop.py", APSCHEDULER_APP)
    return workplace


@pytest.mark.parametrize("kind", ["blocking", "background", "asyncio"])
@pytest.mark.sampled(2)
def test_p3_p4_each_scheduled_job_is_a_run_and_replays_alone(kind: str, provider: Provider, place: Workplace) -> None:
    """Concurrent jobs in a pool or on a loop, one failed, some added by others: each is whole, and replays alone."""
    record_until(place, 8 if kind == "asyncio" else 5, "shop.py", kind, status=-15)
    provider.stop()
    answers, notes = units_of(place, "answer"), units_of(place, "note")
    assert (len(answers), len(notes)) == (3, 2)
    awaited = units_of(place, "answer_async")
    for unit in [*answers, *awaited]:
        assert unit.completeness().is_complete, unit.completeness().reasons
        given = input_of(unit)
        (number,) = given["args"]
        assert given["kwargs"] == {"user": f"user-{number}"}
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request for call in models)
    (failed,) = [unit for unit in answers if unit.root.outcome == "error"]
    assert output_of(failed) == {"raised": {"type": "builtins.KeyError", "message": "2"}}
    for unit in {"blocking": [failed], "background": [answers[0]]}.get(kind, [*answers[:1], *awaited[:1]]):
        replayed = place.replay("shop.py", kind, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p4_a_changed_job_is_named_and_one_that_is_gone_stops_the_replay(provider: Provider, place: Workplace) -> None:
    """A changed result has one cause; a function that no longer exists gives one line and status 1."""
    record_until(place, 5, "shop.py", "blocking", status=-15)
    provider.stop()
    unit = units_of(place, "note")[0]
    place.write("shop.py", APSCHEDULER_APP.replace('f"noted {number}"', 'f"Noted {number}"'))
    assert place.replay("shop.py", "blocking", source=unit.run_id).causes() == [("changed_call", "compute:output")]
    place.write("shop.py", APSCHEDULER_APP.replace("def note(", "def renamed("))
    gone = place.replay("shop.py", "blocking", source=unit.run_id)
    assert gone.status == 1
    assert "the job 'note' is not here any more" in gone.stderr


def test_p3_p4_a_scheduler_of_a_server_leaves_its_requests_as_they_are(provider: Provider, tmp_path: Path) -> None:
    """A job before the first request belongs to the start; a later one is a run, as is the request. Both replay."""
    place = prepare(tmp_path, provider, SERVED)
    with serve(place) as server:
        assert httpx.get(server.url, timeout=TIMEOUT_S).status_code == 200
        await_true(lambda: sum(bool(unit.root.manifest) for unit in server.units()) == 2)
        server.stop()
    provider.stop()
    units = units_of(place)
    assert sorted(unit.root.app for unit in units) == ["app:app", "refresh"]
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p3_p4_a_scheduler_beside_a_wsgi_server_has_jobs_that_are_runs(provider: Provider, tmp_path: Path) -> None:
    """A request schedules a job in the scheduler's thread: both are runs, and each replays alone."""
    place = prepare(tmp_path, provider, BESIDE_WSGI)
    with serve(place, command=("-m", "flask", "run")) as server:
        assert httpx.get(server.url, timeout=TIMEOUT_S).status_code == 200
        await_true(lambda: sum(bool(unit.root.manifest) for unit in server.units()) == 2)
        server.stop()
    provider.stop()
    job, request = sorted(units_of(place), key=lambda unit: unit.root.app != "refresh")
    assert (job.root.app, [call.kind for call in job.calls]) == ("refresh", ["compute", "llm", "llm", "compute"])
    for unit in (job, request):
        replayed = place.replay("-m", "flask", "run", source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


WORK: Final = """
import os, signal, time, uuid

import httpx

def ask(text):
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": text}]}
    answered = httpx.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body, timeout=None)
    return answered.json()["choices"][0]["message"]["content"]

def answer(number, *, user):
    first = ask(f"question-{number} of {user}")
    if number == 2:
        raise KeyError(number)
    return {"answer": first, "again": ask(f"question-{number} again"), "at": time.time(), "id": str(uuid.uuid4())}

def die():
    ask("last words")
    os.kill(os.getpid(), signal.SIGKILL)
"""
POOLED: Final = """
import multiprocessing, sys
from datetime import timezone

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.schedulers.blocking import BlockingScheduler

import work

def count(event):
    ended.append(event)
    if len(ended) == 4:
        scheduler.add_job(work.die, misfire_grace_time=None)
        scheduler.add_job(stop, executor="threads", misfire_grace_time=None)

def stop():
    for child in multiprocessing.active_children():
        child.join()
    scheduler.shutdown(wait=False)

if __name__ == "__main__":
    ended = []
    kept = {"mp_context": multiprocessing.get_context(sys.argv[1])}
    executors = {"default": ProcessPoolExecutor(2, kept), "threads": ThreadPoolExecutor(1)}
    scheduler = BlockingScheduler(timezone=timezone.utc, executors=executors)
    scheduler.add_listener(count, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
    work.ask("warm up")
    for number in range(4):
        scheduler.add_job(work.answer, args=[number], kwargs={"user": f"user-{number}"}, misfire_grace_time=None)
    scheduler.start()
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.sampled(1)
def test_p3_p4_a_job_in_a_pool_of_processes_is_a_run_and_replays_alone(
    method: str, provider: Provider, place: Workplace
) -> None:
    """Jobs of two processes, one failed, are whole even though a later one kills its process; they replay in one."""
    place.write("work.py", WORK)
    place.write("pooled.py", POOLED)
    place.record("pooled.py", method)
    provider.stop()
    answers, (dead,) = units_of(place, "answer"), units_of(place, "die")
    assert len(answers) == 4
    for unit in answers:
        assert unit.completeness().is_complete, unit.completeness().reasons
        (number,) = input_of(unit)["args"]
        models = [call for call in unit.calls if call.kind == "llm"]
        assert len(models) == (1 if number == 2 else 2)
        assert all(f"question-{number} " in call.request for call in models)
    (failed,) = [unit for unit in answers if unit.root.outcome == "error"]
    assert output_of(failed) == {"raised": {"type": "builtins.KeyError", "message": "2"}}
    assert not dead.completeness().is_complete
    for unit in (failed, next(unit for unit in answers if unit is not failed)):
        replayed = place.replay("pooled.py", method, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_n3_a_job_of_a_process_with_values_of_its_own_is_incomplete(provider: Provider, place: Workplace) -> None:
    """A process of the pool imports the modules again and reads the clock there: no replay has that value."""
    place.write("work.py", WORK + "\nSTARTED = time.time()\n")
    place.write("pooled.py", POOLED)
    place.record("pooled.py", "spawn")
    provider.stop()
    unit = units_of(place, "answer")[0]
    assert [reason.partition(" made ")[0] for reason in unit.completeness().reasons] == ["a worker's process"]
    assert place.replay("pooled.py", "spawn", source=unit.run_id).verdict["verdict"] == "incomplete"


POLLER: Final = """
import threading
from apscheduler.schedulers.background import BackgroundScheduler

class Poller:
    def __init__(self):
        self.has_polled, self.seen = threading.Event(), []
        self.scheduler = BackgroundScheduler()
        self.scheduler.add_job(self.poll, args=["a flag"], misfire_grace_time=None)
        self.scheduler.start()

    def poll(self, what):
        self.seen.append(what)
        self.has_polled.set()
"""
BOT: Final = """
import sys, threading
from apscheduler.schedulers.background import BackgroundScheduler
from groq import Groq
from poller import Poller

done = threading.Semaphore(0)

class Bot:
    def __init__(self, name):
        self.name, self.client = name, Groq()

    def ask(self, text):
        made = self.client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
        done.release()
        return {"by": self.name, "reply": made.choices[0].message.content}

poller = Poller()
poller.has_polled.wait()
if "alone" in sys.argv:
    print(Bot("alone").ask(poller.seen[0]))
else:
    scheduler = BackgroundScheduler()
    for name in ("first", "second"):
        scheduler.add_job(Bot(name).ask, args=[f"of the {name}"], misfire_grace_time=None)
    scheduler.start()
    for _ in range(2):
        done.acquire()
    scheduler.shutdown()
"""


def test_p3_p4_methods_of_the_agents_objects_are_jobs_and_what_a_library_schedules_is_not(
    provider: Provider, tmp_path: Path
) -> None:
    """A library that polls with APScheduler leaves a script one run; of two jobs of one method, each has its object."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "poller.py").write_text(POLLER)
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production", "PYTHONPATH": str(packages)})
    place.write("bot.py", BOT)
    place.record("bot.py", "alone")
    (alone,) = place.recordings()
    assert [call.kind for call in alone.calls if call.kind in ("llm", "compute")] == ["llm"]
    assert place.replay("bot.py", "alone", source=alone.run_id).status == 0
    place.record("bot.py")
    provider.stop()
    units = units_of(place)
    assert [unit.root.app for unit in units] == ["Bot.ask", "Bot.ask"]
    assert {output_of(unit)["result"]["by"] for unit in units} == {"first", "second"}
    for unit in units:
        replayed = place.replay("bot.py", source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
