"""Processes of one run: calls of children are recorded in their own lanes, and served there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.replaying import Workplace

AGENT = """
import multiprocessing, os, random, sys, time
from concurrent.futures import ProcessPoolExecutor, as_completed
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(question):
    with open("bodies", "a") as file:
        file.write(".")
    time.sleep(random.SystemRandom().random() * 0.02)
    return f"{question} {random.SystemRandom().getrandbits(40):x}"

def work(question, pipe=None):
    found = [ask(question), ask(question), random.random()]
    if pipe is not None:
        pipe.send(found)
        pipe.close()
    return found

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    print(ask("first"))
    started = []
    for _ in range(2):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=("same", theirs))
        process.start()
        started.append((process, ours))
    for process, ours in started:
        print("process", ours.recv())
        process.join()
        print(process.exitcode)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for future in as_completed([pool.submit(work, "same") for _ in range(4)]):
            print("pool", future.result())
        print(list(pool.map(ask, ["same"] * 3)))
    print(ask("last"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.sampled(1)
def test_s68_processes_are_lanes_of_the_run_that_started_them(tmp_path: Path, method: str) -> None:
    """Calls of children and pool workers are in their parent's run, each in its lane, where a replay serves them."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent, method)
    recording = workplace.recording()
    assert recording.completeness().reasons == ()
    assert len(recording.calls) == 17
    assert sorted({call.lane for call in recording.calls}) == [
        "main",
        "main/p:work#1",
        "main/p:work#2",
        "main/px:_process_chunk#1",
        "main/px:_process_chunk#2",
        "main/px:_process_chunk#3",
        *(f"main/px:work#{n}" for n in range(1, 5)),
    ]
    clocks = [clock for call in recording.calls for clock in (call.seq, call.end_seq)]
    assert len(set(clocks)) == len(clocks)
    bodies = (tmp_path / "bodies").read_text()
    replayed = workplace.replay(agent, method)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["divergences"] == []
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["counts"]["exact"] == 17
    assert (tmp_path / "bodies").read_text() == bodies


CHANGED = """
import multiprocessing, os
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(question):
    return question

def work():
    ask(os.environ["QUESTION"])

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
"""


def test_s68_divergence_of_a_child_is_in_the_verdict(tmp_path: Path) -> None:
    """A child with another request diverges in its lane; the first process gives the verdict."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", CHANGED)
    workplace.record(agent, QUESTION="this")
    replayed = workplace.replay(agent, QUESTION="that")
    assert replayed.causes() == [("changed_call", "tool:ask")]
    assert replayed.verdict["divergences"][0]["lane"] == "main/p:work#1"
    assert replayed.status == 3


POOL = """
import multiprocessing, sys
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(question):
    return question

if __name__ == "__main__":
    work = ask if sys.argv[1] == "calls" else abs
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, [1, 2, 3]))
        pool.close()
        pool.join()
    ask("last")
"""


@pytest.mark.parametrize("what", ["calls", "nothing"])
def test_n3_pool_of_multiprocessing_is_complete(tmp_path: Path, what: str) -> None:
    """A pool's items are lanes, whichever worker takes them; a run in which its workers make calls is complete."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", POOL)
    workplace.record(agent, what)
    assert workplace.recording().completeness().reasons == ()
    replayed = workplace.replay(agent, what)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


KILLED = """
import multiprocessing, os, signal
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask():
    return 1

def work():
    ask()
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
"""


def test_n3_killed_child_makes_the_run_incomplete(tmp_path: Path) -> None:
    """A killed child can't report its end: its recorded calls are there, and the run names the hole."""
    workplace = Workplace(tmp_path)
    workplace.record(workplace.write("agent.py", KILLED))
    recording = workplace.recording()
    assert [call.lane for call in recording.calls] == ["main/p:work#1"]
    assert any("a process was started at agent.py:15" in reason for reason in recording.completeness().reasons)
    replayed = workplace.replay("agent.py")
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr


ENDED = """
import multiprocessing
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(n):
    return n * n

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(ask, range(4)))
"""


def test_n3_workers_that_are_killed_have_said_what_they_did(tmp_path: Path) -> None:
    """Leaving a pool's block kills its workers; each has reported its work before, so the run is complete."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", ENDED)
    recorded = workplace.record(agent)
    assert workplace.recording().completeness().reasons == ()
    assert len(workplace.recording().calls) == 4
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout


TAKEN = """
import multiprocessing, os, select
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(n):
    while n == 0 and not os.path.exists("asked"):  # the other worker takes the rest; in a replay nobody waits here
        select.select([], [], [], 0.01)
    if n == 5:
        open("asked", "w").close()
    return n * n

if __name__ == "__main__":
    pool = multiprocessing.get_context("fork").Pool(2)
    print(pool.map(ask, range(6), chunksize=1))
    pool.close()
    pool.join()
"""


def test_n3_item_of_a_pool_goes_to_the_worker_that_took_it(tmp_path: Path) -> None:
    """Recorded with one worker busy, the other took most items; in a replay each item goes to the same worker."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", TAKEN)
    recorded = workplace.record(agent)
    recording = workplace.recording()
    assert recording.completeness().reasons == ()
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    taken = sorted(recording.root.manifest["workers"]["processes"].values())
    assert len(taken) == 6
    assert len(set(taken)) == 2


def test_shared_folder_is_gone_at_the_end(tmp_path: Path) -> None:
    """The folder that the processes of a run shared is removed when the run ends."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    workplace = Workplace(tmp_path, {"TMPDIR": str(temporary), "QUESTION": "this"})
    agent = workplace.write("agent.py", CHANGED)
    workplace.record(agent)
    assert workplace.replay(agent).status == 0
    assert list(temporary.iterdir()) == []


LATE = """
import multiprocessing, os, select
from concurrent.futures import ProcessPoolExecutor, as_completed
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(number):
    while number == 0 and not os.path.exists("told"):
        select.select([], [], [], 0.01)
    return number

if __name__ != "__main__" and os.path.exists("late") and multiprocessing.current_process().name.endswith("-2"):
    select.select([], [], [], 3)  # not ours: it is real time

if __name__ == "__main__":
    results = []
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(ask, number) for number in range(2)]):
            results.append(future.result())
            open("told", "w").close()
    print(results)
"""


LATE_FOR_A_LOOP = """
import asyncio, multiprocessing, os, select
from concurrent.futures import ProcessPoolExecutor
import spanreplay

@spanreplay.boundary("tool", name="work")
def work(number):
    return number

@spanreplay.boundary("tool", name="ask")
async def ask():
    while not os.path.exists("told"):
        await asyncio.sleep(0.01)
    return "asked"

if __name__ != "__main__" and os.path.exists("late"):
    select.select([], [], [], 3)  # not ours: it is real time

async def in_pool(pool, results):
    results.append(await asyncio.get_running_loop().run_in_executor(pool, work, 1))
    open("told", "w").close()

async def here(results):
    results.append(await ask())

async def main():
    results = []
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        await asyncio.gather(here(results), in_pool(pool, results))
    print(results)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.slow
def test_s68_worker_that_takes_long_to_start_is_waited_for_by_an_event_loop(tmp_path: Path) -> None:
    """A loop whose next answer is due after a process's first one waits for it, as threads do."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", LATE_FOR_A_LOOP)
    assert workplace.record(agent).stdout == "[1, 'asked']\n"
    (tmp_path / "late").touch()
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == "[1, 'asked']\n"


@pytest.mark.slow
def test_s68_worker_that_takes_long_to_start_is_waited_for(tmp_path: Path) -> None:
    """On a busy machine the process with the first result may start seconds after the other."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", LATE)
    assert workplace.record(agent).stdout == "[1, 0]\n"
    (tmp_path / "late").touch()
    replayed = workplace.replay(agent)
    assert replayed.stdout == "[1, 0]\n"
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
