"""Threads that ask a model go on in a replay in the order in which the SDK had given them their answers."""

from __future__ import annotations

from pathlib import Path

from support.provider import Provider
from support.replaying import Workplace

AGENT = """
import queue
import threading

from openai import OpenAI

client, questions, answers = OpenAI(), queue.Queue(), []


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
    """Four workers that append as answers come, from a provider that answers at once: the list is the recorded one."""
    with Provider() as provider:
        workplace = Workplace(tmp_path, provider.environ())
        agent = workplace.write("agent.py", AGENT)
        recorded = workplace.record(agent)
    returns = [name for name in workplace.recording().root.manifest["timers"] if "|returned|" in name]
    assert len(returns) == 16
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
