"""A changed program whose processes deadlock ends in a replay with a report of what it waits for."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

AGENT = """
import multiprocessing, os, sys
from spanreplay import boundary

@boundary("tool", effect="read")
def ask(number):
    return number

def take(queue, answers):
    answers.put(ask(queue.get()))

def meet(event):
    event.wait()
    ask(1)

def joined(context, is_whole):
    queue, answers = context.Queue(), context.Queue()
    takers = [context.Process(target=take, args=(queue, answers)) for _ in range(2)]
    for taker in takers:
        taker.start()
    queue.put(1)
    if is_whole:
        queue.put(2)
    for taker in takers:
        taker.join()
    return sorted(answers.get() for _ in takers)

def left(context, is_whole):
    queue, answers = context.SimpleQueue(), context.SimpleQueue()
    context.Process(target=take, args=(queue, answers)).start()
    if is_whole:
        queue.put(1)
    return "left"

def answered(context, is_whole):
    queue, answers = context.Queue(), context.Queue()
    taker = context.Process(target=take if is_whole else ask, args=(queue, answers) if is_whole else (3,))
    taker.start()
    queue.put(1)
    return answers.get()

def met(context, is_whole):
    event = context.Event()
    waiter = context.Process(target=meet, args=(event,))
    waiter.start()
    if is_whole:
        event.set()
    waiter.join()
    return waiter.exitcode

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    print(globals()[sys.argv[1]](context, os.environ.get("CHANGED") is None))
"""


@pytest.mark.parametrize("how", ["joined", "left", "answered", "met"])
@pytest.mark.sampled(2)
def test_s48_processes_that_wait_for_each_other_do_not_hang_a_replay(workplace: Workplace, how: str) -> None:
    """The unchanged program is identical; the changed one would wait forever if it ran live."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, how)
    (recording,) = workplace.recordings()
    replayed = workplace.replay(agent, how, source=recording.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    changed = workplace.replay(agent, how, source=recording.run_id, CHANGED="1")
    assert changed.verdict["verdict"] == "diverged", changed.stderr
    assert changed.verdict["divergences"][0]["boundary"] == "tool:ask"
