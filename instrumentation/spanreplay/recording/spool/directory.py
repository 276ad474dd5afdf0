"""The directory of local recordings: its file names, its creation and its size."""

from __future__ import annotations

import _thread
import logging
import os
import re
from collections.abc import Iterator
from os import urandom
from pathlib import Path
from time import monotonic
from typing import Final

from spanreplay.model.private import is_plain_file, make_private
from spanreplay.recording.spool.limits import ODD_FILES_SAID_MAX, USAGE_RESCAN_BYTES, USAGE_RESCAN_MS, USAGE_SCAN_MS_MAX

__all__ = [
    "ACK_SUFFIX",
    "DEFAULT_NAME",
    "SPOOL_SUFFIX",
    "Usage",
    "ack_path",
    "is_run_id",
    "iter_spool_files",
    "new_spool_name",
    "prepare_directory",
    "run_of_file",
    "spool_directory",
    "usage_of",
]

logger = logging.getLogger(__name__)

SPOOL_SUFFIX: Final = ".spool"
ACK_SUFFIX: Final = ".ack"
REFUSED: Final = "refused"
DEFAULT_NAME: Final = ".spanreplay"
_open: Final = os.open
"""The function itself: what we make for a unit is no file of the program."""
_said: set[Path] = set()
_RUN_ID: Final = re.compile(r"[0-9a-f]{32}\Z")


def is_run_id(text: str) -> bool:
    """Whether this is a whole run id: 32 lower-case hexadecimal characters."""
    return _RUN_ID.match(text) is not None


def spool_directory(directory: Path) -> Path:
    """The folder that holds a data directory's spool files."""
    return directory / "spool"


def ack_path(spool_file: Path) -> Path:
    """The file that says how far a spool file is delivered; its presence marks the file to be shipped."""
    return spool_file.with_name(spool_file.name + ACK_SUFFIX)


def new_spool_name(run_id: str) -> str:
    """A file name that no other writer has: the run, the process and 32 random bits."""
    return f"{run_id}.{os.getpid()}-{urandom(4).hex()}{SPOOL_SUFFIX}"


def run_of_file(path: Path) -> str:
    """The run that a spool file is named after, or an empty string."""
    run_id = path.name.partition(".")[0]
    return run_id if is_run_id(run_id) else ""


def iter_spool_files(directory: Path) -> Iterator[Path]:
    """Every spool file of a data directory, by name; none if it is missing. Logs each entry that is no file once."""
    try:
        paths = sorted(spool_directory(directory).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        if not path.name.endswith(SPOOL_SUFFIX) or path.name.startswith("."):
            continue
        if is_plain_file(path):
            yield path
        elif path not in _said and len(_said) < ODD_FILES_SAID_MAX and os.path.lexists(path):
            _said.add(path)
            logger.warning("%s is a link, a FIFO or a device, not a recording: it is left alone", path)


def _ignore_in_git(directory: Path) -> None:
    try:
        descriptor = _open(directory / ".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    try:
        os.write(descriptor, b"*\n")
    finally:
        os.close(descriptor)


def prepare_directory(directory: Path) -> Path:
    """Create a data directory with mode 0700, hidden from git, and return its spool directory.

    An existing directory with another name keeps its mode and gets no `.gitignore`, so that pointing
    SPANREPLAY_DIR at a repository does not hide the repository.
    Raises: OSError, also if a link is where our directory is expected.
    """
    is_ours = directory.name == DEFAULT_NAME
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        is_ours = True
    if is_ours:
        _ignore_in_git(make_private(directory))
    spool = make_private(spool_directory(directory))
    _ignore_in_git(spool)
    return spool


class Usage:
    """Approximate number of bytes in a spool directory; shared by all writers of the process.

    The directory is measured at first use and after each USAGE_RESCAN_BYTES; in between, only this
    process's own bytes are counted. Where that takes long, a thread of its own does it: a writer writes in the middle
    of the agent's work.
    """

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._bytes = 0
        self._unmeasured_bytes = USAGE_RESCAN_BYTES
        self._measured_at = float("-inf")
        self._took_s = 0.0
        """How long the last measurement took."""
        self._measuring = 0
        """The process in which a thread measures; 0: none."""

    def take(self, size: int, bytes_max: int) -> bool:
        """Count `size` more bytes if they fit within `bytes_max`; return whether they do. May list the directory."""
        if self._unmeasured_bytes + size > USAGE_RESCAN_BYTES:
            self._measure_soon()
        if self._bytes + size > bytes_max:
            if monotonic() - self._measured_at < USAGE_RESCAN_MS / 1000:
                return False
            self._measure_soon()
            if self._bytes + size > bytes_max:
                return False
        self._bytes += size
        self._unmeasured_bytes += size
        return True

    @property
    def known_bytes(self) -> int:
        """The size as this process last knew it, without measuring."""
        return self._bytes

    def measure(self) -> int:
        """Measure the directory and return its size."""
        self._measure()
        return self._bytes

    def _measure_soon(self) -> None:
        if self._took_s < USAGE_SCAN_MS_MAX / 1000:
            self._measure()
        elif self._measuring != os.getpid():  # a thread of the parent is not here after a fork
            self._measuring, self._unmeasured_bytes = os.getpid(), 0
            try:
                _thread.start_new_thread(self._measure_aside, ())
            except RuntimeError:  # no more threads, or the interpreter ends
                self._measuring = 0

    def _measure_aside(self) -> None:
        try:
            self._measure()
        finally:
            self._measuring = 0

    def _measure(self) -> None:
        total, begun = 0, monotonic()
        for folder in (self._spool, self._spool / REFUSED):
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_file(follow_symlinks=False):
                            total += entry.stat(follow_symlinks=False).st_size
            except OSError:
                # The folder is missing, or a file disappeared during the measurement: a later one corrects it.
                continue
        self._bytes = total
        self._unmeasured_bytes = 0
        self._measured_at = monotonic()
        self._took_s = self._measured_at - begun


_usages: dict[Path, Usage] = {}


def usage_of(spool: Path) -> Usage:
    """The Usage of a spool directory, one per process."""
    return _usages.get(spool) or _usages.setdefault(spool, Usage(spool))
