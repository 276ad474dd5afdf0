"""The processes of one run: the state they share, and the part that each of them adds to the run.

A process that starts another one hands it a `JoinToken`: the run, the lane that its calls belong to, and a private
folder. The folder holds the run's Lamport clock, which all processes advance; in a replay, which completions have gone
out; and, for every process that has ended, a file with its part of the manifest. The first process gathers the parts
when the run ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import posix  # os.getpid is a recorded read
import select
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from spanreplay.model import config
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.order import worker_book
from spanreplay.runtime.order.steps import PACE

ENVIRONMENT: Final = "SPANREPLAY_JOIN"
"""Carries a join token into a new Python process; removed from the environment as soon as it is read."""
_HEADER_BYTES: Final = 16_384
_CLOCK_AT, _COUNT_AT, _WORKING_AT, _HANDED_AT = 0, 8, 16, 8_192
_MISSED_AT, _OPEN_AT, _PIDS_AT = 8_200, 8_201, 8_208
_STARTING: Final = -1
"""Placeholder for the number of working threads of a process that is starting."""


@dataclass(frozen=True)
class JoinToken:
    """Tells a new process about the run that it is part of."""

    folder: str
    run_id: str
    lane: str
    number: int
    """Number of the process in the run, from 1; the first process is 0."""
    trace_id: str
    span_id: str
    owner: int = -1
    """The call inside which it was started; -1: none."""
    place: str = ""
    """Where it was started."""
    worker: int = -1
    """Number of the pool worker, from 0; -1: not a worker."""
    is_helper: bool = False
    """Starts other processes for us (forkserver); not part of the run itself."""
    argv: Sequence[str] = ()
    """The command line of the run's first process; processes of `multiprocessing` have their own. Empty if long."""

    @property
    def is_worker(self) -> bool:
        """Whether it is a pool's worker, which works only while it has a job."""
        return self.worker >= 0

    def to_text(self) -> str:
        """The token as text for the environment."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class RemoteCrossing:
    """The call of another process that this process was started inside."""

    seq: int
    lane: Any
    parent: None = None
    is_live_by_plan: bool = False
    body_lane: None = None


def take_join_token() -> JoinToken | None:
    """The join token that this process was started with, if any."""
    text = os.environ.pop(ENVIRONMENT, "")
    return JoinToken(**json.loads(text)) if text else None


class ProcessGroup:
    """The process group: state that the processes of one run share. Its clock is safe across threads and processes."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.folder = folder
        self.number = number
        self.is_worker = False
        """Whether this is a worker of a pool, which waits for items until its pool tells it to end."""
        self._pid = posix.getpid()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(folder / "clock", flags, 0o600)
        os.ftruncate(self._descriptor, _HEADER_BYTES)
        self._memory = mmap.mmap(self._descriptor, _HEADER_BYTES)
        self._gone: mmap.mmap | None = None
        self.join_tokens: list[JoinToken] = []
        """Processes that this one has started."""
        self.lanes: list[str] = []
        """Lanes whose work was handed to another process."""
        self.lanes_here: list[str] = []
        """Lanes whose work was handed to this process."""
        self.at_work = ""
        """The lane of the item that this pool worker is working on; "" between two items."""
        self.children: list[tuple[int, Any]] = []
        """Number and `Process` of each process that this one has started and not yet seen end."""

    @classmethod
    def make(cls, clock: int) -> ProcessGroup:
        """Create a process group whose clock continues from a value."""
        process_group = cls(Path(tempfile.mkdtemp(prefix="spanreplay-run-")))
        struct.pack_into("q", process_group._memory, _CLOCK_AT, clock)
        struct.pack_into("q", process_group._memory, _COUNT_AT, 1)
        return process_group

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _add(self, at: int, number: int) -> int:
        with self._locked():
            value = int(struct.unpack_from("q", self._memory, at)[0]) + number
            struct.pack_into("q", self._memory, at, value)
        return value

    def tick(self) -> int:
        """The next value of the run's clock; the caller holds its process's lock."""
        return self._add(_CLOCK_AT, 1)

    def new_number(self) -> int:
        """The number of one more process."""
        return self._add(_COUNT_AT, 1) - 1

    # ── order in a replay ───────────────────────────────────────────────────────────────────────────
    def share_order(self, clocks: int) -> None:
        """Share which completions have gone out, up to a clock."""
        descriptor = os.open(self.folder / "gone", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, clocks + 1)
            self._gone = mmap.mmap(descriptor, clocks + 1)
        finally:
            os.close(descriptor)

    def is_gone(self, clock: int) -> bool:
        """Whether a completion has gone out in any process."""
        return self._gone is not None and 0 <= clock < len(self._gone) and self._gone[clock] != 0

    def mark_gone(self, clock: int) -> None:
        """Note that a completion has gone out."""
        if self._gone is not None and 0 <= clock < len(self._gone):
            self._gone[clock] = 1

    def state_open(self) -> None:
        """The replay has stopped matching the recording in one process: end ordering in all of them."""
        if not self._memory.closed:
            self._memory[_OPEN_AT] = 1

    @property
    def is_open(self) -> bool:
        """Whether ordering has ended in any process."""
        return not self._memory.closed and self._memory[_OPEN_AT] != 0

    def state_working(self, threads: int) -> None:
        """Publish how many threads of this process are working; ignored in a fork that has not joined the run."""
        if self.number < config.PROCESSES_MAX and self._pid == posix.getpid() and not self._memory.closed:
            struct.pack_into("i", self._memory, _WORKING_AT + 4 * self.number, max(0, threads))

    def state_starting(self, number: int, is_starting: bool) -> None:
        """Publish whether a process is starting; after that it publishes its own state."""
        if number < config.PROCESSES_MAX and not self._memory.closed:  # a thread may outlive the run
            struct.pack_into("i", self._memory, _WORKING_AT + 4 * number, _STARTING if is_starting else 0)

    def state_pid(self, number: int, pid: int) -> None:
        """Publish the process id of a process that was started."""
        if number < config.PROCESSES_MAX and not self._memory.closed:
            struct.pack_into("i", self._memory, _PIDS_AT + 4 * number, pid)

    def find_starting(self) -> list[int]:
        """The ids of the processes that are starting."""
        if self._memory.closed:
            return []
        states = self._states()
        pids = struct.unpack_from(f"{len(states)}i", self._memory, _PIDS_AT)
        return [pid for pid, state in zip(pids, states, strict=True) if state == _STARTING and pid]

    def count_others_working(self) -> int:
        """How many threads of other processes are working; a starting process counts as one."""
        states = self._states()
        own = states[self.number] if self.number < len(states) else 0
        return sum(map(abs, states)) - abs(own)

    def _states(self) -> tuple[int, ...]:
        count = min(struct.unpack_from("q", self._memory, _COUNT_AT)[0], config.PROCESSES_MAX)
        return struct.unpack_from(f"{count}i", self._memory, _WORKING_AT)

    def forget_ended(self) -> None:
        """Mark processes that have ended, in whatever way, as not working; nobody else may do so for them."""
        left = []
        for number, process in self.children:
            if _has_ended(process):
                self.state_starting(number, False)
            else:
                left.append((number, process))
        self.children = left

    def state_missed(self) -> None:
        """Tell other processes that this one ends because of a call without an answer; nobody else will."""
        self._memory[_MISSED_AT] = 1

    @property
    def has_missed(self) -> bool:
        """Whether a process has ended that way."""
        return self._memory[_MISSED_AT] != 0

    def state_handed(self, pieces: int) -> None:
        """Add to the number of jobs handed to process pools; subtract if negative."""
        if not self._memory.closed:  # a pool may outlive the run
            self._add(_HANDED_AT, pieces)

    @property
    def is_awaited(self) -> bool:
        """Whether a process is starting, or a pool has jobs that it has not returned."""
        return _STARTING in self._states() or struct.unpack_from("q", self._memory, _HANDED_AT)[0] > 0

    def is_first_at(self, place: str) -> bool:
        """Whether this is the first process of the run to reach a path."""
        name = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | os.O_CLOEXEC
        try:
            posix.close(posix.open(f"{self.folder}/at-{name}", flags, 0o600))
        except FileExistsError:
            return False
        return True

    # ── what each process adds ──────────────────────────────────────────────────────────────────────
    def write_part(self, part: dict[str, Any]) -> None:
        """Store this process's part for the first process, atomically."""
        partial = self.folder / f".part-{self.number}"
        partial.write_text(json.dumps(part), encoding="utf-8")
        partial.rename(self.folder / f"part-{self.number}.json")

    def read_parts(self) -> dict[int, dict[str, Any]]:
        """Number → part, of every process of the run that has ended and left its part."""
        parts: dict[int, dict[str, Any]] = {}
        for path in sorted(self.folder.glob("part-*.json")):
            parts[int(path.stem.partition("-")[2])] = json.loads(path.read_text(encoding="utf-8"))
        return parts

    def close(self) -> None:
        """Release the shared memory; the first process removes the folder too.

        Mark this process as not working first: remaining processes that wait for it would wait forever.
        """
        self.state_working(0)
        self._memory.close()
        os.close(self._descriptor)
        if self._gone is not None:
            self._gone.close()
        if self.number == 0:
            shutil.rmtree(self.folder, ignore_errors=True)


def find_lost(join_tokens: list[JoinToken], parts: dict[int, dict[str, Any]]) -> list[str]:
    """Reasons why calls may be missing: processes that have left no part."""
    known = _find_known(join_tokens, parts)
    return [
        f"a process was started at {join_token.place or 'an unknown place'} and reported no calls: "
        "it was killed, is still running, or is not recorded"
        for join_token in known
        if join_token.number not in parts
    ] + [
        f"a worker of the pool made at {join_token.place or 'an unknown place'} was ended while it worked on an item: "
        "which calls were still to come is not known"
        for join_token in _find_interrupted(known, parts)
    ]


def _find_known(join_tokens: list[JoinToken], parts: dict[int, dict[str, Any]]) -> list[JoinToken]:
    return [*join_tokens, *(JoinToken(**join_token) for part in parts.values() for join_token in part["tickets"])]


def _find_interrupted(known: list[JoinToken], parts: dict[int, dict[str, Any]]) -> list[JoinToken]:
    """Pool workers that were ended while they worked; empty if the workers make no calls anyway."""
    workers = [join_token for join_token in known if join_token.is_worker and join_token.number in parts]
    if not any(parts[join_token.number]["manifest"]["calls"] for join_token in workers):
        return []
    return [join_token for join_token in workers if parts[join_token.number].get("at_work")]


def is_of_process(lane: str) -> bool:
    """Whether a lane belongs to a process other than the run's first, or lies below such a lane."""
    return any(label.startswith(("p:", "px:")) for label in lane.split("/"))


def count_lost(join_tokens: list[JoinToken], parts: dict[int, dict[str, Any]]) -> int:
    """How many processes have not reported everything that they did or would have done."""
    known = _find_known(join_tokens, parts)
    return sum(join_token.number not in parts for join_token in known) + len(_find_interrupted(known, parts))


def _has_ended(process: Any) -> bool:
    """Whether a `Process` has ended; its pool is left to notice that itself."""
    popen = getattr(process, "_popen", None)
    try:
        if popen is None:
            return bool(getattr(process, "_closed", False))
        look = select.poll()
        look.register(popen.sentinel, select.POLLIN)
        return bool(look.poll(0))
    except (OSError, ValueError, AttributeError):  # closed, or not available on this system
        return True


def add_parts(manifest: dict[str, Any], parts: dict[int, dict[str, Any]]) -> None:
    """Add the recordings of other processes to the first one's manifest, except its hash and its holes."""
    for number in sorted(parts):
        part = parts[number]["manifest"]
        for name in ("calls", "dropped", "truncated", "holes_total"):
            if part.get(name):
                manifest[name] = manifest.get(name, 0) + part[name]
        for name in ("lanes", "lane_ends", "timers", "failures"):
            if part.get(name):
                manifest[name] = {**manifest.get(name, {}), **part[name]}
        worker_book.merge(manifest, part)
        _add_absent(manifest, part)
        for name in PACE:
            if part.get(name):
                manifest[name] = [*manifest.get(name, []), *part[name]]
        if part.get("redaction_errors"):
            manifest["redaction_errors"] = manifest.get("redaction_errors", 0) + part["redaction_errors"]
        if "reads" in part:
            reads = dict(manifest.get("reads", {"count": 0}))
            reads["count"] = reads.get("count", 0) + part["reads"].get("count", 0)
            left = [*reads.get("left", []), *part["reads"].get("left", [])]
            manifest["reads"] = {**reads, **({"left": left} if left else {})}


def _add_absent(manifest: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add paths where another process first made something: a replay begins with nothing there."""
    files, made = part.get("files", {}), part.get("directories", [])
    new = [name for name, file in files.items() if file.get("new")]
    here = manifest.get("files", {})
    absent = dict.fromkeys([*manifest.get("absent", []), *part.get("absent", []), *new, *made])
    left = [name for name in absent if name not in here][: config.ABSENT_MAX]
    if left:
        manifest["absent"] = left


# ── starting a process ──────────────────────────────────────────────────────────────────────────────
class _Starting(threading.local):
    is_now = False


starting: Final = _Starting()
settings: Final[dict[str, str]] = {}
"""Settings passed to any process of this run, whatever its working directory is by then."""
_environment_lock: Final = make_lock()


@contextmanager
def handing_over(join_token: JoinToken) -> Iterator[None]:
    """A block in which a process is started: a new Python finds the join token in its environment."""
    with _environment({ENVIRONMENT: join_token.to_text(), **settings}):
        before, starting.is_now = starting.is_now, True
        try:
            yield
        finally:
            starting.is_now = before


@contextmanager
def switched_off() -> Iterator[None]:
    """A block in which a Python is started that neither records nor replays."""
    with _environment({"SPANREPLAY_MODE": "off"}):
        yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    with _environment_lock:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


candidate: Any = None
"""The run that a process of ours would join when told to."""


def offer(run: Any) -> None:
    """Make `run` the one that a forked or spawned process joins; None: there is none."""
    global candidate
    candidate = run
