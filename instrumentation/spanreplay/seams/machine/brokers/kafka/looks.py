"""Looks for messages and reports that may find nothing: `poll`, `flush`, `consume`.

A program looks again and again; only what was found is a call. Before it, one text is read that says how many looks in
this lane had found nothing and what came then: in a replay they find nothing as often. A client calls the program back
while it looks; each time is a call of its own with the values that the program is given, and then the program runs.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.calls.open_call import no_plumbing, plumbing
from spanreplay.runtime.calls.taking import Source, Taker, Taking
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.reads import make_loose
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.brokers.kafka.values import KafkaFailure, carry, is_of_client, make_failure, uncarry

_FOUND: Final = make_loose("environment", "kafka.found")
_sleep: Final = inspect.unwrap(time.sleep)
_RESULT: Final = "result"
_IDLE_S_MAX: Final = 0.01
"""How long a replay waits where the recording has no more looks."""


class _Lane:
    """How often looks of a lane found nothing."""

    def __init__(self) -> None:
        self.empty = 0
        self.due: tuple[int, str] | None = None
        """In a replay: how many looks find nothing, and what comes then; '' if nothing comes any more."""


_lanes: Final[WeakKeyDictionary[Run, dict[str, _Lane]]] = WeakKeyDictionary()


def _lane_of(run: Run) -> _Lane:
    lanes = _lanes.setdefault(run, {})
    return lanes.setdefault(current_lane(run.root_lane).path, _Lane())


def note_nothing(run: Run) -> None:
    """Note that a look found nothing."""
    _lane_of(run).empty += 1


def note_found(run: Run, what: str) -> None:
    """Note that a look found something; a call follows."""
    lane = _lane_of(run)
    text = f"{lane.empty} {what}"
    lane.empty = 0
    read(_FOUND, lambda: text)


def take_found(run: Run) -> str | None:
    """Return what a look finds in a replay; None for nothing."""
    lane = _lane_of(run)
    if lane.due is None:
        empty, _, then = str(read(_FOUND, lambda: "0 ")).partition(" ")
        lane.due = int(empty), then
    count, what = lane.due
    if not what:
        run.resolver.insist()
        return None
    if count:
        lane.due = count - 1, what
        return None
    lane.due = None
    return what


class Look(NamedTuple):
    """One look."""

    describe: Callable[[], FunctionCall]
    live: Callable[[], Any]
    show: Callable[[Any], Any]
    build: Callable[[Any], Any]
    is_nothing: Callable[[Any], bool]
    nothing: Any
    """What a look returns that found nothing."""
    call_back: Callable[[str, Any], None]
    """Calls the program back, in a replay: the name of the callback, and what was recorded of its arguments."""
    describe_callback: Callable[[str], FunctionCall]
    timeout_s: float = 0.0


class _Looking(threading.local):
    look: Look | None = None
    run: Run | None = None
    raised: BaseException | None = None
    """What the program raised when it was called back."""


_looking: Final = _Looking()


def looking_run() -> Run | None:
    """Return the run in which a look is being recorded in this thread."""
    return _looking.run


def call_back(name: str, shown: Callable[[], Any], callback: Callable[[], Any]) -> Any:
    """Call the program back, live: with a call of its own where a look is being recorded."""
    look, run = _looking.look, _looking.run
    if look is None or run is None:
        return callback()
    with no_plumbing():
        note_found(run, name)
        call_sync(lambda: look.describe_callback(name), shown)
        try:
            return callback()
        except BaseException as exc:
            _looking.raised = exc
            raise


def look_live(run: Run, look: Look) -> Any:
    """Look, while recording."""
    before = _looking.look, _looking.run, _looking.raised
    _looking.look, _looking.run, _looking.raised = look, run, None
    error: BaseException | None = None
    found: Any = None
    try:
        with plumbing():
            found = look.live()
    except BaseException as exc:
        if exc is _looking.raised:
            raise
        error = exc
    finally:
        _looking.look, _looking.run, _looking.raised = before
    if error is None and look.is_nothing(found):
        note_nothing(run)
        return found
    note_found(run, _RESULT)
    if error is not None:
        raise _record_error(look, error)
    call_sync(look.describe, lambda: look.show(found))
    return found


def _record_error(look: Look, error: BaseException) -> BaseException:
    """Record that a look raised; return what the program gets."""
    carried = make_failure(error) if is_of_client(type(error)) else error

    def live() -> None:
        raise carried

    try:
        call_sync(look.describe, live)
    except BaseException as exc:
        if exc is not carried:
            raise
    return error


def look_again(run: Run, look: Look) -> Any:
    """Look, in a replay."""
    while True:
        what = take_found(run)
        if what is None:
            if look.timeout_s:
                _sleep(min(look.timeout_s, _IDLE_S_MAX) if _lane_of(run).due == (0, "") else 0)
            return look.nothing
        if what == _RESULT:
            return _serve(look)
        name = what
        value = call_sync(lambda: look.describe_callback(name), _refuse)  # noqa: B023 -- called at once
        look.call_back(name, value)


def _serve(look: Look) -> Any:
    try:
        return look.build(call_sync(look.describe, lambda: carry(look.live)))
    except KafkaFailure as failure:
        exc = uncarry(failure)
    raise exc


def take(taker: Taker, source: Source, look: Look, headers: Callable[[Any], Mapping[str, Any]]) -> Any:
    """Look for a message that is a run of its own."""
    nothing = look.nothing

    def give_nothing() -> Any:
        _sleep(min(look.timeout_s, _IDLE_S_MAX))
        return nothing

    return taker.take(
        Taking(source, look.describe, look.show, look.build, look.is_nothing, give_nothing, headers), look.live
    )


def _refuse() -> Any:
    raise RuntimeError("this client is replayed: it can't be called back live")
