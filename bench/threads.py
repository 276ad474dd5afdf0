"""Duration of a replay of calls in threads, relative to the recorded run; the replay must never stall.

A replay resumes one thread after another in the recorded order, so its time is that of passing the turn on.

Run: python -m bench.threads
"""

from __future__ import annotations

import asyncio
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from bench.figures import Figure, main

import spanreplay

CALLS = 400
THREADS = 8
CALL_S = 0.01


@spanreplay.boundary("tool", name="ask", effect="read")
def _ask(number: int) -> int:
    time.sleep(CALL_S)
    return number


def _in_pool() -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(_ask, range(CALLS)))


def _in_daemons() -> None:
    todo: queue.Queue[int] = queue.Queue()

    def work() -> None:
        while True:
            _ask(todo.get())
            todo.task_done()

    for _ in range(THREADS):
        threading.Thread(target=work, daemon=True).start()
    for number in range(CALLS):
        todo.put(number)
    todo.join()


def _from_loop() -> None:
    async def ask_all() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(pool, _ask, number) for number in range(CALLS)))

    asyncio.run(ask_all())


WAYS: dict[str, Callable[[], None]] = {
    "a pool": _in_pool,
    "daemons at a queue": _in_daemons,
    "a loop's executor": _from_loop,
}


def _measure(name: str, way: Callable[[], None], folder: Path) -> Figure:
    start = perf_counter()
    with spanreplay.record(name="bench", directory=folder) as block:
        way()
    run_s = perf_counter() - start
    recording = block.save(folder / f"{name}.replay")
    start = perf_counter()
    with spanreplay.replay(recording) as session:
        way()
    replay_s = perf_counter() - start
    if session.served != CALLS or session.divergences:
        raise RuntimeError(f"{session.served} of {CALLS} calls were served, {len(session.divergences)} divergences")
    detail = f"{replay_s:.2f} s, the run {run_s:.2f} s; {CALLS} calls of {CALL_S * 1000:.0f} ms in {THREADS} threads"
    return Figure(f"replay calls in threads, {name}, over the run", replay_s / run_s, "x", None, detail)


def measure() -> Sequence[Figure]:
    """Record and replay each way of using threads in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return [_measure(name, way, Path(folder)) for name, way in WAYS.items()]


if __name__ == "__main__":
    main(measure)
