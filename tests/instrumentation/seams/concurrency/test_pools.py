"""Pools of `multiprocessing`: calls of their workers are in the run, in the lane of the current item."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from support.provider import Provider
from support.replaying import Workplace

ASKING = """
import functools, multiprocessing, os, sys
import groq

@functools.cache
def client():
    return groq.Groq()

def ask(item):
    question = os.environ.get("QUESTION", "item") if item == 3 else "item"
    messages = [{"role": "user", "content": f"{question} {item}"}]
    answers = [client().chat.completions.create(model="gpt-x", messages=messages) for _ in range(2)]
    return item, *(answer.choices[0].message.content for answer in answers)

def use(pool, how):
    if how == "map":
        return pool.map(ask, range(6), chunksize=1)
    if how == "imap":
        return list(pool.imap(ask, range(6)))
    if how == "imap_unordered":
        return list(pool.imap_unordered(ask, range(6)))
    return [found.get() for found in [pool.apply_async(ask, (item,)) for item in range(6)]]

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        for how in sys.argv[2:]:
            print(how, use(pool, how))
"""
WAYS = ("map", "imap", "imap_unordered", "apply_async")


def _record(workplace: Workplace, method: str, *ways: str) -> str:
    """Record with a provider that stops afterwards; return the agent's output."""
    agent = workplace.write("agent.py", ASKING)
    with Provider() as provider:
        workplace.environ.update(provider.environ())
        recorded = workplace.record(agent, method, *ways)
    recording = workplace.recording()
    assert recording.completeness().reasons == ()
    assert len(recording.calls) == 12 * len(ways)
    return recorded.stdout


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(each, marks=pytest.mark.slow) for each in ("spawn", "forkserver"))]
)
@pytest.mark.sampled(1)
def test_n3_items_of_a_pool_are_replayed_with_their_provider_stopped(tmp_path: Path, method: str) -> None:
    """For each way of passing items to a pool, the run is complete, and a replay gives each item its answers."""
    workplace = Workplace(tmp_path)
    printed = _record(workplace, method, *WAYS)
    replayed = workplace.replay("agent.py", method, *WAYS)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.verdict["counts"]["exact"] == 48
    assert replayed.stdout == printed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sampled(2)
def test_n3_item_of_a_pool_that_asks_something_else_is_named(tmp_path: Path, way: str) -> None:
    """The pool does not swallow our miss: the waiting caller gets it, and the verdict names only that call."""
    workplace = Workplace(tmp_path)
    _record(workplace, "fork", way)
    replayed = workplace.replay("agent.py", "fork", way, QUESTION="changed")
    assert replayed.causes() == [("changed_call", "llm:openai.chat.completions")], replayed.stderr
    assert replayed.status == 3
    (cause,) = (each for each in replayed.verdict["divergences"] if not each["downstream"])
    assert cause["lane"] == ("main/px:ask#4" if way == "apply_async" else "main/px:ask#1/px:item#4")


STARTING = """
import multiprocessing, os
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(question):
    return question

def start():
    ask(os.environ["QUESTION"])

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2, start) as pool:
        print(pool.map(ask, range(4)))
"""


def test_n3_pool_whose_workers_ask_something_else_at_their_start_ends(tmp_path: Path) -> None:
    """The pool would replace such workers forever, and its caller would hang: the replay ends and names the call."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", STARTING)
    workplace.record(agent, QUESTION="this")
    replayed = workplace.replay(agent, QUESTION="that")
    assert set(replayed.causes()) == {("changed_call", "tool:ask")}, replayed.stderr
    assert replayed.verdict["divergences"][0]["lane"].startswith("main/pool#1/worker#")
    assert replayed.status == 3


LEFT = """
import multiprocessing, os, select
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(item):
    if item:
        open("begun", "w").close()
    while item or not os.path.exists("begun"):
        select.select([], [], [], 0.01)
    return item

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(next(pool.imap_unordered(ask, range(2))))
"""


def test_n3_worker_that_is_ended_at_work_makes_the_run_incomplete(tmp_path: Path) -> None:
    """Leaving a pool's block ends its busy workers: the run is incomplete with the reason, and no call differs."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", LEFT)
    workplace.record(agent)
    reasons = workplace.recording().completeness().reasons
    assert any(
        "the pool made at agent.py:14" in reason and "while it worked on an item" in reason for reason in reasons
    )
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert replayed.causes() == []


SHARING = """
import multiprocessing, os, sqlite3
import spanreplay

database = None

@spanreplay.boundary("tool", name="ask")
def ask(number):
    return number

def work(number):
    global database
    if database is None:
        database = sqlite3.connect("shared.db", timeout=30)
        database.execute("create table if not exists notes (number)")
    with database:
        database.execute("insert into notes values (?)", (number,))
    return ask(number), database.execute("select count(*) from notes").fetchone(), os.path.exists("shared.db")

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, range(8), chunksize=1))
"""


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "there before"])
def test_n3_workers_that_share_a_database_look_at_it_once(tmp_path: Path, is_there: bool) -> None:
    """Two workers open one SQLite file beside the code: the first records its state, in a replay the same one."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", SHARING)
    if is_there:
        sqlite3.connect(tmp_path / "shared.db").execute("create table notes (number)").connection.close()
    workplace.record(agent)
    recording = workplace.recording()
    assert recording.completeness().reasons == ()
    assert sum(call.name == "lookup" for call in recording.calls) == is_there
    replayed = workplace.replay(agent)
    assert "tool:lookup" not in {boundary for _, boundary in replayed.causes()}, replayed.stderr


BEGINNING = """
import multiprocessing, select
import spanreplay

@spanreplay.boundary("tool", name="wait")
def wait():
    while multiprocessing.current_process().name.endswith("-2"):
        select.select([], [], [], 0.01)

@spanreplay.boundary("tool", name="ask")
def ask(item):
    return item

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2, wait) as pool:
        print(pool.map(ask, range(4)))
    print(ask("last"))
"""


def test_n3_worker_that_is_ended_before_it_takes_an_item_is_ended_there_again(tmp_path: Path) -> None:
    """One worker is still in its initializer when its pool ends it, so its later work is unknown."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", BEGINNING)
    workplace.record(agent)
    recording = workplace.recording()
    assert recording.completeness().reasons == ()
    assert "main/pool#1/worker#2" in recording.root.manifest["workers"]["ended"]
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_s27_a_manager_s_process_is_started_as_without_the_recorder(tmp_path: Path) -> None:
    """What `multiprocessing` sends to a new Python names the type of a lock, which is recorded here."""
    place = Workplace(tmp_path)
    lines = ["import multiprocessing, threading", "", "lock = threading.Lock()", 'if __name__ == "__main__":']
    lines += ['    with multiprocessing.get_context("spawn").Manager() as manager, manager.Lock(), lock:']
    lines += ["        print(manager.list([1, 2]))"]
    script = place.write("agent.py", "\n".join(lines))
    assert place.record(script).stdout == "[1, 2]\n"
