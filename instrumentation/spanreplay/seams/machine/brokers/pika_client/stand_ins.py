"""A connection of pika in a replay: its own code, above a loop that waits for nothing and a transport to nobody."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Final

from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.brokers.amqp_methods import CAPABILITIES
from spanreplay.seams.machine.brokers.pika_client.events import HANDED, LOST, TIMER, Script, make_frame

__all__ = ["StandInLoop", "is_stand_in", "loop_of", "make_connection"]

_HANDED_WAIT_S: Final = 10.0
_PAUSE_S: Final = 0.001
_sleep: Final = time.sleep


class _Timer:
    def __init__(self, loop: StandInLoop, at: float, callback: Callable[[], Any]) -> None:
        self._loop, self.at, self.callback = loop, at, callback

    def cancel(self) -> None:
        """Forget the timer."""
        if self in self._loop.timers:
            self._loop.timers.remove(self)


class StandInLoop:
    """Both pika's input/output services and the loop below them; what happens comes from the running script."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.script: Script | None = None
        self.timers: list[_Timer] = []
        self.programs: list[_Timer] = []
        """Timers of the program, in the order in which it set them."""
        self._handed: deque[Callable[[], Any]] = deque()

    # ── As pika's services ──────────────────────────────────────────────────────────────────────────
    def get_native_ioloop(self) -> StandInLoop:
        """Return the loop."""
        return self

    def close(self) -> None:
        """Forget everything."""
        self.timers.clear()

    def run(self) -> None:
        """Run nothing."""

    def stop(self) -> None:
        """Stop nothing."""

    def add_callback_threadsafe(self, callback: Callable[..., None]) -> None:
        """Keep a function of another thread until the recording has it."""
        self._handed.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Timer:
        """Set a timer; it becomes due when it did, or when nothing else is left."""
        made = _Timer(self, delay, callback)
        self.timers.append(made)
        if isinstance(callback, partial):  # of `BlockingConnection.call_later`
            self.programs.append(made)
        return made

    def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        """Look up nothing."""
        raise OSError("this connection is replayed")

    connect_socket = create_streaming_connection = getaddrinfo

    # ── As the loop below them ──────────────────────────────────────────────────────────────────────
    def activate_poller(self) -> None:
        """Wait for nothing."""

    def process_timeouts(self) -> None:
        """Timers become due in `poll`."""

    def poll(self) -> None:
        """Let everything happen that was recorded of this wait. Raises: ReplayMiss if that is not enough."""
        script = self.script
        if script is not None and len(script):
            while len(script):
                self._apply(script, script.take())
            return
        waiting = [each for each in self.timers if not isinstance(each.callback, partial)]
        waits = [each for each in waiting if getattr(each.callback, "__name__", "") == "signal_once"]
        if waits:
            first = min(waits, key=lambda each: each.at)
            first.cancel()
            first.callback()
            return
        run = active_run()
        if run is not None:
            run.resolver.leave_out("pika waited for its broker longer than was recorded")
        raise OSError("this connection is replayed")

    def _apply(self, script: Script, event: Mapping[str, Any]) -> None:
        if TIMER in event:
            timer = self.programs[event[TIMER]]
            timer.cancel()
            timer.callback()
        elif HANDED in event:
            self._take_handed()()
        elif LOST in event:
            self.connection._got_eof = event["eof"]
            self.connection._proto_connection_lost(event[LOST])
        else:
            size = script.size_of(event) if "size" in event else None
            self.connection._process_frame(make_frame(event, size))

    def _take_handed(self) -> Callable[[], Any]:
        """Return what another thread has handed over, as soon as it has."""
        deadline = time.monotonic() + _HANDED_WAIT_S
        while not self._handed and time.monotonic() < deadline:
            _sleep(_PAUSE_S)
        return self._handed.popleft()


class _Transport:
    """The way to the broker: nothing is sent."""

    def __init__(self, loop: StandInLoop) -> None:
        self._loop = loop

    def write(self, sent: bytes) -> None:
        """Send nothing."""

    def abort(self) -> None:
        """Close nothing: the recording says when the connection ends."""

    def get_write_buffer_size(self) -> int:
        """Return whether something is left to happen, so that pika waits for it."""
        return len(self._loop.script or ())

    def get_protocol(self) -> Any:
        """Return what hears of the transport."""
        return self._loop.connection


@lru_cache(maxsize=1)
def _services() -> type:
    interface = import_module("pika.adapters.utils.nbio_interface")
    return type("StandInServices", (StandInLoop, interface.AbstractIOServices), {})


def loop_of(connection: Any) -> StandInLoop | None:
    """Return the loop of pika's inner connection if it is a stand-in."""
    nbio = getattr(connection, "_nbio", None)
    return nbio if isinstance(nbio, StandInLoop) else None


def is_stand_in(connection: Any) -> bool:
    """Whether a blocking connection was never made."""
    return loop_of(getattr(connection, "_impl", None)) is not None


def make_connection(cls: Any, parameters: Any, told: Mapping[str, Any]) -> Any:
    """Return an open inner connection to nobody, which knows what was recorded of its server."""
    loop = _services()()
    made = cls(parameters=parameters, custom_ioloop=loop, internal_connection_workflow=False)
    loop.connection = made
    made._proto_connection_made(_Transport(loop))
    start = {
        "version_major": 0, "version_minor": 9, "mechanisms": told.get("mechanisms") or "PLAIN AMQPLAIN EXTERNAL",
        "locales": "en_US", "server_properties": told.get("properties") or {"capabilities": dict(CAPABILITIES)},
    }  # fmt: skip
    tune = {"channel_max": 2047, "frame_max": 131072, "heartbeat": 0, **(told.get("tune") or {})}
    for name, fields in (("Start", start), ("Tune", tune), ("OpenOk", {"known_hosts": ""})):
        made._process_frame(make_frame({"channel": 0, "method": f"Connection.{name}", "fields": fields}))
    return made
