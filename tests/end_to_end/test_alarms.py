"""Process alarms: an agent's watchdog goes off at the same point in a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.replaying import Workplace

HEAD = """
import signal
import threading
import time
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(question):
    if question == "slow":
        time.sleep(5)
    return question.upper()
"""
HANDLED = """
signal.signal(signal.SIGALRM, lambda number, frame: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(0.2)
print(ask("after"))
"""
CUT_SLEEP = """
class Late(Exception):
    pass

def give_up(number, frame):
    raise Late("too slow")

signal.signal(signal.SIGALRM, give_up)
signal.alarm(1)
try:
    time.sleep(60)
except Late as late:
    print(late)
print(ask("after"))
"""
CUT_CALL = """
def give_up(number, frame):
    raise TimeoutError("too slow")

signal.signal(signal.SIGALRM, give_up)
signal.setitimer(signal.ITIMER_REAL, 1)
try:
    ask("slow")
except TimeoutError as late:
    print(late)
print(ask("after"))
"""
LEFT_OVER = """
signal.signal(signal.SIGALRM, lambda number, frame: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 30)
print(ask("slow"))
print(20 < signal.getitimer(signal.ITIMER_REAL)[0] < 25.5)
"""
TAKEN_BACK = """
signal.signal(signal.SIGALRM, lambda number, frame: print("alarm"))
signal.alarm(30)
print(ask("fast"))
signal.alarm(0)
time.sleep(0.01)
"""
AMONG_THREADS = """
worker = threading.Thread(target=lambda: print(ask("elsewhere")))
worker.start()
worker.join()
"""


@pytest.mark.parametrize("shared", ["", AMONG_THREADS], ids=["alone", "threads"])
@pytest.mark.parametrize(
    "work", [HANDLED, CUT_SLEEP, CUT_CALL, LEFT_OVER, TAKEN_BACK], ids=["handled", "sleep", "call", "left", "unused"]
)
@pytest.mark.sampled(4)
def test_n2_alarm_goes_off_where_it_went_off(work: str, shared: str, tmp_path: Path) -> None:
    """An alarm interrupts the same sleep or the same call as when recorded; an alarm that never fired doesn't fire."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", HEAD + shared + work)
    recorded = workplace.record(agent)
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert ("alarm" in recorded.stdout or "too slow" in recorded.stdout) == (work not in (TAKEN_BACK, LEFT_OVER))
