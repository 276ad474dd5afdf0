"""Stepping through a replay: before each call the terminal shows it and waits for a command.

The terminal is /dev/tty, so that the agent keeps its own standard streams. A `breakpoint()` at a call goes through
`sys.breakpointhook`: PYTHONBREAKPOINT chooses the debugger, and pdb uses the terminal too.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from types import FrameType
from typing import TYPE_CHECKING, Final

from spanreplay.model import guard, ids
from spanreplay.model.call import CallRecord
from spanreplay.model.errors import ConfigError
from spanreplay.model.escape import escape
from spanreplay.model.lane_names import name_lane

if TYPE_CHECKING:
    import pdb

    from spanreplay.runtime.calls.open_call import Crossing

TERMINAL: Final = "/dev/tty"
LINES_SHOWN_MAX: Final = 200
LINE_BYTES_MAX: Final = 4096
HELP: Final = "n or Enter: next call · c [N]: continue (to call N) · p: print this call · q: end the replay"


class Stepper:
    """Asks before each call; used under the session's lock, so everything else waits meanwhile."""

    def __init__(self) -> None:
        self._terminal: int | None = None
        self._go_on_to = 0
        self._is_off = False

    def ask(self, crossing: Crossing, call: CallRecord | None) -> str:
        """Show a call and wait; return why the replay ends here, '' if it continues."""
        number = 0 if call is None else call.number
        if self._is_off or (self._go_on_to and (not number or number < self._go_on_to)):
            return ""
        self._go_on_to = 0
        self._write(_headline(crossing, call))
        while True:
            self._write("(step) ", end="")
            word, _, rest = self._read().partition(" ")
            if word in ("", "n", "next"):
                return ""
            if word in ("c", "continue"):
                self._go_on_to = int(rest) if rest.strip().isdecimal() else 0
                self._is_off = not self._go_on_to
                return ""
            if word in ("q", "quit"):
                return f"stopped before call {number or crossing.number} ({crossing.boundary}), at the terminal"
            self._write(_details(crossing, call) if word in ("p", "print") else HELP)

    def _open(self) -> int:
        if self._terminal is None:
            self._terminal = open_terminal()
        return self._terminal

    def _write(self, text: str, end: str = "\n") -> None:
        os.write(self._open(), (text + end).encode("utf-8", "backslashreplace"))

    def _read(self) -> str:
        line = os.read(self._open(), LINE_BYTES_MAX)
        return "q" if not line else line.decode("utf-8", "replace").strip()


def open_terminal() -> int:
    """Open the terminal. Raises: ConfigError if there is none."""
    try:
        return os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY)
    except OSError as exc:
        raise ConfigError(
            f"stepping needs a terminal, and {TERMINAL} can't be opened: {exc.strerror}",
            hint="`--to N` ends a replay before call N without one",
        ) from exc


def _headline(crossing: Crossing, call: CallRecord | None) -> str:
    if call is None:
        how = "not in the recording"
    else:
        how = "as recorded" if call.key == crossing.key.hex else "differs from the recording"
    number = crossing.number if call is None else call.number
    parts = [f"→ call {number}", crossing.boundary, name_lane(crossing.lane.path), how, crossing.code]
    return escape("  ".join(part for part in parts if part))


def _details(crossing: Crossing, call: CallRecord | None) -> str:
    lines = ["request", *_pretty(crossing.spec.request)]
    if call is not None:
        lines += ["recorded response", *(_pretty(call.response) if call.response else ["  (none)"])]
    shown = lines[:LINES_SHOWN_MAX]
    if len(lines) > len(shown):
        shown.append(f"… {len(lines) - len(shown)} more lines: spanreplay show RUN --call {crossing.number}")
    return "\n".join(shown)


def _pretty(text: str) -> list[str]:
    with contextlib.suppress(ValueError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return ["  " + escape(line) for line in text.splitlines()]


# ── breakpoints ─────────────────────────────────────────────────────────────────────────────────────
def listen(address: str) -> None:
    """Wait until an editor attaches at HOST:PORT (Debug Adapter Protocol). Raises: ConfigError without debugpy.

    Call it before the replay is in place: the debugger's own process and connections aren't part of the run.
    """
    host, _, port = address.rpartition(":")
    try:
        import debugpy
    except ImportError as exc:
        raise ConfigError("--dap needs debugpy", hint="pip install debugpy, into the Python of the agent") from exc
    if not port.isdecimal():
        raise ConfigError(f"--dap {address!r} is not HOST:PORT", hint="for example --dap 127.0.0.1:5678")
    before = os.environ.get("SPANREPLAY_MODE", "")
    os.environ["SPANREPLAY_MODE"] = "off"  # for the adapter, a separate process
    try:
        debugpy.listen((host or "127.0.0.1", int(port)))
    except RuntimeError as exc:
        raise ConfigError(f"no debugger can listen at {address}: {exc}") from exc
    finally:
        os.environ["SPANREPLAY_MODE"] = before
    guard.write_stderr(f"spanreplay: waiting for a debugger at {address}")
    debugpy.wait_for_client()


def break_before_call(*, is_attached: bool = False) -> None:
    """Enter the debugger that PYTHONBREAKPOINT names, before a call is answered; pdb by default.

    The debugger then stops in this function; the agent's own code is further up its stack.
    """
    if is_attached:
        import debugpy

        debugpy.breakpoint()
    elif os.environ.get("PYTHONBREAKPOINT", "").strip() or sys.breakpointhook is not sys.__breakpointhook__:
        sys.breakpointhook()
    else:
        _open_pdb().set_trace()
    _answer_call()


def _answer_call() -> None:
    """Mark where the call continues when the debugger does."""


def _open_pdb() -> pdb.Pdb:
    """Open a pdb at the terminal that shows the agent's own frame first. Raises: ConfigError without a terminal."""
    import pdb

    descriptor = open_terminal()
    reading = os.fdopen(descriptor, "r", encoding="utf-8", errors="replace")
    writing = os.fdopen(os.dup(descriptor), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    debugger = pdb.Pdb(stdin=reading, stdout=writing)
    debugger.cmdqueue.append(f"up {_count_own_frames()}")
    return debugger


def _count_own_frames() -> int:
    """Count the frames between the one that opens the debugger and the agent's own code."""
    count = 0
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not ids.is_agent_file(frame.f_code.co_filename):
        count += 1
        frame = frame.f_back
    return max(count, 1)
