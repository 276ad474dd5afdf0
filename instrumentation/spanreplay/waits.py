"""Waits of threads whose end is a matter of time: what was done by then, and what nothing came of.

`concurrent.futures.wait` returns what is done at that moment, a wait with a timeout may end without what it waited for,
and threads take turns by sleeping. Each such end takes a value of the run's logical clock, named by the thread's lane
and its number there, so that a replay gives the same futures and lets the same waits expire (`replay/waits.py`).
Only what the agent's own code or its framework asks for counts: how often a server or a pool of a library looks around
is a matter of time. What a boundary's own body waits for is left out: in a replay that body does not run.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures._base as base
import hashlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Final, NamedTuple

from spanreplay import guard
from spanreplay._patch import Patches
from spanreplay.crossing import is_plumbing
from spanreplay.lane_end import ENDED
from spanreplay.lane_order import ENDING, LaneFuture
from spanreplay.lanes import Lane, current_crossing, current_lane, has_lane
from spanreplay.local import origin
from spanreplay.returns import note_return
from spanreplay.run import Run, active_run

DONE: Final = "|done|"
"""Stands in a name between a lane, and which futures it waits for and which of them were done, as bits."""
CANCELLED: Final = f"{DONE}cancel."
"""Stands in a name between a future's lane, and how often it was cancelled and whether it was, as a bit."""
EXPIRED: Final = "|expired|"
"""Stands in a name between a lane and the number of a wait that ended without what it waited for."""
SLEPT: Final = "|slept|"
"""Stands in a name between a lane and the number of its sleep; sleeps are noted while there are several threads."""
FUTURES_MAX: Final = 512
"""A wait for more futures is not kept: their bits would fill the manifest."""


AT_ONCE: Final = -1.0
"""Limit of a call that says not to wait."""
_ATTEMPT: Final = "attempt."
"""In the name of one: there may be many, of which the first are kept, as of sleeps."""


class Timed(NamedTuple):
    """A function that waits with a timeout, and what it does when nothing comes."""

    owner: Any
    name: str
    timeout_at: int
    """Position of its argument `timeout`."""
    raises: type[BaseException] | None = None
    """What it raises then; without, it returns something false."""
    block_at: int = -1
    """Position of the argument that says whether to wait at all; -1: it has none."""
    frees_many: bool = False
    """Whether several threads may wait for the same: the order in which they go on is noted."""

    def limit_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """How long a call may wait; None: for ever; AT_ONCE: not at all."""
        if self.block_at >= 0:
            given = kwargs.get("block", kwargs.get("blocking", True))
            if not (args[self.block_at] if len(args) > self.block_at else given):
                return AT_ONCE
        return args[self.timeout_at] if len(args) > self.timeout_at else kwargs.get("timeout")

    def with_limit(self, args: Sequence[Any], kwargs: Mapping[str, Any], seconds: float) -> tuple[list[Any], Any]:
        """The arguments of a call that waits so long."""
        changed, named = list(args), dict(kwargs)
        if self.block_at >= 0:
            named = {name: value for name, value in named.items() if name not in ("block", "blocking")}
            changed[self.block_at : self.block_at + 1] = [True] if len(args) > self.block_at else []
        if len(args) > self.timeout_at:
            changed[self.timeout_at] = seconds
        else:
            named["timeout"] = seconds
        return changed, named

    def has_expired(self, instance: Any, result: Any) -> bool:
        """Whether what it returned says that nothing came."""
        return instance.is_alive() if self.name == "join" else self.raises is None and not result

    def is_expiry(self, instance: Any, error: BaseException) -> bool:
        """Whether what it raised says so: a future may have been given a TimeoutError to raise as well."""
        return (
            self.raises is not None and isinstance(error, self.raises) and error is not vars(instance).get("_exception")
        )


TIMED: Final = (
    Timed(base.Future, "result", 0, base.TimeoutError),
    Timed(base.Future, "exception", 0, base.TimeoutError),
    Timed(queue.Queue, "get", 1, queue.Empty, block_at=0),
    Timed(queue.Queue, "put", 2, queue.Full, block_at=1),
    Timed(threading.Event, "wait", 0, frees_many=True),
    Timed(threading.Semaphore, "acquire", 1, block_at=0, frees_many=True),
    Timed(threading.Semaphore, "__enter__", 1, block_at=0, frees_many=True),
    Timed(threading.Condition, "wait_for", 1),
    Timed(threading.Condition, "wait", 0),
    Timed(threading.Thread, "join", 0),
)


_CARRIERS: Final = frozenset(
    each.__code__.co_filename for each in (threading.Thread.join, queue.Queue.join, base.Future.cancel)
)
"""Files that only carry out what their caller wants to wait for."""
_CANCELLERS: Final = _CARRIERS | {concurrent.futures.ThreadPoolExecutor.shutdown.__code__.co_filename, __file__}
_TAKE_RESULT: Final = getattr(getattr(base, "_result_or_cancel", None), "__code__", None)
"""`Executor.map` cancels each future whose result it has taken; it is done, and nothing is to be noted."""
_TIMER: Final = threading.Timer.run.__code__


class _Inner(threading.local):
    is_known = False
    """Whether what the calling thread waits for is noted by the function that waits for it."""
    is_asked = False
    """Whether what it does is the agent's, though it is our code that does it."""


_inner: Final = _Inner()


@contextmanager
def _within(mark: str) -> Iterator[None]:
    before = getattr(_inner, mark)
    setattr(_inner, mark, True)
    try:
        yield
    finally:
        setattr(_inner, mark, before)


def name_attempt(lane: Lane) -> str:
    """The name of a call that need not succeed."""
    return f"{lane.path}{EXPIRED}{_ATTEMPT}{lane.next_index('attempt')}"


def unwatched() -> AbstractContextManager[None]:
    """What the calling thread waits for within is not the agent's, or is noted already."""
    return _within("is_known")


def asked() -> AbstractContextManager[None]:
    """What the calling thread does within is what the agent asked for."""
    return _within("is_asked")


def install(patches: Patches) -> None:
    """Patch what threads wait with."""
    patches.wrap(base, "wait", wait_futures)
    patches.replace(concurrent.futures, "wait", base.wait)
    patches.wrap(base, "as_completed", take_completed)
    patches.replace(concurrent.futures, "as_completed", base.as_completed)
    patches.wrap(concurrent.futures.ThreadPoolExecutor, "shutdown", shut_down)
    for timed in TIMED:
        patches.wrap(timed.owner, timed.name, _wrapper(timed))
    patches.wrap(threading.Barrier, "wait", meet)
    patches.wrap(time, "sleep", sleep)


def _lane_here(run: Run, frame: FrameType | None, carriers: Collection[str] = _CARRIERS) -> Lane | None:
    """The lane of the calling thread, or None where what it does in this frame is not the agent's."""
    is_known = has_lane() or threading.current_thread() is threading.main_thread()
    if not is_known or current_crossing(run.root_lane) is not None or is_plumbing(run):
        return None
    return current_lane(run.root_lane) if _is_asked(frame, carriers) else None


def _is_asked(
    frame: FrameType | None, carriers: Collection[str], is_by: Callable[[FrameType], bool] = origin.is_agent
) -> bool:
    """Whether the agent's own code or its framework waits in this frame, or in what it calls for that."""
    for _ in range(origin.FRAMES_MAX):
        if frame is None:
            return False
        if frame.f_code is _TIMER:
            made_for = getattr(frame.f_locals["self"].function, "__code__", None)
            return made_for is not None and origin.classify(made_for.co_filename) == origin.AGENT
        if frame.f_code.co_filename not in carriers:
            return is_by(frame)
        frame = frame.f_back
    return False


# ── futures ─────────────────────────────────────────────────────────────────────────────────────────
def wait_futures(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`concurrent.futures.wait`, whose result is noted; in a replay, the recorded one."""
    run = active_run()
    if run is None:
        return wrapped(*args, **kwargs)
    fs, timeout, until = _read(*args, **kwargs)
    if timeout is None and until == concurrent.futures.ALL_COMPLETED:
        return wrapped(fs, timeout, until)
    fs = list(fs)  # it may be a generator
    lane = guard.guarded("naming a wait", _lane_here, run, sys._getframe(1))
    futures = None if lane is None else _in_order(fs)
    if lane is None or futures is None:
        return wrapped(fs, timeout, until)
    name = f"{lane.path}{DONE}{_set_of(lane, futures)}|"
    with unwatched():
        if run.session is not None:
            from spanreplay.replay.waits import wait_as_recorded

            return wait_as_recorded(wrapped, run.session.gate, name, futures, (timeout, until))
        wrapped(fs, timeout, until)
    with ENDING:  # none ends between the look at them and its note
        done = [each.done() for each in futures]
        guard.guarded("the end of a wait", _note_done, run, name + to_bits(done), futures)
    return split(futures, done)


def _note_done(run: Run, name: str, futures: Sequence[LaneFuture]) -> None:
    run.end_timer(name)
    run.waits[name] = _lanes_of(futures)


def _set_of(lane: Lane, futures: Sequence[LaneFuture]) -> str:
    """A name for some futures, and the number of their wait: how often a library waits may be a matter of time."""
    digest = hashlib.sha256("\n".join(_lanes_of(futures)).encode()).hexdigest()[:16]
    return f"{digest}.{lane.next_index(f'wait {digest}')}"


def _lanes_of(futures: Sequence[LaneFuture]) -> list[str]:
    return [end.lane for end in (each._spanreplay_lane for each in futures) if end is not None]


def _read(fs: Any, timeout: Any = None, return_when: Any = concurrent.futures.ALL_COMPLETED) -> tuple[Any, Any, Any]:
    return fs, timeout, return_when


def _in_order(futures: Sequence[Any]) -> Sequence[LaneFuture] | None:
    """The futures in the order of their lanes; None if some are not ours, or they are too many."""
    found = set(futures)
    if not 0 < len(found) <= FUTURES_MAX:
        return None
    if not all(isinstance(each, LaneFuture) and each._spanreplay_lane is not None for each in found):
        return None
    return sorted(found, key=hash)


def to_bits(done: Sequence[bool]) -> str:
    """Which of some futures are done, as a hexadecimal number; the first is its lowest bit."""
    return f"{sum(1 << at for at, is_done in enumerate(done) if is_done):x}"


def split(futures: Sequence[Any], done: Sequence[bool]) -> Any:
    """What `concurrent.futures.wait` returns."""
    finished = {each for each, is_done in zip(futures, done, strict=True) if is_done}
    return base.DoneAndNotDoneFutures(finished, set(futures) - finished)


def take_completed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`concurrent.futures.as_completed`, of which is noted how many came in time; in a replay, as many."""
    fs, timeout, _ = _read(*args, **kwargs)
    run = None if timeout is None else active_run()
    lane = None if run is None else guard.guarded("naming a wait", _lane_here, run, sys._getframe(1))
    if run is None or lane is None:
        return wrapped(fs, timeout)
    name = f"{lane.path}{DONE}in time.{lane.next_index('as_completed')}|"
    if run.session is None:
        return _in_time(run, name, wrapped(fs, timeout))
    from spanreplay.replay.waits import take_as_recorded

    return take_as_recorded(wrapped, run.session.gate, name, fs, timeout)


def _in_time(run: Run, name: str, futures: Iterator[Any]) -> Iterator[Any]:
    count = 0
    while True:
        try:
            with unwatched():
                found = [next(futures)]
        except StopIteration:
            return
        except base.TimeoutError:
            _note(run, f"{name}{count:x}")
            raise
        count += 1
        yield found.pop()  # not to keep it alive


def cancel_noted(run: Run, name: str, future: Any, cancel: Callable[[], bool]) -> bool:
    """`Future.cancel` of a pool's future, which is too late once it has begun."""
    if run.is_ended or run is not active_run():
        return cancel()
    frame = sys._getframe(3)
    if frame.f_code is _TAKE_RESULT and future._state == base.FINISHED:
        return cancel()
    lane = guard.guarded("naming a wait", _lane_here, run, frame, _CANCELLERS)
    if lane is None and not _inner.is_asked:
        return cancel()
    if run.session is not None:
        from spanreplay.replay.waits import cancel_as_recorded

        return cancel_as_recorded(cancel, run.session.gate, name, future)
    is_cancelled = cancel()
    _note(run, f"{name}{is_cancelled:x}")
    return is_cancelled


def shut_down(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    """`ThreadPoolExecutor.shutdown`; in a replay it cancels what it did then, whatever the pool has begun."""
    run = active_run()
    if run is not None and run.session is not None and kwargs.get("cancel_futures"):
        from spanreplay.replay.waits import cancel_queued

        cancel_queued(run.session.gate, pool)
    return wrapped(*args, **kwargs)


# ── timeouts ────────────────────────────────────────────────────────────────────────────────────────
def _wrapper(timed: Timed) -> Callable[[Any, Any, Any, Any], Any]:
    def wait(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        limit = timed.limit_of(args, kwargs)
        is_bridge = timed.owner is base.Future and getattr(instance, "_spanreplay_lane", None) is None
        frees_many = timed.frees_many or is_bridge
        run = None if _inner.is_known or (limit is None and not frees_many) else active_run()
        lane = None if run is None else guard.guarded("naming a wait", _lane_of, run, instance, sys._getframe(1))
        if run is None or lane is None:
            return wrapped(*args, **kwargs)
        is_own = (limit is None or limit is AT_ONCE or frees_many) and _is_asked(
            sys._getframe(1), _CARRIERS, origin.is_agent if is_bridge and limit is None else origin.is_own
        )
        if not (is_own or (limit is not None and limit is not AT_ONCE)):
            return wrapped(*args, **kwargs)
        if limit is None:
            return _go_on_in_turn(run, lambda: wrapped(*args, **kwargs))
        name = name_attempt(lane) if limit is AT_ONCE else f"{lane.path}{EXPIRED}{lane.next_index('timed')}"
        with unwatched():
            result = _wait_with_limit(run, timed, name, instance, (wrapped, args, kwargs))
        if is_own and (result or is_bridge) and frees_many and run.handovers.is_shared:
            note_return(run)
        return result

    return wait


def _wait_with_limit(run: Run, timed: Timed, name: str, instance: Any, asked_for: tuple[Any, Any, Any]) -> Any:
    wrapped, args, kwargs = asked_for
    if run.session is None:
        return _watch(run, timed, name, instance, lambda: wrapped(*args, **kwargs))
    from spanreplay.replay.waits import expire_as_recorded

    def call(seconds: float) -> Any:
        changed, named = timed.with_limit(args, kwargs, seconds)
        return wrapped(*changed, **named)

    return expire_as_recorded(call, timed, run.session.gate, name, instance, timed.limit_of(args, kwargs))


def _go_on_in_turn(run: Run, call: Callable[[], Any]) -> Any:
    """Wait for what others may wait for too, and note the order in which they go on."""
    try:
        with unwatched():
            return call()
    finally:
        if run.handovers.is_shared:
            note_return(run)


def meet(wrapped: Any, barrier: Any, args: Any, kwargs: Any) -> Any:
    """`Barrier.wait`, which lets many go on at once."""
    run = None if _inner.is_known else active_run()
    lane = None if run is None else guard.guarded("naming a wait", _lane_here, run, sys._getframe(1))
    if run is None or lane is None or not _is_asked(sys._getframe(1), _CARRIERS, origin.is_own):
        return wrapped(*args, **kwargs)
    return _go_on_in_turn(run, lambda: wrapped(*args, **kwargs))


def _lane_of(run: Run, instance: Any, frame: FrameType) -> Lane | None:
    is_own = run.session is not None and run.session.gate.owns(instance)
    return None if is_own else _lane_here(run, frame)


def _watch(run: Run, timed: Timed, name: str, instance: Any, call: Callable[[], Any]) -> Any:
    """Wait, and note it if nothing came."""
    try:
        result = call()
    except BaseException as exc:
        if timed.is_expiry(instance, exc):
            _note(run, name, is_sleep=_ATTEMPT in name)
        raise
    if timed.name == "join" and ENDED in vars(instance):
        threading.Thread.join(instance)  # it is over: all that could be seen of it has happened
    if timed.has_expired(instance, result):
        _note(run, name, is_sleep=_ATTEMPT in name)
    return result


def _note(run: Run, name: str, *, is_sleep: bool = False) -> None:
    if not run.is_ended:
        guard.guarded("the end of a wait", run.end_timer, name, is_sleep)


# ── sleeps ──────────────────────────────────────────────────────────────────────────────────────────
def sleep(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`time.sleep`, by which threads take turns; in a replay it ends when it is its turn."""
    run = active_run()
    if run is None or not run.handovers.is_shared:
        return wrapped(*args, **kwargs)
    lane = guard.guarded("naming a sleep", _lane_here, run, sys._getframe(1))
    if lane is None:
        return wrapped(*args, **kwargs)
    name = f"{lane.path}{SLEPT}{lane.next_index('sleep')}"
    if run.session is None:
        result = wrapped(*args, **kwargs)
        _note(run, name, is_sleep=True)
        return result
    from spanreplay.replay.waits import sleep_as_recorded

    return sleep_as_recorded(wrapped, run.session.gate, name, args)
