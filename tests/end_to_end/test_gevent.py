"""Greenlets of gevent: their concurrent calls replay as recorded, in programs and in requests."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.sampling import IS_WHOLE, sampled
from support.units import FLASK, prepare, serve

pytest.importorskip("gevent")

COUNT: Final = 4
REPLAYS: Final = 3 if IS_WHOLE else 1
ASKING: Final = """
from gevent import monkey

monkey.patch_all()

import concurrent.futures, queue, random, threading, time

import gevent
from gevent.event import AsyncResult, Event
from gevent.lock import BoundedSemaphore
from gevent.pool import Group, Pool
from gevent.queue import Empty, JoinableQueue, Queue
from groq import Groq

client, seen = Groq(max_retries=0), []

def ask(text):
    messages = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model="gpt-x", messages=messages)
    seen.append(text)
    return answer.choices[0].message.content[:10]
"""
"""`seen` lists the questions in the order in which their answers came."""
MEETING: Final = """
def fails(text):
    ask(text)
    raise ValueError(text)

def poll(number):
    for turn in range(3):
        gevent.sleep(random.random() * 0.02)
        ask(f"poll {number}.{turn}")

jobs = [gevent.spawn(ask, "slow 1"), *(gevent.spawn(ask, f"spawned {n}") for n in range(3)), gevent.spawn(fails, "no")]
gevent.joinall(jobs)
print([job.value for job in jobs], repr(jobs[-1].exception))
print(list(Pool(2).imap_unordered(ask, ["slow 2", "b", "c", "d"])), Pool(3).map(ask, ["e", "slow 3", "f"]))
gevent.spawn_later(0.05, ask, "later").join()
gevent.joinall([gevent.spawn(poll, n) for n in range(3)])
print(len(list(gevent.iwait([gevent.spawn(ask, f"awaited {n}") for n in range(3)]))), seen)
"""
ENDING: Final = """
def limited(text, seconds):
    timeout = gevent.Timeout(seconds)
    timeout.start()
    try:
        ask(text)
    except gevent.Timeout as expired:
        print(text, expired is timeout, len(seen))
    finally:
        timeout.close()

killed, other = gevent.spawn(ask, "slow, killed"), gevent.spawn(ask, "other")
other.join()
killed.kill()
print(repr(killed.value), len(seen))
gevent.joinall([gevent.spawn(limited, *each) for each in (("slow 1", 0.1), ("2", 60), ("slow 3", 0.05))])
with gevent.Timeout(0.05, False):
    ask("slow 4")
print(gevent.with_timeout(0.05, ask, "slow 5", timeout_value="too late"), seen)
"""
WAITING: Final = """
items, results, semaphore, event, answer = Queue(), [], BoundedSemaphore(2), Event(), AsyncResult()

def take(number):
    while True:
        try:
            item = items.get(timeout=0.3)
        except Empty:
            results.append(number)
            return
        results.append((number, ask(item)))

def meet(number):
    with semaphore:
        results.append((number, ask(f"locked {number}")))
    event.wait()
    results.append((number, answer.get()))

def work(jobs):
    for job in jobs:
        ask(f"job {job}")
        jobs.task_done()

for number in range(6):
    items.put(f"item {number}" + (" slow" if number == 2 else ""))
gevent.joinall([gevent.spawn(take, number) for number in range(3)])
meeting = [gevent.spawn(meet, number) for number in range(4)]
gevent.spawn_later(0.1, event.set)
gevent.spawn_later(0.15, lambda: answer.set(ask("answer")))
gevent.joinall(meeting)
jobs, workers = JoinableQueue(), Group()
for _ in range(2):
    workers.spawn(work, jobs)
for number in range(4):
    jobs.put(number)
jobs.join()
workers.kill()
print(results, seen)
"""
THREADS: Final = """
def take(number):
    while (item := items.get()) is not None:
        with lock:
            ask(f"{number} has {item}")
        time.sleep(0.01)

threads = [threading.Thread(target=ask, args=(text,)) for text in ("a", "slow", "c")]
for thread in threads:
    thread.start()
ask("main")
for thread in threads:
    thread.join()
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    jobs = [pool.submit(ask, f"job {n}") for n in range(4)]
    print([job.result() for job in concurrent.futures.as_completed(jobs)], list(pool.map(ask, ["e", "f", "g"])))
items, lock = queue.Queue(), threading.Lock()
threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for item in (*range(4), None, None):
    items.put(item)
for thread in threads:
    thread.join()
print(seen)
"""
APP: Final = f"""{FLASK}
import random

import gevent
from gevent.pool import Pool

@app.post("/chat")
def chat():
    text, order = request.get_json()["text"], []

    def one(number):
        gevent.sleep(random.random() * 0.01)
        reply = ask(f"{{text}} {{number}}" + (" slow" if number == 1 else ""))
        order.append(number)
        return reply

    jobs = [gevent.spawn(one, number) for number in range(4)]
    gevent.joinall(jobs)
    late = list(Pool(2).imap_unordered(one, range(4, 7)))
    return {{"replies": [job.value for job in jobs], "late": late, "sum": ask(f"sum of {{text}}")}}
"""


@pytest.mark.parametrize(
    "body",
    [MEETING, ENDING, WAITING, THREADS],
    ids=["spawn and pools", "kill and timeouts", "waits", "patched threads"],
)
@pytest.mark.sampled(2)
def test_p3_calls_of_greenlets_end_in_the_recorded_order(body: str, provider: Provider, tmp_path: Path) -> None:
    """Every replay is identical and prints the same output; the provider isn't asked."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("agent.py", ASKING + body)
    recorded = workplace.record("agent.py")
    provider.stop()
    for _ in range(REPLAYS):
        replayed = workplace.replay("agent.py")
        assert replayed.status == 0, replayed.stderr
        assert replayed.stdout == recorded.stdout


def test_p3_a_change_in_one_greenlet_is_the_one_cause(provider: Provider, tmp_path: Path) -> None:
    """A changed prompt in one of several greenlets is named, in that greenlet's lane."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    body = ASKING + "\nprint([job.value for job in gevent.joinall([gevent.spawn(ask, f'q{n}') for n in range(3)])])\n"
    workplace.write("agent.py", body)
    workplace.record("agent.py")
    workplace.write("agent.py", body.replace('"content": text', '"content": "other" if text == "q1" else text'))
    replayed = workplace.replay("agent.py")
    assert replayed.status == 3, replayed.stderr
    assert replayed.causes() == [("changed_call", "llm:openai.chat.completions")]
    (cause,) = [each for each in replayed.verdict["divergences"] if not each["downstream"]]
    assert cause["lane"] == "main/g:ask#2"


@pytest.mark.parametrize("level", ["calls", "full"])
@pytest.mark.sampled(1)
def test_p2_p3_requests_whose_handlers_spawn_greenlets_replay(level: str, provider: Provider, tmp_path: Path) -> None:
    """Calls of greenlets belong to the run of their request, each greenlet in its own lane, at every level."""
    place = prepare(tmp_path, provider, APP)
    command = ("-m", "gunicorn", "app:app", "-k", "gevent")
    with serve(place, command=command, at="--bind 127.0.0.1:{port}", SPANREPLAY_LEVEL=level) as server:

        def post(number: int) -> None:
            answer = httpx.post(f"{server.url}/chat", json={"text": f"question {number}"}, timeout=TIMEOUT_S)
            assert answer.status_code == 200

        clients = [threading.Thread(target=post, args=(number,)) for number in range(COUNT)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    assert len(units) == COUNT
    for unit in units:
        lanes = {call.lane for call in unit.calls if call.kind == "llm"}
        assert len(lanes) == 8
    for unit in sampled(units, 2):
        replayed = place.replay(*command, "--bind", "127.0.0.1:1", source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
