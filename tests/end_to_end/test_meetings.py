"""Threads acquire locks and take queue items in the recorded order."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

HEAD = """
import queue, random, threading, time
import spanreplay

@spanreplay.boundary("llm", effect="read")
def ask(n):
    time.sleep(random.SystemRandom().random() / 200)
    return n * n
"""
"""The common beginning of the worker scripts: a slow boundary."""

WORKERS = (
    HEAD
    + """
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
)

DAEMONS = (
    HEAD
    + """
todo, results = queue.Queue(), []

def work():
    while True:
        n = todo.get()
        results.append(ask(n))
        todo.task_done()

for _ in range(5):
    threading.Thread(target=work, daemon=True).start()
for n in range(30):
    todo.put(n)
todo.join()
print(results)
"""
)

SIMPLE = (
    HEAD
    + """
todo, done = queue.SimpleQueue(), queue.SimpleQueue()
assert isinstance(todo, queue.SimpleQueue) and todo.empty()

def work(name):
    while (n := todo.get()) is not None:
        done.put((name, ask(n)))

threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
for n in range(24):
    todo.put(ask(100 + n))
for _ in threads:
    todo.put(None)
print([done.get(timeout=60) for _ in range(24)])
try:
    done.get_nowait()
except queue.Empty:
    print("empty")
"""
)

POOL = (
    HEAD
    + """from multiprocessing.pool import ThreadPool

results = []

def work(n):
    results.append(ask(n))
    return n

with ThreadPool(4) as pool:
    print(pool.map(work, range(24), chunksize=1))
    print(list(pool.imap_unordered(ask, range(24))))
print(results)
"""
)

MEETING = """
import queue, random, sys, threading, time
import spanreplay

@spanreplay.boundary("llm", effect="read")
def ask(n):
    time.sleep(random.SystemRandom().random() / 500)
    return n

seen = []

def run(work, workers=4, then=None):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    if then:
        then()
    for thread in threads:
        thread.join()

def nested():
    lock = threading.RLock()
    def work(me):
        for n in range(4):
            with lock:
                time.sleep(0.002)
                with lock:
                    seen.append(ask((me, n)))
    run(work)

def attempts():
    lock, places = threading.Lock(), threading.Semaphore(2)
    def work(me):
        for n in range(6):
            if lock.acquire(timeout=0.0008):
                try:
                    seen.append(ask((me, n)))
                finally:
                    lock.release()
            elif lock.acquire(blocking=False):
                seen.append((me, "at once"))
                lock.release()
            elif places.acquire(blocking=False):
                seen.append((me, "elsewhere", ask(n)))
                places.release()
            else:
                seen.append((me, "not now", ask(n)))
    run(work)

def at_once():
    barrier, start, condition, turn = threading.Barrier(4), threading.Event(), threading.Condition(), [0]
    def work(me):
        start.wait()
        seen.append(me)
        for n in range(4):
            ask((me, n))
            barrier.wait()
            seen.append((me, n))
            barrier.wait()
        for n in range(1, 5):
            with condition:
                while turn[0] < n:
                    condition.wait()
                seen.append((me, "turn", n))
            ask((me, "told", n))
    def tell():
        ask("start")
        start.set()
        for n in range(1, 5):
            ask(("tell", n))
            with condition:
                turn[0] = n
                condition.notify_all()
    run(work, then=tell)

def polls():
    items = queue.Queue(3)
    def work(me):
        for n in range(5):
            try:
                items.put_nowait(ask((me, n)))
            except queue.Full:
                seen.append((me, n, "full"))
                items.put((me, n))
    def take():
        got = 0
        while got < 15:
            try:
                seen.append(items.get_nowait())
                got += 1
            except queue.Empty:
                seen.append("nothing yet")
                time.sleep(0.0005)
    run(work, 3, take)

{"nested": nested, "attempts": attempts, "at_once": at_once, "polls": polls}[sys.argv[1]]()
print(*seen, sep="\\n")
"""

ATTEMPT = """
import threading
import spanreplay

@spanreplay.boundary("tool")
def ask():
    return 1

lock = threading.Lock()
lock.acquire()
thread = threading.Thread(target=ask)
thread.start()
thread.join()
print(ask())
# now
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
    """Four workers share a queue: each takes its recorded items, and answers are stored in the recorded order."""
    agent = workplace.write("agent.py", WORKERS)
    for _ in range(3):
        recorded = workplace.record(agent)
        replayed = workplace.replay(agent)
        assert replayed.stdout == recorded.stdout
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.verdict["counts"]["exact"] == 24


@pytest.mark.parametrize("script", [DAEMONS, SIMPLE, POOL], ids=["daemons", "simple", "pool"])
def test_s68_workers_of_every_kind_take_the_same_items(workplace: Workplace, script: str) -> None:
    """Daemon threads still waiting at exit, a `SimpleQueue` and a `ThreadPool` keep the recorded order."""
    agent = workplace.write("agent.py", script)
    for _ in range(2):
        recorded = workplace.record(agent)
        replayed = workplace.replay(agent)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.stdout == recorded.stdout


@pytest.mark.parametrize("way", ["nested", "attempts", "at_once", "polls"])
def test_s68_threads_that_meet_go_on_as_recorded(workplace: Workplace, way: str) -> None:
    """Reentrant locks, failed attempts, threads released together and queue polling replay as recorded."""
    agent = workplace.write("agent.py", MEETING)
    for _ in range(2):
        recorded = workplace.record(agent, way)
        replayed = workplace.replay(agent, way)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.stdout == recorded.stdout


def test_s68_an_attempt_that_was_not_recorded_fails_where_it_cannot_succeed(workplace: Workplace) -> None:
    """An agent that now tries to acquire a lock that is never released fails to, instead of waiting forever."""
    agent = workplace.write("agent.py", ATTEMPT)
    workplace.record(agent)
    workplace.write("agent.py", ATTEMPT.replace("# now", "print(lock.acquire(timeout=0.01))"))
    assert workplace.replay(agent).stdout.splitlines() == ["1", "False"]


def test_s68_locks_are_used_like_the_interpreters_own(workplace: Workplace) -> None:
    """Attempts, errors and conditions on both kinds of locks behave as without a recording."""
    agent = workplace.write("agent.py", USES)
    recorded = workplace.record(agent)
    assert recorded.stdout.endswith("2 1 True\n")
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_s68_a_worker_more_is_held_up_once(workplace: Workplace) -> None:
    """An agent whose threads take an additional lock continues after one delay, and its result is compared."""
    agent = workplace.write("agent.py", WORKERS)
    recorded = workplace.record(agent)
    workplace.write(
        "agent.py", WORKERS.replace("    start.wait()\n", "    start.wait()\n    with lock:\n        pass\n")
    )
    replayed = workplace.replay(agent)
    assert sorted(replayed.stdout.splitlines()[0]) == sorted(recorded.stdout.splitlines()[0])
    assert replayed.verdict["counts"]["served"] == 24
