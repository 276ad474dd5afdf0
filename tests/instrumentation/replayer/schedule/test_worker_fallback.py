"""No job of a pool waits forever for the worker that a recording names, and no worker for a job.

The recordings here are changed so that they name a worker that can't come.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor, as_completed
from typing import Any, Final

import anyio
import anyio._backends._asyncio as on_asyncio
import anyio.from_thread
import anyio.to_thread
import pytest
import trio

import spanreplay
from spanreplay.model import config
from spanreplay.model.call import Recording
from spanreplay.replayer.schedule import stall_detector, worker_watch
from spanreplay.seams.concurrency import anyio as _anyio
from spanreplay.seams.concurrency import trio as _trio
from support.in_process import Replayed, Seams, recorded, replayed

SEAMS: Final[Seams] = ((_trio.install, trio), (_anyio.install, on_asyncio))
LIMIT_S: Final = 60.0


@spanreplay.boundary("tool", name="ask")
def ask(question: str) -> str:
    """A call."""
    return f"{question}: {time.monotonic_ns()}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that seems to work is given up early; for recordings with a worker that can't come."""
    monkeypatch.setattr(stall_detector, "STALL_AWAITED_MS", 1_000)
    monkeypatch.setattr(worker_watch, "VAIN_MS", 2_000)


def replay_in_time(program: Callable[[], Any], recording: Recording, seams: Seams = ()) -> Replayed:
    """Replay in a separate thread, so that a hang fails the test instead of blocking it."""
    found: list[Replayed] = []
    thread = threading.Thread(target=lambda: found.append(replayed(program, recording, seams=seams)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert found, "the replay hangs"
    return found[0]


def with_all_on(recording: Recording, number: int) -> Recording:
    """A recording that assigns every job to the same worker."""
    workers: Any = recording.root.manifest["workers"]
    lanes = {call.lane.partition("/ask")[0] for call in recording.calls}
    workers.update(numbers=dict.fromkeys(lanes, number) if number else {}, counts={})
    return recording


def _nested(wait: Callable[[Future[str]], str]) -> Callable[[], list[str]]:
    def program() -> list[str]:
        with ThreadPoolExecutor(2) as pool:

            def outer() -> str:
                return ask("outer") + wait(pool.submit(ask, "inner"))

            return [wait(pool.submit(outer))]

    return program


def _poll(future: Future[str]) -> str:
    while not future.done():
        time.sleep(0.01)
    return future.result()


def _on_loop() -> list[str]:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as pool:
            outer = loop.run_in_executor(pool, lambda: ask("outer") + pool.submit(ask, "inner").result())
            return [await outer]

    return asyncio.run(main())


WAITS: Final[dict[str, Callable[[], list[str]]]] = {
    "result": _nested(lambda future: future.result()),
    "result with a limit": _nested(lambda future: future.result(30)),
    "as_completed": _nested(lambda future: next(as_completed([future])).result()),
    "polling": _nested(_poll),
    "event loop": _on_loop,
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", WAITS)
def test_n2_job_behind_the_one_that_waits_for_it_runs_in_another_worker(name: str) -> None:
    """A recording that gives a job to the very worker that waits for its result does not block a replay."""
    kept: list[list[str]] = []
    program = WAITS[name]
    recording = with_all_on(recorded(lambda: kept.append(program()), with_reads=True), 0)
    outcome = replay_in_time(lambda: kept.append(program()), recording)
    assert outcome.error is None
    assert kept[0] == kept[1]


@pytest.mark.usefixtures("impatient")
def test_n2_job_of_a_worker_that_has_died_runs_in_another_one() -> None:
    """Jobs of a worker that was ended by an exception run in the others."""
    kept: list[list[str]] = []

    def program() -> None:
        given: list[Future[str]] = []
        is_given = threading.Event()
        with ThreadPoolExecutor(2) as pool:

            def spoil() -> str:
                is_given.wait()
                answer = ask("spoilt")
                given[0].set_result(answer)  # setting the result again then raises in the pool's worker
                return answer

            given.append(pool.submit(spoil))
            is_given.set()
            kept.append([given[0].result(), *(pool.submit(ask, str(n)).result() for n in range(3))])

    outcome = replay_in_time(program, with_all_on(recorded(program), 0))
    assert outcome.error is None
    assert kept[0] == kept[1]


class _Lazy(ThreadPoolExecutor):
    """A pool that never starts more than one thread."""

    def _adjust_thread_count(self) -> None:
        if not self._threads:
            super()._adjust_thread_count()


@pytest.mark.usefixtures("impatient")
def test_n2_job_whose_worker_was_never_started_runs_in_another_one() -> None:
    """A pool that decides by itself how many threads it has may lack the one that a recording names."""
    kept: list[list[str]] = []

    def program() -> None:
        with _Lazy(4) as pool:
            kept.append([pool.submit(ask, str(n)).result() for n in range(3)])

    outcome = replay_in_time(program, with_all_on(recorded(program), 3))
    assert outcome.error is None
    assert kept[0] == kept[1]


@pytest.mark.parametrize("has_begun", [True, False])
def test_n2_shutdown_that_cancels_cancels_the_same_jobs(has_begun: bool) -> None:
    """`shutdown(cancel_futures=True)` neither waits for a worker nor cancels other jobs than when recorded."""
    kept: list[list[str]] = []

    def program() -> None:
        pool = ThreadPoolExecutor(2)
        begun, go_on = threading.Event(), threading.Event()

        def hold() -> str:
            begun.set()
            go_on.wait()
            return ask("held")

        futures = [pool.submit(hold) for _ in range(2)] if has_begun else []
        if futures:
            begun.wait()
        futures += [pool.submit(ask, str(n)) for n in range(4)]
        if not has_begun:
            futures[0].result()
        threading.Timer(0.05, go_on.set).start()
        pool.shutdown(cancel_futures=True)
        kept.append([_show(each) for each in futures])

    outcome = replay_in_time(program, recorded(program))
    assert outcome.error is None
    assert kept[0] == kept[1]
    assert outcome.kinds() == []


def _show(future: Future[str]) -> str:
    try:
        return future.result()
    except (CancelledError, BrokenExecutor) as exc:
        return type(exc).__name__


def test_n2_initializer_that_fails_breaks_the_pool_again() -> None:
    """A pool whose initializer raises ends its jobs with `BrokenThreadPool` in a replay too."""
    kept: list[str] = []

    def fail() -> None:
        raise ValueError(ask("start"))

    def program() -> None:
        ask("before")
        with ThreadPoolExecutor(2, initializer=fail) as pool:
            kept.append(_show(pool.submit(ask, "never")))

    outcome = replay_in_time(program, recorded(program))
    assert outcome.error is None
    assert kept == ["BrokenThreadPool"] * 2


def test_n2_pool_with_a_queue_of_its_own_keeps_it() -> None:
    """A pool with another queue (by priority) takes its jobs from there."""
    kept: list[list[str]] = []

    class _Reversed(queue.LifoQueue[Any]):
        pass

    class _Pool(ThreadPoolExecutor):
        def __init__(self) -> None:
            super().__init__(2)
            self._work_queue = _Reversed()  # type: ignore[assignment]  # what pools with priorities do

    def program() -> None:
        with _Pool() as pool:
            kept.append([pool.submit(ask, str(n)).result() for n in range(4)])
            assert isinstance(pool._work_queue, _Reversed)

    outcome = replay_in_time(program, recorded(program))
    assert outcome.error is None
    assert kept[0] == kept[1]
    assert outcome.kinds() == []


def test_n2_jobs_beyond_the_limit_run_in_any_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs above the recorded limit run in any free worker."""
    monkeypatch.setattr(config, "WORKER_JOBS_MAX", 1)
    kept: list[list[str]] = []

    def program() -> None:
        with ThreadPoolExecutor(4) as pool:
            kept.append([each.result() for each in [pool.submit(ask, str(n)) for n in range(12)]])

    recording = recorded(program)
    recording.root.manifest["workers"]["is_full"] = True
    outcome = replay_in_time(program, recording)
    assert outcome.error is None
    assert kept[0] == kept[1]
    assert outcome.kinds() == []


def test_n2_jobs_in_copied_contexts_find_their_worker() -> None:
    """`submit(copy_context().run, …)`, as in LangGraph and LlamaIndex, counts as the same job."""
    kept: list[list[str]] = []
    local = threading.local()

    def job(number: int) -> str:
        if not hasattr(local, "first"):
            local.first = ask(f"first {number}")
        return f"{ask(str(number))} {local.first}"

    def program() -> None:
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(contextvars.copy_context().run, job, number) for number in range(9)]
            kept.append([each.result() for each in futures])

    outcome = replay_in_time(program, recorded(program))
    assert outcome.error is None
    assert kept[0] == kept[1]
    assert outcome.kinds() == []


def test_n2_job_can_be_put_while_the_queue_is_locked() -> None:
    """A pool that is collected during a queue's method ends its workers, so putting a job takes no lock."""
    seen: list[int] = []

    def program() -> None:
        pool = ThreadPoolExecutor(1)
        pool.submit(ask, "first").result()
        routed: Any = pool._work_queue
        if hasattr(routed, "_lock"):
            with routed._lock:
                thread = threading.Thread(target=routed.put, args=(None,))
                thread.start()
                thread.join(LIMIT_S)
                assert not thread.is_alive()
            seen.append(1)
        pool.shutdown()

    replay_in_time(program, recorded(program))
    assert seen == [1]


def _on_trio() -> list[str]:
    async def inner() -> str:
        return await trio.to_thread.run_sync(ask, "inner")

    async def main() -> list[str]:
        return [await trio.to_thread.run_sync(lambda: ask("outer") + trio.from_thread.run(inner))]

    return trio.run(main)


def _on_anyio() -> list[str]:
    async def inner() -> str:
        return await anyio.to_thread.run_sync(ask, "inner")

    async def main() -> list[str]:
        return [await anyio.to_thread.run_sync(lambda: ask("outer") + anyio.from_thread.run(inner))]

    return anyio.run(main)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("program", [_on_trio, _on_anyio], ids=["trio", "anyio"])
def test_n2_call_behind_the_one_that_waits_for_it_gets_another_thread(program: Callable[[], list[str]]) -> None:
    """A recording that gives a call to the very thread that waits for its result does not block a replay."""
    kept: list[list[str]] = []
    recording = recorded(lambda: kept.append(program()), SEAMS)
    stated: Any = recording.root.manifest["workers"]
    assert sorted(stated["threads"].values()) == [0, 1]
    stated["threads"] = dict.fromkeys(stated["threads"], 0)
    outcome = replay_in_time(lambda: kept.append(program()), recording, SEAMS)
    assert outcome.error is None
    assert kept[0] == kept[1]


def test_n2_recording_that_names_no_threads_is_replayed() -> None:
    """With a recording of an earlier version the event loop chooses the threads."""
    kept: list[list[str]] = []
    for program in (_on_trio, _on_anyio):
        recording = recorded(lambda: kept.append(program()), SEAMS)  # noqa: B023 -- called at once
        stated: Any = recording.root.manifest
        del stated["workers"]
        outcome = replay_in_time(lambda: kept.append(program()), recording, SEAMS)  # noqa: B023 -- called at once
        assert outcome.error is None
        assert outcome.kinds() == []
