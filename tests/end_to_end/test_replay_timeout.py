"""`spanreplay replay --timeout`: a program that never ends but never stalls is stopped with a verdict."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

AGENT = """
import multiprocessing, os, queue, sys, threading, time
from spanreplay import boundary

changed = bool(os.environ.get("CHANGED"))

@boundary("tool", effect="read")
def ask(number):
    return number

def fill(jobs):
    if not changed:
        jobs.put(ask(1))

def thread(jobs):
    threading.Thread(target=fill, args=(jobs,)).start()

def process(jobs):
    multiprocessing.get_context("fork").Process(target=fill, args=(jobs,)).start()

def poll(jobs):
    print("polling", flush=True)
    while True:
        try:
            return jobs.get(timeout=0.01)
        except queue.Empty:
            pass

if __name__ == "__main__":
    jobs = {"thread": queue.Queue, "process": multiprocessing.get_context("fork").Queue}[sys.argv[1]]()
    ask(0)
    globals()[sys.argv[1]](jobs)
    print(poll(jobs))
"""


@pytest.mark.parametrize("who", ["thread", "process"])
def test_s29_u5_a_replay_that_polls_for_ever_ends_in_time(workplace: Workplace, who: str) -> None:
    """The verdict names the awaited call; an unchanged agent ends long before the limit."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, who)
    assert workplace.replay(agent, who, options=["--timeout", "120"]).verdict["verdict"] == "identical"
    changed = workplace.replay(agent, who, options=["--timeout", "3"], CHANGED="1")
    assert changed.status == 3, changed.stderr
    assert ("order_stall", "tool:ask") in changed.causes()
    (stalled,) = [each for each in changed.verdict["divergences"] if each["kind"] == "order_stall"]
    assert stalled["message"].startswith("the program had not ended after 3 s: call 2 (tool:ask, "), stalled["message"]
    assert changed.stdout == "polling\n"


def test_s29_a_replay_that_makes_no_call_any_more_ends(workplace: Workplace) -> None:
    """Without a terminal, the idle limit works without `--timeout` too; an agent that makes calls isn't stopped."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, "thread")
    assert workplace.replay(agent, "thread", SPANREPLAY_REPLAY_IDLE="120").verdict["verdict"] == "identical"
    changed = workplace.replay(agent, "thread", CHANGED="1", SPANREPLAY_REPLAY_IDLE="2")
    assert changed.status == 3, changed.stderr
    (stalled,) = [each for each in changed.verdict["divergences"] if each["kind"] == "order_stall"]
    assert stalled["message"].startswith("the program has made no call for 2 s: call 2 (tool:ask, "), stalled["message"]


def test_u5_a_timeout_that_is_none_is_refused(workplace: Workplace) -> None:
    """If a setting isn't a number of seconds, the replay doesn't start, and says so."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, "thread")
    source = workplace.recordings()[0].run_id
    for name, texts in (("TIMEOUT", ("soon", "nan", "-1", "0", "1e300")), ("IDLE", ("soon", "-1"))):
        for text in texts:
            refused = workplace.replay(agent, "thread", source=source, **{f"SPANREPLAY_REPLAY_{name}": text})
            assert f"SPANREPLAY_REPLAY_{name}='{text}' is no number of seconds" in refused.stderr
            assert refused.status == 1
