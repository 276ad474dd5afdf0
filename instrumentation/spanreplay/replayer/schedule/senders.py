"""Sends the results of a pool's worker process in the recorded order, while the worker continues with its next item.

When recorded, a result may have reached the first process after calls of the worker's next item. A worker that held the
result back itself would never make those calls.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from _queue import SimpleQueue
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.runtime.order.counted import SERVICE
from spanreplay.runtime.order.order import Order

_RESULT: Final = "result"


class _Packed:
    """A result as it was when the work ended, even if the worker changes it later."""

    def __init__(self, result: Any) -> None:
        self._bytes = bytes(ForkingPickler.dumps(result))

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._bytes,)


class _Sender:
    """The thread that sends the results of one worker process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._pending: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="spanreplay-results", daemon=True)
        vars(self._thread)[SERVICE] = True
        with unnumbered_threads():
            self._thread.start()

    def _send(self) -> None:
        while (send := self._pending.get()) is not None:
            send()

    def add(self, send: Callable[[], None]) -> None:
        """Send one more result."""
        self._pending.put(send)

    def finish(self) -> None:
        """Wait until every result has been sent."""
        self._pending.put(None)
        self._thread.join()


_sender: _Sender | None = None


def send_in_turn(gate: Order, lane: str, wrapped: Any, args: Any, kwargs: Any) -> None:
    """Send the result of a lane's work when it is the turn of that lane's end; immediately if nothing orders it."""
    global _sender
    if kwargs.get(_RESULT) is not None:
        with contextlib.suppress(Exception):  # the sender reports what can't be pickled
            kwargs = {**kwargs, _RESULT: _Packed(kwargs[_RESULT])}
    if _sender is None or _sender.pid != os.getpid():
        _sender = _Sender()

    def send() -> None:
        gate.wait_turn(gate.lane_ends.get(lane, -1))
        wrapped(*args, **kwargs)

    _sender.add(send)
    gate.census.ended()


class InTurn:
    """The result queue of a `multiprocessing.Pool` worker; each result goes out in turn."""

    def __init__(self, results: Any, gate: Order, take_lane: Callable[[], str]) -> None:
        self._results = results
        self._gate = gate
        self._take_lane = take_lane

    def put(self, result: Any) -> None:
        """Send a result when it is its turn. Raises: any exception from pickling it."""
        packed = _Packed(result)
        lane = self._take_lane()
        if lane:
            send_in_turn(self._gate, lane, self._results.put, (packed,), {})
        else:
            self._results.put(packed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)


def finish_sending() -> None:
    """Send the remaining results before the process ends."""
    global _sender
    sender, _sender = _sender, None
    if sender is not None and sender.pid == os.getpid():
        sender.finish()
