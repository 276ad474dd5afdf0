"""Timers of the process (`signal.alarm`, `signal.setitimer`): in a replay they fire where they fired when recorded.

Sleeps and calls of a replay are short, so an alarm that cut one short would otherwise fire later, during something
else. An exception that the alarm raised in a call is that call's recorded error.
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
"""Seconds until the process's timer fires, and its interval; 0 if it is not set."""
_sleep: Final = inspect.unwrap(time.sleep)


def sleep_with_alarm(seconds: Any, rest: Callable[[], Any]) -> Any:
    """In a replay, fire an alarm that is due within a sleep as early as possible, then run `rest`, the replay's sleep.

    If the timer repeats, sleep in real time. Raises: whatever the alarm's handler raises.
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
    """After a call of the main thread is served, advance the process's timer by the recorded duration of the call.

    Raises: whatever the alarm's handler raises, if the alarm fires here and the recorded call succeeded.
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
        signal.setitimer(signal.ITIMER_REAL, 0)  # the alarm fired during the call; its exception is the call's error
