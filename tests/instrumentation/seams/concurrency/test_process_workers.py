"""Each item of a process pool runs in the same worker as when it was recorded.

SPANREPLAY_TEST_PROGRAMS says how many random programs are tried.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.replaying import Workplace

PROGRAMS = int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60")) // 10

AGENT = """
import contextvars, multiprocessing, os, random, sys, threading, time, weakref
from concurrent.futures import ProcessPoolExecutor, as_completed
import spanreplay

class Connection:
    def __init__(self, name):
        self.name = name

kept, local, seen, done = {}, threading.local(), weakref.WeakSet(), []
said = []  # printed when no pool is left: a worker forked between a flush and a print would print the line again
latest = contextvars.ContextVar("latest", default="none")

@spanreplay.boundary("tool", name="ask")
def ask(question):
    time.sleep(random.SystemRandom().random() * 0.004)
    return f"{question} {random.SystemRandom().getrandbits(32):08x}"

def start():
    kept["start"] = ask("start")

def work(number):
    if not hasattr(local, "connection"):
        local.connection = kept["connection"] = Connection(ask("connect"))
        seen.add(local.connection)
    before, answer = latest.get(), ask(f"item {number}")
    latest.set(answer)
    done.append(number)
    return number, kept.get("start"), local.connection.name, before, answer, list(done), kept["connection"] in seen

def use_executor(context, rng, workers, items, initializer):
    with ProcessPoolExecutor(workers, mp_context=context, initializer=initializer) as pool:
        said.append(list(pool.map(work, items)))
        for future in as_completed([pool.submit(work, item) for item in items]):
            said.append(future.result())

def use_pool(context, rng, workers, items, initializer):
    tasks = None if initializer else rng.choice((None, 2))  # whether a last worker is started anew is a race
    with context.Pool(workers, initializer, maxtasksperchild=tasks) as pool:
        said.append(pool.map(work, items, chunksize=rng.choice((1, 2))))
        for found in pool.imap_unordered(work, items):
            said.append(found)
        said.append([each.get() for each in [pool.apply_async(work, (item,)) for item in items]])
        if rng.random() < 0.5:
            pool.close()
            pool.join()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        rng = random.Random(seed)
        items = range(rng.randint(2, 8))
        said.append(f"program {seed}")
        rng.choice((use_executor, use_pool))(context, rng, rng.randint(1, 3), items, rng.choice((None, start)))
    for line in said:
        print(line)
"""


def _try(workplace: Workplace, method: str, first: int, last: int) -> Any:
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent, method, str(first), str(last))
    assert recorded.returncode == 0, recorded.stderr
    recording = workplace.recording()
    assert recording.completeness().reasons == ()
    replayed = workplace.replay(agent, method, str(first), str(last))
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    return recording.root.manifest["workers"]["processes"]


def test_n2_item_finds_the_worker_process_that_it_had(tmp_path: Path) -> None:
    """A worker's globals, its `threading.local`, its Context and weak references are as recorded."""
    workers = _try(Workplace(tmp_path), "fork", 0, PROGRAMS)
    assert len(set(workers.values())) > 1, "one worker took everything"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.sampled(1)
def test_n2_item_finds_the_worker_that_was_started_anew(tmp_path: Path, method: str) -> None:
    """The same holds for a worker that is started on demand, as a separate Python."""
    _try(Workplace(tmp_path), method, 0, 2)
