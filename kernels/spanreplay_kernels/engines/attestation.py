"""What the processes that compute state about themselves, and the header that a server's process makes of it.

An engine computes in processes of its own. Each of them, once our kernels have run in it, writes one file: what ran,
by which plans, with which versions. The server's process puts the determinism line of these files into its responses;
without a file from every living process, or where two of them differ, it puts nothing there, and a probe that asks for
the header never calls the pod ready. No torch is imported here: a server may have none to spare.
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
"""Environment variable: the folder of the files; the first process of an engine sets it for those that it starts."""
HEADER: Final = "x-spanreplay-determinism"
_FILES_MAX: Final = 1024
_FILE_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True)
class Attestation:
    """What one process states: that our kernels have run in it, and by what its results depend."""

    line: str
    """The determinism line."""
    system_fingerprint: str
    """OpenAI's field for the same line, which an engine may be started with."""
    engaged: Mapping[str, int]
    """How often each of our operations has run; under CUDA graphs, how often it was captured."""
    plan: str
    versions: Mapping[str, str]
    rank: int
    processes: int
    """How many processes compute together."""
    pid: int
    started: str
    """When the process started, in ticks of the kernel's clock: a later process may have the same id."""


def announce() -> None:
    """Name the folder of this engine for all processes that it starts; the first one decides. Makes no file."""
    pid = os.getpid()
    name = f"spanreplay-kernels-{os.getuid()}-{pid}-{started_of(pid)}"
    os.environ.setdefault(FOLDER, str(Path(tempfile.gettempdir()) / name))


def started_of(pid: int) -> str:
    """When a process started, "" if it is gone. Source: proc_pid_stat(5), field 22."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    is_gone = fields[0] in "ZX"
    return "" if is_gone else fields[19]


def write(stated: Attestation) -> Path:
    """Write the file of this process, readable to its user alone; replaces an earlier one of its rank.

    Raises: PermissionError if the folder belongs to somebody else, or others may write to it.
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
    """A process that ends leaves no file; of one that is killed, the file counts for nothing."""
    if os.getpid() != pid:  # a fork of the process, which has inherited this
        return
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()  # the last one does


def read_line() -> str:
    """The determinism line of this engine; "" unless every process that computes with others states the same."""
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
    """The statement of a process that is alive and has computed with our kernels; None for any other."""
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
    """Have `settle` call this until it says that this process has stated what it computes with."""
    global _postponed
    _postponed = state


def settle() -> None:
    """Between two batches: state what is due. Costs nothing once it is done."""
    global _postponed
    if _postponed is not None and _postponed():
        _postponed = None


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Callable[[], Awaitable[MutableMapping[str, Any]]], Send], Awaitable[None]]


class Header:
    """ASGI middleware: the determinism line in each response, as long as the processes that compute state one."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[MutableMapping[str, Any]]], send: Send
    ) -> None:
        """Answer as the application does, with one header more."""

        async def send_with_line(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and (line := read_line()):
                message = {**message, "headers": [*message.get("headers", ()), (HEADER.encode(), line.encode())]}
            await send(message)

        await self._app(scope, receive, send_with_line if scope["type"] == "http" else send)
