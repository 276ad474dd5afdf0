"""Appends payloads to a spool file from the agent's own threads; never raises into the agent.

A payload that append() acknowledged is in the page cache: it survives `kill -9` of the process. Power
loss is covered by the fsync setting. The writer holds an flock on its file: a file whose lock is free
has no living writer, and a shipper may adopt it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final
from zlib import crc32

from spanreplay.model.config import SPOOL_BYTES_MAX
from spanreplay.model.own_threads import living, unnumbered_threads
from spanreplay.recording.spool.directory import (
    Usage,
    ack_path,
    is_run_id,
    iter_spool_files,
    new_spool_name,
    prepare_directory,
    run_of_file,
    spool_directory,
    usage_of,
)
from spanreplay.recording.spool.frames import HEADER, MAGIC, MAGIC_COMPACT, frame_header
from spanreplay.recording.spool.limits import FRAME_BYTES_MAX, FSYNC_INTERVAL_MS, REMOVAL_CHECK_MS, SEGMENT_BYTES_MAX

__all__ = ["SpoolWriter", "open_files"]

logger = logging.getLogger(__name__)

# Taken before the agent's are watched
_open: Final = os.open
_rename: Final = os.rename
_said_at: Final[dict[tuple[Path, str], float]] = {}
"""When a failure in a directory was logged last."""
SAY_EVERY_S: Final = 60
_prepared: Final[set[Path]] = set()
"""Directories that this process has prepared; each unit has a file of its own there."""

FSYNC_CHOICES: Final = ("never", "interval", "always")
# macOS has no fdatasync.
_sync = getattr(os, "fdatasync", os.fsync)
_COMPACT: Final = 2
"""First byte of a compact payload, which can be read only in a file with its context."""


class _SpoolFull(Exception):
    """The spool directory has reached its size limit."""


def _check_size(payload: bytes) -> None:
    if not 0 < len(payload) <= FRAME_BYTES_MAX:
        raise ValueError(f"a payload of {len(payload)} bytes, 1 to {FRAME_BYTES_MAX} can be recorded")


@dataclass
class _OpenFile:
    descriptor: int
    path: Path
    size: int
    usage: Usage
    context: bytes
    frames: int = 0
    is_dirty: bool = False
    seen_at: float = 0.0


def _may_say(directory: Path, cause: str) -> bool:
    """Whether a failure is to be logged: a server has a writer for each request, and one full disk."""
    now = monotonic()
    if now - _said_at.get((directory, cause), -SAY_EVERY_S) < SAY_EVERY_S:
        return False
    _said_at[directory, cause] = now
    return True


def _open_file(directory: Path, run_id: str, context: bytes, *, to_ship: bool) -> _OpenFile:
    """Create a spool file of this process, locked before it is visible under its name."""
    head = MAGIC_COMPACT + frame_header(context) + context if context else MAGIC
    if directory in _prepared:
        try:
            return _create(spool_directory(directory), run_id, head, context, to_ship=to_ship)
        except FileNotFoundError:
            pass  # the directory was removed
    spool = prepare_directory(directory)
    _prepared.add(directory)
    return _create(spool, run_id, head, context, to_ship=to_ship)


def _create(spool: Path, run_id: str, head: bytes, context: bytes, *, to_ship: bool) -> _OpenFile:
    path = spool / new_spool_name(run_id)
    hidden = spool / f".{path.name}"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = _open(hidden, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            # A file system without flock: recording matters more; a shipper cannot take the lock either.
            logger.debug("no flock on %s: %s", path.name, exc)
        os.write(descriptor, head)
        if to_ship:
            mark = _open(ack_path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(mark, b"0")
            finally:
                os.close(mark)
        _rename(hidden, path)
    except BaseException:
        os.close(descriptor)
        for leftover in (hidden, ack_path(path)):
            leftover.unlink(missing_ok=True)
        raise
    return _OpenFile(descriptor, path, len(head), usage_of(spool), context)


class SpoolWriter:
    """Writes the payloads of one run, in one process, to `<directory>/spool`.

    Thread-safe and fork-safe: a forked child continues in a file of its own. Nothing is created before
    the first append. `dropped` counts payloads that are not in the spool, whatever the reason.
    `to_ship` marks the files for the shipper; unmarked files stay on this machine.
    """

    def __init__(
        self,
        directory: Path,
        run_id: str,
        *,
        fsync: str = "never",
        bytes_max: int = SPOOL_BYTES_MAX,
        to_ship: bool = False,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> None:
        if not is_run_id(run_id):
            raise ValueError(f"not a run id: {run_id!r}")
        if fsync not in FSYNC_CHOICES:
            raise ValueError(f"fsync is {fsync!r}, not one of {FSYNC_CHOICES}")
        self.directory = directory
        self.run_id = run_id
        self.dropped = 0
        self.appended = 0
        self.to_ship = to_ship
        self.context = b""
        """Context payload at the start of files opened from now on, shared by their compact records (`compact`)."""
        self._fsync = fsync
        self._bytes_max = bytes_max
        self._segment_bytes_max = segment_bytes_max
        self._file: _OpenFile | None = None
        self._said: set[str] = set()
        # Re-entrant: a signal handler or a garbage collection inside append() may end a span, which
        # appends again, or shut everything down.
        self._lock = threading.RLock()
        self._is_busy = False
        self._is_close_wanted = False
        _writers.add(self)

    def stay(self) -> None:
        """Keep the run's files on this machine, including those already marked for the shipper."""
        self.to_ship = False
        for path in iter_spool_files(self.directory):
            if run_of_file(path) == self.run_id:
                ack_path(path).unlink(missing_ok=True)

    @property
    def path(self) -> Path | None:
        """The file being written; None before the first append and after close()."""
        file = self._file
        return file.path if file else None

    def append(self, payload: bytes) -> bool:
        """Write one payload; False if it was dropped and counted. Never raises."""
        try:
            with self._lock:
                if self._is_busy:
                    self._append_aside(payload)
                    return True
                self._is_busy = True
                try:
                    self._append(payload)
                finally:
                    self._is_busy = False
                    if self._is_close_wanted:
                        self._is_close_wanted = False
                        self.close()
            return True
        except Exception as exc:  # noqa: BLE001 - nothing of ours may escape into the agent
            self._drop(1, exc)
            return False

    def sync(self) -> None:
        """Flush appended payloads to disk, whatever the fsync setting. Never raises."""
        try:
            with self._lock:
                if self._file is not None and self._file.is_dirty:
                    self._file.is_dirty = False
                    _sync(self._file.descriptor)
        except OSError as exc:
            self._say(exc, "cannot fsync the spool: %s", exc)

    def close(self) -> None:
        """Release the file; idempotent, never raises. A later append opens a new file."""
        if self._fsync != "never":
            self.sync()
        with self._lock:
            if self._is_busy:
                self._is_close_wanted = True
                return
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if file.frames == 0:
                file.path.unlink(missing_ok=True)
                ack_path(file.path).unlink(missing_ok=True)
            os.close(file.descriptor)
        except OSError as exc:
            self._say(exc, "cannot close the spool: %s", exc)

    def _append_aside(self, payload: bytes) -> None:
        """Append during another append of this thread: to a separate file, because the open one may be
        in any state."""
        _check_size(payload)
        file = _open_file(self.directory, self.run_id, self.context, to_ship=self.to_ship)
        try:
            self._write(file, frame_header(payload), payload)
            if self._fsync != "never":
                _sync(file.descriptor)
        finally:
            os.close(file.descriptor)
        self.appended += 1

    def _append(self, payload: bytes) -> None:
        size = len(payload)
        if not 0 < size <= FRAME_BYTES_MAX:
            _check_size(payload)
        total = HEADER.size + size
        file = self._file
        if file is not None:
            is_call = payload[0] == _COMPACT
            if (file.size + total > self._segment_bytes_max and file.frames) or (
                is_call and file.context is not self.context
            ):
                if self._fsync != "never":
                    self.sync()
                self._close()
                file = None
            # Checking that the file still has a name costs as much as a write: for calls, one check holds for a while
            elif not (is_call and monotonic() - file.seen_at < REMOVAL_CHECK_MS / 1000) and not self._is_there(file):
                file = None
        if file is None:
            file = self._open()
        if not file.usage.take(total, self._bytes_max):
            raise _SpoolFull(f"the spool directory holds its {self._bytes_max} bytes")
        header = HEADER.pack(size, crc32(payload))
        self._write(file, header, payload)
        file.size += total
        file.frames += 1
        file.is_dirty = True
        self.appended += 1
        if self._fsync == "always":
            file.is_dirty = False
            _sync(file.descriptor)
        elif self._fsync == "interval":
            _syncer.notify()

    def _is_there(self, file: _OpenFile) -> bool:
        """Whether the file still has a name; if not, abandon it and count its frames as dropped."""
        file.seen_at = monotonic()
        if os.fstat(file.descriptor).st_nlink:
            return True
        # The directory was removed: everything written to the nameless file is lost.
        self._abandon(file)
        self._drop(file.frames, FileNotFoundError(errno.ENOENT, f"{file.path.name} was removed"))
        return False

    def _open(self) -> _OpenFile:
        file = _open_file(self.directory, self.run_id, self.context, to_ship=self.to_ship)
        self._file = file
        if self._fsync != "never":
            folder = os.open(file.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return file

    def _write(self, file: _OpenFile, header: bytes, payload: bytes) -> None:
        total = len(header) + len(payload)
        written = 0
        try:
            written = os.writev(file.descriptor, (header, payload))
            if written < total:
                rest = memoryview(header + payload)
                while written < total:
                    written += os.write(file.descriptor, rest[written:])
        except OSError:
            if written:
                self._cut_torn_frame(file, written)
            raise

    def _cut_torn_frame(self, file: _OpenFile, written: int) -> None:
        """Cut off a partly written frame, so that the next one does not follow garbage."""
        try:
            os.ftruncate(file.descriptor, os.fstat(file.descriptor).st_size - written)
        except OSError:
            # Readers ignore a torn tail, as long as nothing is written after it.
            if file is self._file:
                self._abandon(file)

    def _abandon(self, file: _OpenFile) -> None:
        self._file = None
        os.close(file.descriptor)

    def _drop(self, count: int, exc: Exception) -> None:
        with self._lock:
            self.dropped += count
        self._say(exc, "spans are not recorded in %s: %s", self.directory, exc)

    def _say(self, exc: Exception, message: str, *values: object) -> None:
        cause = f"{type(exc).__name__}:{getattr(exc, 'errno', '')}"
        if cause not in self._said:
            self._said.add(cause)
            if _may_say(self.directory, cause):
                logger.error(message, *values)

    def _reset_after_fork(self) -> None:
        """In a forked child: leave the file and its lock to the parent, and start afresh."""
        self._lock = threading.RLock()
        self._is_busy = self._is_close_wanted = False
        file, self._file = self._file, None
        self.dropped = 0
        self.appended = 0
        if file is not None:
            # Closing the copy does not release the parent's flock; keeping it would hold the lock after
            # the parent has died.
            os.close(file.descriptor)


class _Syncer:
    """A daemon thread that fsyncs writers about once a second, for the fsync setting `interval`."""

    def __init__(self) -> None:
        self._due = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_broken = False

    def notify(self) -> None:
        """Tell the thread that something was appended."""
        if self._due.is_set() or self._is_broken:
            return
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spanreplay-fsync", daemon=True)
            try:
                with unnumbered_threads():
                    self._thread.start()
            except RuntimeError:
                # The interpreter is shutting down: close() syncs.
                self._is_broken = True

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._due.wait()
            pause.wait(FSYNC_INTERVAL_MS / 1000)
            self._due.clear()
            for writer in living(_writers):
                writer.sync()


_writers: weakref.WeakSet[SpoolWriter] = weakref.WeakSet()
_syncer = _Syncer()


def open_files(directory: Path) -> list[Path]:
    """The spool files under a directory that this process is writing now."""
    paths = (w.path for w in living(_writers) if w.directory == directory)
    return sorted(p for p in paths if p is not None)


def _reset_after_fork() -> None:
    global _syncer
    _syncer = _Syncer()
    for writer in list(_writers):
        writer._reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)
