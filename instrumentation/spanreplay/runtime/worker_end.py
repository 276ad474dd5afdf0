"""Has a worker of a `multiprocessing.Pool` report its work before its pool kills it (at the end of a `with` block).

A worker has a thread that waits for the request, which comes through a FIFO in the folder that the processes of a run
share. Its signal handlers stay unchanged: one of ours could keep alive a worker that waits for an item.
"""

from __future__ import annotations

import _thread
import os
import posix  # in a replay, functions of os act on the agent's files
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard

if TYPE_CHECKING:
    from spanreplay.runtime.processes import ProcessGroup
    from spanreplay.runtime.run import Run

STARVED_S_MAX: Final = 20.0
"""How much longer it waits while the reporting process gets no CPU."""
_LOOK_S: Final = 0.002
_PARKED_LOOK_S: Final = 0.05
_ATTEMPTS_MAX: Final = 100


class _Spent:
    seconds = 0.0


_spent: Final = _Spent()


class _Finishing:
    lock = _thread.allocate_lock()


_finishing: Final = _Finishing()


def finish(run: Run) -> None:
    """End the run in this process; a second caller returns after the work is reported."""
    with _finishing.lock:
        guard.guarded("the end of a process", run.finish)


def _state(run: Run) -> None:
    """Report the work done so far."""
    if not run.order.keeps_reported:
        run.lock_order.workers.ended(run.root_lane.path)
        finish(run)
        return
    with _finishing.lock:
        if not run.is_ended:
            guard.guarded("the end of a process", _write_part, run)


def _write_part(run: Run) -> None:
    for _ in range(_ATTEMPTS_MAX):
        try:
            run.write_part()
        except RuntimeError:  # collections in the part have grown meanwhile
            continue
        return


def _fifo(shared: ProcessGroup, number: int) -> str:
    return f"{shared.folder}/end-{number}"


def _stillborn(shared: ProcessGroup, number: int) -> str:
    return f"{shared.folder}/stillborn-{number}"


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def _has_part(shared: ProcessGroup, number: int) -> bool:
    return _exists(f"{shared.folder}/part-{number}.json")


def wait_for_end(is_over: Callable[[], bool]) -> None:
    """Block until this process is killed, its parent is gone, or `is_over`."""
    parent, pause = posix.getppid(), _thread.allocate_lock()
    pause.acquire()
    while not is_over() and posix.getppid() == parent:
        pause.acquire(timeout=_PARKED_LOOK_S)


def is_stillborn(shared: ProcessGroup, number: int) -> bool:
    """Whether a worker has not got far enough to do anything; if so, it never will."""
    if _exists(_fifo(shared, number)):
        return False
    posix.close(posix.open(_stillborn(shared, number), posix.O_WRONLY | posix.O_CREAT | os.O_CLOEXEC, 0o600))
    return not _exists(_fifo(shared, number))  # the worker checks in the other order


def answer(run: Run, shared: ProcessGroup) -> None:
    """Report this process's work when asked to, in a separate thread."""
    _finishing.lock = _thread.allocate_lock()
    path = _fifo(shared, shared.number)
    posix.mkfifo(path, 0o600)
    if _exists(_stillborn(shared, shared.number)):
        wait_for_end(lambda: False)

    def wait() -> None:
        try:
            descriptor = posix.open(path, posix.O_RDONLY | os.O_CLOEXEC)
            is_asked = bool(posix.read(descriptor, 1))
            posix.close(descriptor)
        except OSError:  # the run is over, and its folder gone
            return
        if is_asked:
            _state(run)

    _thread.start_new_thread(wait, ())  # not a `threading.Thread`, so the agent's count of threads does not change


def ask(shared: ProcessGroup, number: int, process: Any, wait_s_max: float) -> None:
    """Ask a process of the run to report its work, and wait until it does, it ends or time runs out.

    `wait_s_max`: how many seconds this process waits in vain for such reports, in total.
    """
    pause = _thread.allocate_lock()
    pause.acquire()
    since, starved, is_asked = time.monotonic(), _starved_s(process.pid), False
    limit = wait_s_max - _spent.seconds
    while not _has_part(shared, number) and process.exitcode is None:
        waited = time.monotonic() - since
        if waited >= limit and waited - min(_starved_s(process.pid) - starved, STARVED_S_MAX) >= limit:
            break
        is_asked = is_asked or _write(_fifo(shared, number))
        pause.acquire(timeout=_LOOK_S)
    if not _has_part(shared, number):
        _spent.seconds += time.monotonic() - since


def _starved_s(pid: int) -> float:
    """How long the threads of a process have waited for a CPU, the maximum over all threads; 0 if unknown."""
    longest = 0
    try:
        for task in posix.listdir(f"/proc/{pid}/task"):
            descriptor = posix.open(f"/proc/{pid}/task/{task}/schedstat", posix.O_RDONLY)
            try:
                longest = max(longest, int(posix.read(descriptor, 128).split()[1]))
            finally:
                posix.close(descriptor)
    except (OSError, IndexError, ValueError):  # it has ended, or the kernel does not count
        return longest / 1e9
    return longest / 1e9


def _write(path: str) -> bool:
    """Whether a reader was asked; writing fails without a reader."""
    try:
        descriptor = posix.open(path, posix.O_WRONLY | posix.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return posix.write(descriptor, b".") == 1
    except OSError:
        return False
    finally:
        posix.close(descriptor)
