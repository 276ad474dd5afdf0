"""Attestations written by an engine's compute processes, and the response header that its server derives from them.

An engine computes in separate processes. Once our kernels have run in one of them, it writes a file that states the
operations, plans and versions. The server process adds the determinism line of these files to its responses. If a
process has no file, or two files differ, no header is sent, and a probe that requires the header never reports the pod
as ready. torch is not imported here, because a server process may not be able to afford it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["FOLDER", "HEADER", "Attestation", "Header", "announce", "postpone", "read_line", "settle", "write"]

FOLDER: Final = "SPANREPLAY_KERNELS_ATTESTATION"
"""Environment variable with the folder of the files; an engine's first process sets it for its child processes."""
HEADER: Final = "x-spanreplay-determinism"
_FILES_MAX: Final = 1024
_FILE_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True)
class Attestation:
    """One process's statement that our kernels have run in it, and of everything its results depend on."""

    line: str
    """The determinism line."""
    system_fingerprint: str
    """OpenAI's field for the same line; an engine may be started with it."""
    engaged: Mapping[str, int]
    """The number of runs of each of our operations; under CUDA graphs, of captures."""
    plan: str
    versions: Mapping[str, str]
    rank: int
    processes: int
    """The number of processes that compute together."""
    pid: int
    started: str
    """The process's start time, in the kernel's clock ticks: a later process may have the same id."""


def announce() -> None:
    """Set the attestation folder for this engine's child processes, unless it is set already. Creates no file."""
    pid = os.getpid()
    name = f"spanreplay-kernels-{os.getuid()}-{pid}-{started_of(pid)}"
    os.environ.setdefault(FOLDER, str(Path(tempfile.gettempdir()) / name))


def started_of(pid: int) -> str:
    """Return a process's start time, "" if it is gone. Source: proc_pid_stat(5), field 22."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    is_gone = fields[0] in "ZX"
    return "" if is_gone else fields[19]


def write(stated: Attestation) -> Path:
    """Write this process's file, readable only by its user; it replaces an earlier one of the same rank.

    Raises: PermissionError if the folder belongs to another user, or others may write to it.
    """
    folder = Path(os.environ[FOLDER])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(folder):
        raise PermissionError(f"{folder} belongs to another user or is writable to others; set {FOLDER} to your own")
    path = folder / f"rank-{stated.rank}.json"
    descriptor, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(asdict(stated), stream)
    Path(name).replace(path)
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, pid: int) -> None:
    """Delete the file when the process ends; the file of a killed process stays but is ignored."""
    if os.getpid() != pid:  # a fork of the process, which has inherited this
        return
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()  # the last one does


def read_line() -> str:
    """Return the determinism line of this engine; "" unless all of its compute processes state the same line."""
    folder = Path(os.environ.get(FOLDER) or os.devnull)
    found: list[Attestation] = []
    try:
        if not _is_ours(folder):
            return ""
        for path in sorted(folder.glob("rank-*.json"))[:_FILES_MAX]:
            if (stated := _load(path)) is not None:
                found.append(stated)
    except OSError:
        return ""
    ranks = {each.rank for each in found}
    complete = bool(found) and all(set(range(each.processes)) == ranks for each in found)
    lines = {each.line for each in found}
    return lines.pop() if complete and len(lines) == 1 else ""


def _is_ours(folder: Path) -> bool:
    stat = folder.stat()
    return folder.is_dir() and stat.st_uid == os.getuid() and not stat.st_mode & 0o022


def _load(path: Path) -> Attestation | None:
    """Load a statement; None unless its process is alive and has computed with our kernels."""
    with path.open("rb") as stream:
        raw = stream.read(_FILE_BYTES_MAX)
    try:
        stated = Attestation(**json.loads(raw))
        is_alive = bool(stated.started) and started_of(int(stated.pid)) == stated.started
        return stated if is_alive and stated.line and stated.engaged else None
    except (TypeError, ValueError):
        return None


_postponed: Callable[[], bool] | None = None


def postpone(state: Callable[[], bool]) -> None:
    """Let `settle` call `state` until it returns True, i.e. until this process has written its attestation."""
    global _postponed
    _postponed = state


def settle() -> None:
    """Write a postponed attestation if it is due; called between batches. Costs nothing once it is done."""
    global _postponed
    if _postponed is not None and _postponed():
        _postponed = None


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Callable[[], Awaitable[MutableMapping[str, Any]]], Send], Awaitable[None]]


class Header:
    """ASGI middleware that adds the determinism line to each response while the compute processes state one."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[MutableMapping[str, Any]]], send: Send
    ) -> None:
        """Call the application and add the header to its response."""

        async def send_with_line(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and (line := read_line()):
                message = {**message, "headers": [*message.get("headers", ()), (HEADER.encode(), line.encode())]}
            await send(message)

        await self._app(scope, receive, send_with_line if scope["type"] == "http" else send)
