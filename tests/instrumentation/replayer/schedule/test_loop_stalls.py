"""An event loop waits for its threads as long as one of them makes progress."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from queue import SimpleQueue

import pytest

import spanreplay
from spanreplay.replayer.schedule import virtual_time
from spanreplay.replayer.schedule.stall_detector import Reaction
from support.in_process import recorded, replayed

STEPS, PAUSE_S = 14, 0.2
COMPUTED_S = 3.0


class _Office:
    """A loop whose next answer is due after the work of its thread, which is slow only in the replay."""

    def __init__(self) -> None:
        self.is_slow = False
        self.told = threading.Event()

        @spanreplay.boundary("tool", name="ask")
        def ask(number: int) -> int:
            return number

        @spanreplay.boundary("tool", name="late")
        async def late() -> str:
            while not self.told.is_set():
                await asyncio.sleep(0.005)
            return "late"

        self.ask, self.late = ask, late

    def in_steps(self) -> int:
        """Make one call after another, with pauses between them that no patch sees."""
        for number in range(STEPS):
            self.ask(number)
            if self.is_slow:
                select.select([], [], [], PAUSE_S)
        return STEPS

    def at_length(self) -> int:
        """Make two calls, with nothing but computation between them."""
        self.ask(1)
        until = time.thread_time() + (COMPUTED_S if self.is_slow else 0)
        while time.thread_time() < until:
            pass
        return self.ask(2)

    def program(self, work: Callable[[], int]) -> Callable[[], object]:
        """The loop and its thread."""

        async def in_thread() -> int:
            result = await asyncio.to_thread(work)
            self.told.set()
            return result

        async def main() -> None:
            await asyncio.gather(self.late(), in_thread())

        return lambda: asyncio.run(main())


@pytest.mark.parametrize("how", ["in_steps", "at_length"])
def test_n2_loop_waits_for_a_thread_that_gets_on(how: str) -> None:
    """The thread makes calls, or computes, for more than two seconds while the loop has nothing to do."""
    office, again = _Office(), _Office()
    recording = recorded(office.program(getattr(office, how)))
    again.is_slow = True
    outcome = replayed(again.program(getattr(again, how)), recording)
    assert outcome.error is None
    assert outcome.kinds() == []
    assert outcome.session.gate.skipped == []


def test_n2_loop_goes_on_once_its_threads_wait_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits in native code, as aiosqlite's do, is not given the longest time to react to each result."""
    ends: list[bool] = []

    class Longer(Reaction):
        """Gives threads 20 s instead of 0.2, unless they are seen to do nothing."""

        def __init__(self, others_s: float = 20.0, since: float | None = None, **kind: bool) -> None:
            super().__init__(others_s, since, **kind)

        def is_over(self, waiting: Collection[int] = ()) -> bool:
            is_over = super().is_over(waiting)
            if is_over and not self._is_patient:
                ends.append(time.monotonic() < self._due)
            return is_over

    @spanreplay.boundary("tool", name="ask")
    async def ask(number: int) -> int:
        return number

    def program() -> None:
        jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

        def serve() -> None:
            while (job := jobs.get()) is not None:
                job()

        async def main() -> None:
            loop = asyncio.get_running_loop()
            thread = threading.Thread(target=serve)
            thread.start()
            for number in range(3):
                done = loop.create_future()
                jobs.put(partial(loop.call_soon_threadsafe, done.set_result, number))
                await ask(await done)
            jobs.put(None)
            thread.join()

        asyncio.run(main())

    recording = recorded(program)
    monkeypatch.setattr(virtual_time, "Reaction", Longer)
    outcome = replayed(program, recording)
    assert outcome.error is None
    assert outcome.kinds() == []
    assert ends
    assert all(ends)
