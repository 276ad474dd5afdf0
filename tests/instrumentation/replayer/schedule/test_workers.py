"""Each job of a pool runs in the same worker as when it was recorded.

SPANREPLAY_TEST_PROGRAMS says how many random programs are tried.
"""

from __future__ import annotations

import os
import queue
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio._backends._asyncio as on_asyncio
import anyio._backends._trio as on_trio
import pytest
import trio
from trio._core import _thread_cache

from spanreplay.seams.concurrency import anyio as _anyio
from spanreplay.seams.concurrency import locks_and_queues
from spanreplay.seams.concurrency import trio as _trio
from support.in_process import Seams, recorded, replayed
from support.worker_programs import PROGRAMS, Office, build, draw_jobs

SEAMS: Seams = (
    (_trio.install, trio),
    (_anyio.install, on_asyncio),
    (_anyio.install, on_trio),
    (locks_and_queues.install, threading),
    (locks_and_queues.install, queue),
)
COUNT = int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60")) // 10


@pytest.fixture(autouse=True)
def busy_interpreter() -> Iterator[None]:
    """Threads lose the GIL all the time, so that workers race for jobs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("name", PROGRAMS)
def test_n2_job_finds_the_worker_that_it_had(name: str, seed: int) -> None:
    """Each job finds the state that its worker kept (`threading.local`, Context, weak references), as recorded."""
    jobs, workers = draw_jobs(random.Random(seed))
    office, again = Office(), Office()
    recording = recorded(build(name, office, jobs, workers), SEAMS)
    outcome = replayed(build(name, again, jobs, workers), recording, seams=SEAMS)
    assert outcome.error is None
    assert again.observed == office.observed
    assert outcome.kinds() == []
    assert outcome.session.gate.skipped == []


def _run_trio(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main)


def _run_anyio(main: Callable[[], Awaitable[None]]) -> None:
    anyio.run(main)


@pytest.mark.parametrize(
    ("run_main", "to_thread"), [(_run_anyio, anyio.to_thread.run_sync), (_run_trio, None)], ids=["anyio", "trio"]
)
def test_n2_thread_that_was_idle_for_too_long_is_gone_again(
    run_main: Callable[[Any], None], to_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop ends idle threads by the clock, which a replay, in which calls take no time, does not use."""
    monkeypatch.setattr(on_asyncio.WorkerThread, "MAX_IDLE_TIME", 0.1)
    monkeypatch.setattr(_thread_cache, "IDLE_TIMEOUT", 0.1)

    def program(office: Office) -> Callable[[], None]:
        async def one(number: int) -> None:
            office.observed.append(await (to_thread or trio.to_thread.run_sync)(office.work, number, 10))

        async def several(first: int) -> None:
            async with anyio.create_task_group() as group:
                for number in range(first, first + 3):
                    group.start_soon(one, number)

        async def main() -> None:
            await several(0)
            await several(10)
            office.ask("a long call", 400)
            await one(20)
            await several(30)

        return lambda: run_main(main)

    office, again = Office(), Office()
    recording = recorded(program(office), SEAMS)
    connections = {row[0]: row[2] for row in office.observed}
    assert len(set(connections.values())) > 3, "no thread was ended"
    outcome = replayed(program(again), recording, seams=SEAMS)
    assert outcome.error is None
    assert again.observed == office.observed
    assert outcome.kinds() == []
