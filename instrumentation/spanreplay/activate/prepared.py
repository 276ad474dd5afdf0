"""One start for many replays: loads Python and spanreplay, but nothing of the agent, and forks for each replay.

A command sends one line of JSON per replay: variables that differ from those of the start, null for one to remove, and
files for standard output and error. It gets a line when the process is ready, then for each replay the id of its
process, and its exit status as `subprocess` reports it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from typing import Final

__all__ = ["READY", "fork_for_each"]

READY: Final = b"ready\n"
_READ_BYTES: Final = 65_536
_MODULES: Final = (
    "opentelemetry.instrumentation.auto_instrumentation",
    "spanreplay.activate.install",
    "spanreplay.activate.owner",
    "spanreplay.activate.sessions",
    "spanreplay.activate.suites",
    "spanreplay.activate.time_limit",
    "spanreplay.recording.otlp.otlp",
    "spanreplay.recording.spool.processor",
    "spanreplay.redact.processor",
    "spanreplay.replayer.sandbox.kernel_guard",
    "spanreplay.replayer.sandbox.native_writes",
    "spanreplay.replayer.sandbox.netguard",
    "spanreplay.replayer.sandbox.world",
    "spanreplay.replayer.schedule.step_clock",
    "spanreplay.replayer.schedule.threads",
    "spanreplay.replayer.tracebacks",
    "spanreplay.seams.installed",
    "spanreplay.seams.telemetry.instrumentors",
    "spanreplay.seams.telemetry.other_spans",
    "spanreplay.units._table",
)
"""What every replay loads before the agent's first line, and no more; loading changes nothing in the process."""


def fork_for_each(descriptor: int) -> None:
    """Fork for each request on a socket; returns only in the forks, and ends the process once the socket is closed."""
    for name in _MODULES:
        import_module(name)
    _list_entry_points()
    os.set_inheritable(descriptor, False)
    # From the keyboard it also reaches the replay and the command, which decide
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    received = b""
    os.write(descriptor, READY)
    while True:
        while b"\n" not in received:
            part = os.read(descriptor, _READ_BYTES)
            if not part:
                os._exit(0)
            received += part
        request, _, received = received.partition(b"\n")
        process = os.fork()
        if not process:
            signal.signal(signal.SIGINT, interrupted)
            os.close(descriptor)
            _become(**json.loads(request))
            return
        os.write(descriptor, b"%d\n" % process)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.write(descriptor, b"%d\n" % status)


def _list_entry_points() -> None:
    """Read the entry points of all distributions; OpenTelemetry keeps them."""
    from opentelemetry.util._importlib_metadata import entry_points

    entry_points(group="opentelemetry_pre_instrument")


def _become(environ: dict[str, str | None], stdout: str, stderr: str) -> None:
    """Give a newly forked process the environment and output files of its replay."""
    del sys.modules[__name__]  # a start for one replay does not load it
    for name, value in environ.items():  # the others stay: Python itself may have set LC_CTYPE
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for number, name in ((1, stdout), (2, stderr)):
        opened = os.open(name, os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
