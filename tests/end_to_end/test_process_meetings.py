"""Processes that share locks, queues and pipes of `multiprocessing`: in a replay each gets what it got before."""

from __future__ import annotations

from typing import Final

import pytest

from support.replaying import Workplace

AGENT: Final = """
import logging, multiprocessing, os, queue, sys, time
from logging.handlers import QueueHandler, QueueListener
from multiprocessing.connection import wait
from spanreplay import boundary

@boundary("tool", effect="read")
def ask(number):
    time.sleep((os.getpid() + number) % 5 / 1000)
    return number

def name():
    return multiprocessing.current_process().name

def start(context, target, *args):
    processes = [context.Process(target=target, args=args, name=f"w{n}") for n in range(3)]
    for process in processes:
        process.start()
    return processes

def join(processes):
    for process in processes:
        process.join()

# Which process takes which item, and in which order results come
def take(items, results):
    while (item := items.get()) is not None:
        results.put((name(), ask(item)))

def queues(context):
    items, results = context.Queue(), context.SimpleQueue()
    processes = start(context, take, items, results)
    for item in [*range(9), None, None, None]:
        items.put(item)
    got = [results.get() for _ in range(9)]
    join(processes)
    return got

# What was put before anybody was there to take it; nobody is waited for at the end
def filled(context):
    items, results = context.Queue(), context.Queue()
    for item in range(12):
        items.put(item)
    processes = start(context, take, items, results)
    got = [results.get() for _ in range(12)]
    for _ in processes:
        items.put(None)
    return got

# How often a look into a queue finds nothing
def poll(items, results):
    misses = 0
    while True:
        try:
            item = items.get(timeout=0.003)
        except queue.Empty:
            misses += 1
            continue
        if item is not None:
            results.put((name(), ask(item), misses))
        items.task_done()
        if item is None:
            return

def timeouts(context):
    items, results = context.JoinableQueue(), context.Queue()
    processes = start(context, poll, items, results)
    for item in range(6):
        items.put(ask(item))
    items.join()
    for _ in processes:
        items.put(None)
    join(processes)
    return [results.get() for _ in range(6)]

# Which producer finds room, and when each is told to stop
def produce(items, stop):
    number = 0
    while not stop.is_set():
        items.put((name(), ask(number)))
        number += 1

def limited(context):
    items, stop = context.Queue(2), context.Event()
    processes = start(context, produce, items, stop)
    got = [items.get() for _ in range(8)]
    stop.set()
    while any(process.is_alive() for process in processes):
        try:
            got.append(items.get(timeout=0.01))
        except queue.Empty:
            pass
    return got

# Who changes shared memory when
def change(value, lock, shared):
    for number in range(3):
        ask(number)
        with value.get_lock():
            value.value = value.value * 3 + int(name()[1:])
        with lock:
            shared[number] = shared[number] * 10 + int(name()[1:]) + 1

def memory(context):
    value, lock, shared = context.Value("q", 1), context.Lock(), context.Array("q", 3, lock=False)
    join(start(context, change, value, lock, shared))
    return value.value, list(shared)

# Who is woken up first
def meet(condition, semaphore, barrier, results):
    barrier.wait()
    with semaphore:
        ask(1)
    with condition:
        results.put((name(), condition.wait(0.05)))

def conditions(context):
    condition, semaphore, barrier = context.Condition(), context.Semaphore(2), context.Barrier(3)
    results = context.SimpleQueue()
    processes = start(context, meet, condition, semaphore, barrier, results)
    ask(2)
    with condition:
        condition.notify_all()
    join(processes)
    return [results.get() for _ in processes]

# Which pipe has something first
def send(end):
    for number in range(3):
        end.send((name(), ask(number)))

def pipes(context, look):
    ends, processes = [], []
    for number in range(3):
        here, there = context.Pipe(False)
        processes.append(context.Process(target=send, args=(there,), name=f"w{number}"))
        processes[-1].start()
        there.close()
        ends.append(here)
    got = []
    while ends:
        for end in look(ends):
            try:
                got.append(end.recv())
            except EOFError:
                ends.remove(end)
    join(processes)
    return got

def polled(context):
    return pipes(context, lambda ends: [end for end in ends if end.poll(0.001)])

def awaited(context):
    return pipes(context, wait)

# In which order a log is written
def tell(records):
    log = logging.getLogger()
    log.handlers = [QueueHandler(records)]
    log.setLevel(logging.INFO)
    for number in range(3):
        log.info("%s %s", name(), ask(number))

def logs(context):
    records, got = context.Queue(), []
    handler = logging.Handler()
    handler.emit = lambda record: got.append(record.getMessage())
    listener = QueueListener(records, handler)
    listener.start()
    join(start(context, tell, records))
    listener.stop()
    return got

# How often a library takes its lock is a matter of time: a bar is drawn when it has been long enough
def draw(results):
    from tqdm import tqdm
    for number in tqdm(range(60), mininterval=0.002):
        ask(number)
    results.put(name())

def bars(context):
    results = context.Queue()
    processes = start(context, draw, results)
    got = [results.get() for _ in processes]
    join(processes)
    return got

# Which item of a pool takes a lock first
def begin(lock, value):
    globals().update(LOCK=lock, VALUE=value)

def count(number):
    ask(number)
    with LOCK:
        VALUE.value += 1
        return number, VALUE.value

def pooled(context):
    with context.Pool(3, begin, (context.Lock(), context.Value("i", 0))) as pool:
        return pool.map(count, range(9), chunksize=1)

# How often a result was asked for before it was there
def wait_for(number):
    time.sleep(0.03)
    return ask(number)

def looked(pool, number):
    result, looks = pool.apply_async(wait_for, (number,)), 0
    for _ in range(30):
        looks += not result.ready()
        sum(range(100_000))  # time passes, of which nothing is recorded
    return looks, result.get()

def asked(context):
    found = []
    with context.Pool(2) as pool:
        results = [pool.apply_async(wait_for, (number,)) for number in range(4)]
        misses = 0
        for result in results:
            while True:
                try:
                    found.append(result.get(0.004))
                    break
                except multiprocessing.TimeoutError:
                    misses += 1
        found.append(misses)
        numbers, misses = pool.imap(wait_for, range(4)), 0
        while len(found) < 9:
            try:
                found.append(numbers.next(0.004))
            except multiprocessing.TimeoutError:
                misses += 1
        result, looks = pool.map_async(wait_for, range(3)), 0
        while not result.ready():
            looks += 1
            result.wait(0.004)
        return [*found, misses, looks, result.get(), *(looked(pool, number) for number in range(5))]

if __name__ == "__main__":
    print(globals()[sys.argv[1]](multiprocessing.get_context(sys.argv[2])))
"""
FORMS: Final = (
    "queues",
    "filled",
    "timeouts",
    "limited",
    "memory",
    "conditions",
    "polled",
    "awaited",
    "logs",
    "bars",
    "pooled",
    "asked",
)
CASES: Final = [(form, "fork") for form in FORMS] + [("queues", "spawn"), ("timeouts", "forkserver")]


@pytest.mark.parametrize(("form", "method"), CASES)
@pytest.mark.sampled(5)
def test_n2_processes_meet_as_they_met_when_recorded(workplace: Workplace, form: str, method: str) -> None:
    """The output depends on which process comes first, and is the same in a replay."""
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent, form, method)
    (recording,) = workplace.recordings()
    assert recording.completeness().is_complete, recording.completeness().reasons
    replayed = workplace.replay(agent, form, method, source=recording.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout


PUTTING: Final = """
import multiprocessing
from slow import pause
from spanreplay import boundary

@boundary("tool", effect="read")
def ask(number):
    return number

def take(items):
    while (item := items.get()) is not None:
        print(ask(item), flush=True)
        items.task_done()

if __name__ == "__main__":
    items = multiprocessing.get_context("fork").JoinableQueue()
    process = multiprocessing.get_context("fork").Process(target=take, args=(items,))
    process.start()
    for item in [*range(6), None]:
        items.put(item)
        pause()
    process.join()
"""


def test_n2_what_a_queue_brings_to_its_pipe_waits_for_no_put_behind_it(workplace: Workplace) -> None:
    """If each item was sent before the next `put`, the next `put` waits for that in a faster replay."""
    agent = workplace.write("agent.py", PUTTING)
    workplace.write("slow.py", "def pause():\n    for _ in range(2_000_000):\n        pass\n")
    workplace.record(agent)
    workplace.write("slow.py", "def pause():\n    pass\n")
    replayed = workplace.replay(agent, source=workplace.recording().run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
