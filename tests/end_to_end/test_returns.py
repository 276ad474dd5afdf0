"""Threads that call a model continue in the order in which the SDK had returned their answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.provider import Provider
from support.replaying import Workplace

AGENT = """
import queue
import threading

from groq import Groq

client, questions, answers = Groq(), queue.Queue(), []


def work():
    while (question := questions.get()) is not None:
        completion = client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": question}]
        )
        answers.append((question, completion.choices[0].message.content[:20]))
        questions.task_done()


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for number in range(16):
    questions.put(f"question {number}")
questions.join()
for _ in threads:
    questions.put(None)
for thread in threads:
    thread.join()
print(*answers, sep="\\n")
"""


def test_n2_workers_of_a_queue_keep_their_order(tmp_path: Path) -> None:
    """Four workers append answers from a provider that answers at once: the list is as recorded."""
    with Provider() as provider:
        workplace = Workplace(tmp_path, provider.environ())
        agent = workplace.write("agent.py", AGENT)
        recorded = workplace.record(agent)
    returns = [name for name in workplace.recording().root.manifest["timers"] if "|returned|" in name]
    assert len(returns) == 16
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout


TOOLS = """
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import spanreplay

answers = []


@spanreplay.boundary("tool", name="ask")
def ask(number, seconds):
    time.sleep(seconds)
    return number


def work(worker):
    delays = random.Random(worker)
    for number in range(10):
        answers.append((worker, ask(number, delays.uniform(0.001, 0.003))))


if sys.argv[1] == "pool":
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
else:
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(*answers, sep="\\n")
"""


@pytest.mark.parametrize("how", ["threads", "pool"])
def test_n2_answers_of_tools_keep_the_order_in_which_they_were_back(tmp_path: Path, how: str) -> None:
    """If calls end within a millisecond of each other, the thread that was answered first continues first."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", TOOLS)
    recorded = workplace.record(agent, how)
    returns = [name for name in workplace.recording().root.manifest["timers"] if "|returned|" in name]
    assert len(returns) == 40
    replayed = workplace.replay(agent, how)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
