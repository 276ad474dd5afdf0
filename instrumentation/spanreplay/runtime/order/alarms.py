"""Timers of the process (`signal.alarm`, `signal.setitimer`) fire in a replay where they fired.

Sleeps and calls of a replay are short, and an alarm that cut one would come later, in the middle of something else.
What it raised in a call is that call's recorded error.
"""

from __future__ import annotations

import functools
import inspect
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model.call import CallRecord, Outcome

_AT_ONCE_S: Final = 0.000_1
_DELIVERED_S: Final = 0.05
"""Longer than the system takes to deliver a signal that is due."""
_NS: Final = 1e9
armed: Final[Callable[[], tuple[float, float]]] = (
    functools.partial(signal.getitimer, signal.ITIMER_REAL) if hasattr(signal, "getitimer") else lambda: (0.0, 0.0)
)
"""Seconds until the process's timer goes off, and from one time to the next; 0 for never."""
_sleep: Final = inspect.unwrap(time.sleep)


def sleep_with_alarm(seconds: Any, rest: Callable[[], Any]) -> Any:
    """Let the alarm that is due within a sleep go off, as early as it may; then `rest`, the sleep of a replay.

    A timer that repeats takes the time that it takes. Raises: what the alarm's handler does.
    """
    left, interval = armed()
    if not 0 < left <= seconds or threading.current_thread() is not threading.main_thread():
        return rest()
    if interval:
        return _sleep(seconds)
    signal.setitimer(signal.ITIMER_REAL, _AT_ONCE_S)
    _sleep(_DELIVERED_S)
    return rest()


def pass_time(recorded: CallRecord) -> None:
    """A call of the main thread is served: as much time passes on the process's timer as the call took.

    Raises: what the alarm's handler does, if it goes off and raised nothing then.
    """
    left, interval = armed()
    seconds = (recorded.end_ns - recorded.start_ns) / _NS
    if interval or threading.current_thread() is not threading.main_thread():
        return
    if left > seconds:
        signal.setitimer(signal.ITIMER_REAL, left - seconds)
    elif recorded.outcome == Outcome.OK.value:
        signal.setitimer(signal.ITIMER_REAL, _AT_ONCE_S)
        _sleep(_DELIVERED_S)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0)  # it went off, and its exception is the call's
