"""Threads that sleep, or wait with a timeout or for the first of several futures, observe the same in a replay.

SPANREPLAY_TEST_PROGRAMS says how many random programs are tried.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import random
import runpy
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import spanreplay
from spanreplay.model import config
from spanreplay.replayer.schedule import thread_waits as serving
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.returning import RETURNED
from spanreplay.runtime.lanes import HANDED_OVER
from spanreplay.runtime.order import wait_ends
from spanreplay.runtime.patches import Patches
from spanreplay.seams.concurrency import thread_waits as waits
from support.in_process import Replayed, recorded, replayed

PROGRAMS = int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60"))
UNIT_S = 0.004


class Shop:
    """One execution: a boundary that takes time, and the program's observations."""

    def __init__(self, rng: random.Random) -> None:
        self.seen: list[Any] = []
        self.bodies = 0
        self._rng = rng

        @spanreplay.boundary("tool", name="ask")
        def ask(question: str, units: float) -> str:
            self.bodies += 1
            time.sleep(units * UNIT_S)
            return f"{question} {random.SystemRandom().getrandbits(32):08x}"

        self.ask: Callable[[str, float], str] = ask

    def units(self) -> float:
        """A random delay."""
        return self._rng.random() * 6

    def note(self, what: object) -> None:
        """Record an observation of the program."""
        self.seen.append(what)


def first_completed(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Take results as they come, several at a time."""
    pending = {pool.submit(shop.ask, f"first {n}", shop.units()) for n in range(4)}
    while pending:
        done, pending = concurrent.futures.wait(pending, return_when=FIRST_COMPLETED)
        shop.note([len(pending), sorted(each.result() for each in done)])


def wait_some_time(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Take the results that are ready after a while."""
    futures = [pool.submit(shop.ask, f"some {n}", shop.units()) for n in range(4)]
    done, pending = concurrent.futures.wait(futures, timeout=2 * UNIT_S)
    shop.note([len(pending), sorted(each.result() for each in done)])


def impatient(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Wait for a future again and again, with a timeout each time."""
    future = pool.submit(shop.ask, "slow", shop.units())
    while True:
        try:
            shop.note(future.result(timeout=1.5 * UNIT_S))
            return
        except concurrent.futures.TimeoutError:
            shop.note("not yet")


def from_queue(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Take from a queue with a timeout, while a thread fills it."""
    items: queue.Queue[str] = queue.Queue()

    def fill() -> None:
        for number in range(3):
            items.put(shop.ask(f"item {number}", shop.units()))

    thread = threading.Thread(target=fill)
    thread.start()
    got = 0
    while got < 3:
        try:
            shop.note(items.get(timeout=1.5 * UNIT_S))
            got += 1
        except queue.Empty:
            shop.note("empty")
    thread.join()


def by_event(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Wait for an event, a condition and a thread with timeouts."""
    event, condition = threading.Event(), threading.Condition()

    def tell() -> None:
        shop.ask("tell", shop.units())
        event.set()
        with condition:
            condition.notify_all()
        shop.ask("more", shop.units())

    thread = threading.Thread(target=tell)
    thread.start()
    shop.note(("event", event.wait(2 * UNIT_S)))
    with condition:
        shop.note(("condition", condition.wait_for(event.is_set, timeout=2 * UNIT_S)))
    thread.join(2 * UNIT_S)
    shop.note(("alive", thread.is_alive()))
    thread.join()


def by_sleeping(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Poll with sleeps until a future is done; then let threads take turns by sleeping."""
    future = pool.submit(shop.ask, "polled", shop.units())
    while not future.done():
        shop.note("working")
        time.sleep(UNIT_S)
    shop.note(future.result())

    turns = threading.Lock()

    def worker(number: int) -> None:
        for turn in range(3):
            time.sleep(shop.units() * UNIT_S)
            with turns:  # the first to wake up need not run first
                shop.note((number, turn))

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_timer(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """A timer that reports a slow call, unless it is cancelled before."""
    timer = threading.Timer(2 * UNIT_S, shop.note, ("takes long",))
    timer.start()
    shop.note(shop.ask("timed", shop.units()))
    timer.cancel()
    timer.join()


def with_deadline(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Take results until a deadline, first in the order of completion and then in the order of the calls."""
    futures = [pool.submit(shop.ask, f"due {n}", shop.units()) for n in range(4)]
    try:
        for future in concurrent.futures.as_completed(futures, timeout=3 * UNIT_S):
            shop.note(future.result())
    except concurrent.futures.TimeoutError:
        shop.note("time is up")
    concurrent.futures.wait(futures)
    rows, units = [f"row {n}" for n in range(4)], [shop.units() for _ in range(4)]
    try:
        for answer in pool.map(shop.ask, rows, units, timeout=3 * UNIT_S):
            shop.note(answer)
    except concurrent.futures.TimeoutError:
        shop.note("time is up again")


def by_cancelling(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Cancel jobs that have not begun, one by one and all at once."""
    for by_shutdown in (False, True):
        with ThreadPoolExecutor(2) as small:
            futures = [small.submit(shop.ask, f"taken back {n}", shop.units()) for n in range(6)]
            futures[0].result()
            if by_shutdown:
                small.shutdown(cancel_futures=True)
            else:
                shop.note([future.cancel() for future in reversed(futures)])
            shop.note([future.result() for future in futures if not future.cancelled()])


KINDS: tuple[Callable[[Shop, ThreadPoolExecutor], None], ...] = (
    first_completed,
    wait_some_time,
    impatient,
    from_queue,
    by_event,
    by_sleeping,
    by_timer,
    with_deadline,
    by_cancelling,
)


def run_program(shop: Shop, program: list[int]) -> Callable[[], None]:
    """A program of these kinds of steps."""

    def main() -> None:
        with ThreadPoolExecutor(4) as pool:
            for number in program:
                KINDS[number](shop, pool)

    return main


def insist(program: list[int], seed: int) -> None:
    """Record a program, and replay it, where nothing takes any time."""
    shop, again = Shop(random.Random(seed)), Shop(random.Random(seed))
    recording = recorded(run_program(shop, program), with_reads=True)
    outcome: Replayed = replayed(run_program(again, program), recording)
    assert outcome.error is None
    assert again.seen == shop.seen
    assert again.bodies == 0
    assert outcome.kinds() == []


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
def test_n2_each_way_to_wait_observes_the_same(kind: int) -> None:
    """Each kind of wait is tested alone, under five schedules."""
    for seed in range(5):
        insist([kind], seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS // 2))
def test_n2_program_of_waits_observes_the_same(seed: int) -> None:
    """Random programs of all kinds are recorded in real time."""
    rng = random.Random(seed)
    insist([rng.randrange(len(KINDS)) for _ in range(rng.randint(1, 4))], seed)


def test_n2_a_look_at_a_thread_tells_what_it_told() -> None:
    """A state that was not over when recorded is not over in the replay; one that was over is waited for."""

    def looks(is_late: bool, seen: list[bool]) -> Callable[[], None]:
        def main() -> None:
            go = threading.Event()
            thread = threading.Thread(target=lambda: go.wait(5) and ask(1))
            with ThreadPoolExecutor(1) as pool:
                future = pool.submit(go.wait, 5)
                thread.start()
                if is_late:
                    go.set()
                    real_join(thread)
                    concurrent.futures.wait([future])
                seen.extend([future.done(), thread.is_alive()])
                go.set()
                if not is_late:
                    real_join(thread)
                    concurrent.futures.wait([future])
                seen.extend([future.done(), thread.is_alive()])
                thread.join()

        return main

    @spanreplay.boundary("tool", name="ask")
    def ask(number: int) -> int:
        return number

    real_join = threading.Thread.join
    for first, then in ((False, True), (True, False)):
        told: list[bool] = []
        again: list[bool] = []
        recording = recorded(looks(first, told), with_reads=True)
        assert told == ([True, False] * 2 if first else [False, True, True, False])
        outcome = replayed(looks(then, again), recording)
        assert (outcome.error, again) == (None, told)


def test_n2_timeout_of_the_work_itself_is_not_one_of_the_wait() -> None:
    """If the work itself raised a TimeoutError, its future raises it in a replay too, and no wait expires."""

    def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(fail)
            with pytest.raises(TimeoutError, match="of its own"):
                future.result(timeout=5)

    @spanreplay.boundary("tool", name="fail")
    def fail() -> None:
        raise TimeoutError("of its own")

    recording = recorded(main)
    assert not any(wait_ends.EXPIRED in name for name in recording.root.manifest["timers"])
    outcome = replayed(main, recording)
    assert (outcome.error, outcome.kinds()) == (None, [])


def test_n2_wait_that_ended_in_time_lasts_while_results_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay on a busy machine may be slower than the run, but a wait that ended in time still does."""
    monkeypatch.setattr(serving, "_MORE_S", 0.8)

    def program(busy_s: float, limit_s: float, seen: list[str]) -> Callable[[], None]:
        def work(number: int) -> str:
            answer = ask(number)
            end = time.perf_counter() + busy_s
            while time.perf_counter() < end:
                pass
            return answer

        def main() -> None:
            with ThreadPoolExecutor(1) as pool:
                futures = [pool.submit(work, number) for number in range(5)]
                for future in concurrent.futures.as_completed(futures, timeout=limit_s):
                    seen.append(future.result())
                last = [pool.submit(work, number) for number in range(5, 10)][-1]
                seen.append(last.result(timeout=limit_s))

        return main

    @spanreplay.boundary("tool", name="ask")
    def ask(number: int) -> str:
        return f"answer {number}"

    told: list[str] = []
    again: list[str] = []
    recording = recorded(program(0, 60, told))
    outcome = replayed(program(0.3, 0.2, again), recording)
    assert (outcome.error, again, len(told)) == (None, told, 6)
    assert outcome.kinds() == []


POLLING = """
import threading, time

def poll():
    for _ in range(3):
        threading.Event().wait(0.001)
        time.sleep(0.001)
"""


def test_n2_library_that_looks_around_is_not_noted(tmp_path: Path) -> None:
    """A server's polling depends on time, so its waits and timers are not recorded and block nothing."""
    server = tmp_path / "site-packages" / "someserver.py"
    server.parent.mkdir()
    server.write_text(POLLING)
    poll = runpy.run_path(str(server))["poll"]

    def main() -> None:
        threads = [threading.Thread(target=poll), threading.Timer(0.001, poll)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ask()

    @spanreplay.boundary("tool", name="ask")
    def ask() -> int:
        return 1

    recording = recorded(main)
    timers = recording.root.manifest["timers"]
    assert [name for name in timers if "|" in name and RETURNED not in name] == []
    assert replayed(main, recording).kinds() == []


def test_sleeps_have_a_limit_and_timers_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many sleeps the first are kept; other timed events are kept as usual."""
    monkeypatch.setattr(config, "SLEEPS_MAX", 3)

    def nap() -> None:
        for _ in range(5):
            time.sleep(0.001)

    def main() -> None:
        thread = threading.Thread(target=nap)
        thread.start()
        thread.join()
        ask()
        assert not threading.Event().wait(0.001)

    @spanreplay.boundary("tool", name="ask")
    def ask() -> int:
        return 1

    names = list(recorded(main).root.manifest["timers"])
    assert len([name for name in names if wait_ends.SLEPT in name]) == 3
    assert len([name for name in names if wait_ends.EXPIRED in name]) == 1


def test_a_thread_that_carries_traffic_has_no_place_in_the_order() -> None:
    """What it hands to an event loop is part of a boundary, as inside a call: a replay makes no such thread."""

    @spanreplay.boundary("tool", name="ask")
    def ask() -> int:
        return 1

    async def main() -> None:
        ask()
        await asyncio.to_thread(str)
        with plumbing():
            await asyncio.to_thread(str)

    names = recorded(lambda: asyncio.run(main())).root.manifest["timers"]
    assert len([name for name in names if HANDED_OVER in name and "/x:str" in name]) == 1


def test_waits_are_put_back() -> None:
    """Every patched function is the original again, by identity."""
    names = [(timed.owner, timed.name) for timed in waits.TIMED] + [(time, "sleep")]
    names += [(concurrent.futures, "wait"), (concurrent.futures, "as_completed")]
    before = [owner.__dict__[name] for owner, name in names]
    patches = Patches()
    waits.install(patches)
    assert all(owner.__dict__[name] is not old for (owner, name), old in zip(names, before, strict=True))
    patches.undo()
    assert all(owner.__dict__[name] is old for (owner, name), old in zip(names, before, strict=True))


def test_waits_without_a_run_are_left_alone() -> None:
    """Without a run nothing is recorded, and timeouts are unchanged."""
    patches = Patches()
    waits.install(patches)
    try:
        assert threading.Event().wait(0.001) is False
        with pytest.raises(queue.Empty):
            queue.Queue[str]().get(timeout=0.001)
    finally:
        patches.undo()
