"""Threads take locks and items of queues in the recorded order."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

WORKERS = """
import queue, random, threading, time
import spanreplay

@spanreplay.boundary("llm", effect="read")
def ask(n):
    time.sleep(random.SystemRandom().random() / 200)
    return n * n

todo, done = queue.Queue(), queue.Queue()
lock = threading.Lock()
held = threading.RLock()
results, seen = [], []
start = threading.Barrier(4)

def work(name):
    start.wait()
    while True:
        n = todo.get()
        if n is None:
            return
        answer = ask(n)
        with held, held:
            seen.append((name, n))
        with lock:
            results.append(answer)
        done.put((name, answer), timeout=60)

threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
for n in range(24):
    todo.put(n)
for _ in threads:
    todo.put(None)
for thread in threads:
    thread.join()
print(results)
print(seen)
print([done.get() for _ in range(24)])
"""

USES = """
import threading
import spanreplay

@spanreplay.boundary("tool")
def ask():
    return 1

class Counter:
    lock: "threading.Lock"
    def __init__(self):
        self.lock = threading.Lock()
        self.ready = threading.Condition(threading.RLock())
        self.plain = threading.Condition(threading.Lock())
        self.total = 0

counter = Counter()
assert isinstance(counter.lock, type(counter.lock)) and not counter.lock.locked()
assert counter.lock.acquire() and counter.lock.locked() and not counter.lock.acquire(blocking=False)
assert not counter.lock.acquire(timeout=0.001)
counter.lock.release()
try:
    counter.lock.release()
except RuntimeError as error:
    print("refused", error)

def add(condition):
    with condition:
        counter.total += 1
        condition.notify_all()

for condition in (counter.ready, counter.plain):
    before = counter.total
    thread = threading.Thread(target=add, args=(condition,))
    with condition:
        thread.start()
        assert condition.wait_for(lambda: counter.total > before, timeout=60)
    thread.join()
print(counter.total, ask(), "lock" in repr(counter.lock))
"""


@pytest.mark.slow
def test_s68_workers_of_a_queue_take_the_same_items(workplace: Workplace) -> None:
    """Four workers, one queue: who takes which item, and in which order their answers are kept, is as recorded."""
    agent = workplace.write("agent.py", WORKERS)
    for _ in range(3):
        recorded = workplace.record(agent)
        replayed = workplace.replay(agent)
        assert replayed.stdout == recorded.stdout
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.verdict["counts"]["exact"] == 24


def test_s68_locks_are_used_like_the_interpreters_own(workplace: Workplace) -> None:
    """Attempts, errors, conditions on both sorts of locks: nothing else than without a recording."""
    agent = workplace.write("agent.py", USES)
    recorded = workplace.record(agent)
    assert recorded.stdout.endswith("2 1 True\n")
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_s68_a_worker_more_is_held_up_once(workplace: Workplace) -> None:
    """An agent whose threads take a lock that nobody took then goes on, and its result is compared."""
    agent = workplace.write("agent.py", WORKERS)
    recorded = workplace.record(agent)
    workplace.write(
        "agent.py", WORKERS.replace("    start.wait()\n", "    start.wait()\n    with lock:\n        pass\n")
    )
    replayed = workplace.replay(agent)
    assert sorted(replayed.stdout.splitlines()[0]) == sorted(recorded.stdout.splitlines()[0])
    assert replayed.verdict["counts"]["served"] == 24
