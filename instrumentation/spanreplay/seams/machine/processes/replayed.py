"""A program that a replay does not start: its pipes carry what it was given and what it wrote, in the recorded order.

A piece of output comes once the agent has given as much input as the program had when it wrote that piece. So an agent
that talks with a program, and looks whether something has come, sees one answer after the other.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.own_threads import make_lock, unnumbered_threads
from spanreplay.runtime.calls.open_call import Crossing
from spanreplay.runtime.order.waited import MEMBER, describe_change
from spanreplay.seams.machine.processes.given import Given

STEPS: Final = "steps"
STEPS_MAX: Final = 10_000
"""The most pieces of one output whose order is kept; the last one holds the rest."""
_CHUNK_BYTES: Final = 64 * 1024
_QUIET_MS: Final = 100
_PATIENCE_MS: Final = 10_000
"""How long a piece waits for input that does not come, if what has come is as recorded: the agent may be busy.

Otherwise it waits _QUIET_MS: the agent has changed, or its input contains a secret, whose token has another length.
"""

replayed_pids: Final[set[int]] = set()
"""Process IDs that were never started here: they may belong to other processes."""


class Replayed:
    """A process that was not started: does what the recorded one did."""

    def __init__(self, value: Mapping[str, Any], crossing: Crossing) -> None:
        self._given = Given(crossing, value)
        self.pid = int(value["pid"])
        self.returncode: int | None = value["returncode"]
        self._outputs = {name: _cut(value, name) for name in ("stdout", "stderr")}
        self._timeouts = set(value["timeouts"])
        self._polls = int(value["polls"])
        self._waits = 0
        self._waited = dict(value.get(MEMBER) or {})
        self._crossing = crossing

    def start(self, process: Any, pipes: Mapping[str, Any]) -> None:
        """Stand in for the child: `pipes` are the descriptors of `Popen._execute_child`."""
        outputs = (("stdout", pipes["c2pwrite"], pipes["c2pread"]), ("stderr", pipes["errwrite"], pipes["errread"]))
        written = {os.dup(end): self._outputs[name] for name, end, held in outputs if held != -1}
        source = os.dup(pipes["p2cread"]) if pipes["p2cwrite"] != -1 else -1
        _Talk(source, written, self._given).begin()
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        process._close_pipe_fds(*(pipes[name] for name in names))
        process.pid = self.pid
        process._child_created = False
        replayed_pids.add(self.pid)

    def wait(self, process: Any, timeout: float | None) -> int | None:
        """Return the recorded result of `wait` at this point. Raises: TimeoutExpired if it did when recorded."""
        at, self._waits = self._waits, self._waits + 1
        self._compare_limit(at, timeout)
        if at in self._timeouts:
            raise subprocess.TimeoutExpired(process.args, timeout or 0.0)
        process.returncode = self.returncode
        self._given.compare()
        return self.returncode

    def _compare_limit(self, at: int, timeout: float | None) -> None:
        """Note a wait that its limit would end otherwise now."""
        seconds, served = self._waited.get(str(at)), self._crossing.served
        if not isinstance(seconds, (int, float)) or served is None:
            return
        why = describe_change(seconds, timeout, has_expired=at in self._timeouts)
        if why:
            self._crossing.answers.gate.note_late(served.end_seq, why)

    def poll(self, process: Any) -> int | None:
        """Return the recorded result of `poll` at this point."""
        if process.returncode is None and self._polls > 0:
            self._polls -= 1
            return None
        process.returncode = self.returncode
        self._given.compare()
        return self.returncode


def _cut(value: Mapping[str, Any], name: str) -> deque[tuple[int, bytes]]:
    """Cut an output into its pieces: the input that each one follows, and its bytes."""
    output, steps = bytes(value.get(name) or b""), value.get(STEPS, {}).get(name, [])
    if sum(size for _, size in steps) != len(output):  # redaction may have made it longer
        return deque([(0, output)])
    pieces: deque[tuple[int, bytes]] = deque()
    for given, size in steps or [(0, len(output))]:
        pieces.append((given, output[:size]))
        output = output[size:]
    return pieces


def _is_ready(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


class _Talk:
    """The other ends of a program's pipes."""

    def __init__(self, source: int, outputs: dict[int, deque[tuple[int, bytes]]], given: Given) -> None:
        self._source, self._outputs, self._given = source, outputs, given
        self._size = 0
        self._has_ended = source < 0
        """Whether no more input comes: the agent has closed its end."""
        self._lock = make_lock()
        for descriptor in outputs:
            os.set_blocking(descriptor, False)

    def begin(self) -> None:
        """Write what can be written at once; a thread does the rest."""
        if self._source >= 0:
            self._given.follow(self._take)
        self._write()
        if self._source >= 0 or self._outputs:
            with unnumbered_threads():
                threading.Thread(target=self._go_on, name="spanreplay-program", daemon=True).start()

    def _go_on(self) -> None:
        while self._outputs or self._source >= 0:
            poller = select.poll()
            if self._source >= 0:
                poller.register(self._source, select.POLLIN)
            due = [end for end, pieces in self._outputs.items() if pieces and pieces[0][0] <= self._size]
            for end in due:
                poller.register(end, select.POLLOUT)
            is_waiting = len(due) < len(self._outputs)
            patience_ms = _PATIENCE_MS if self._given.is_as_recorded() else _QUIET_MS
            if not poller.poll(patience_ms if is_waiting else None) and is_waiting:
                self._size = max(self._size, min(pieces[0][0] for pieces in self._outputs.values()))
            self._take()
            self._close_ended()
            self._write()

    def _take(self) -> None:
        """Take what the agent has written. Called by any thread, so the descriptor stays open: see `_close_ended`."""
        with self._lock:
            while not self._has_ended and _is_ready(self._source):
                piece = os.read(self._source, _CHUNK_BYTES)
                self._size += len(piece) or 1  # its end counts too
                if piece:
                    self._given.add(piece)
                else:
                    self._has_ended = True

    def _close_ended(self) -> None:
        """Close the input after its end, in the thread that polls it.

        Another file may get the number at once. A poll of that would keep it open: a pipe's reader would wait forever.
        """
        with self._lock:
            if self._has_ended and self._source >= 0:
                os.close(self._source)
                self._source = -1

    def _write(self) -> None:
        for end, pieces in list(self._outputs.items()):
            try:
                while pieces and pieces[0][0] <= self._size:
                    needed, piece = pieces[0]
                    rest = piece[os.write(end, piece) :] if piece else b""
                    pieces.popleft()
                    if rest:
                        pieces.appendleft((needed, rest))
            except BlockingIOError:
                continue
            except OSError:  # nobody reads it any more
                pieces.clear()
            if not pieces:
                del self._outputs[end]
                with contextlib.suppress(OSError):
                    os.close(end)
