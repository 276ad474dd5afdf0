"""Answers of models kept for later runs: one small file each, below the data directory.

`DIR/reuse/ab/abcd…/TIME-RUN-NUMBER.json`: the folder stands for who may be served (agent, user or session) and what was
asked (address, key of the request), the name for when it was answered and by which call. Several files in a folder are
several answers to one question, as best-of-N makes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from spanreplay.model.own_threads import make_lock
from spanreplay.model.private import is_plain_file, make_private
from spanreplay.recording.catalog import Erasure

__all__ = ["ANSWERS_MAX", "ANSWER_BYTES_MAX", "Answer", "KeptAnswers"]

FOLDER: Final = "reuse"
ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Length of an answer's file; a longer answer is not kept."""
ANSWERS_MAX: Final = 20_000
"""How many answers a directory holds."""
SAMPLES_MAX: Final = 256
"""How many answers to one question are kept."""
_NAME: Final = re.compile(r"(\d{19})-([0-9a-f]{32})-(\d{1,9})\.json\Z")


@dataclass(frozen=True)
class Answer:
    """The answer to one request, as its call recorded it; `response` is redacted JSON text."""

    run_id: str
    seq: int
    start_ns: int
    end_ns: int
    response: str
    meta: Mapping[str, Any]
    user_id: str = ""
    session_id: str = ""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.end_ns:019}-{self.run_id}-{self.seq}.json"


class KeptAnswers:
    """The answers below one data directory. Thread-safe; several processes may share the directory."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / FOLDER
        self._lock = make_lock()
        self._count = -1
        """How many answers there are, as far as this process knows; -1 before it has looked."""

    def find(self, question: str, since_ns: int, without: set[tuple[str, int]]) -> Answer | None:
        """The oldest answer since `since_ns` that is not among `without` (run, call); removes older ones."""
        folder = self._find_folder(question)
        for path, run_id, seq in _iter_named(folder):
            if int(path.name[:19]) < since_ns:
                with suppress(OSError):
                    path.unlink()
            elif (run_id, seq) not in without:
                found = _read(path)
                if found is not None and found.name == path.name:
                    return found
        return None

    def keep(self, question: str, answer: Answer, since_ns: int) -> bool:
        """Keep an answer; return False if there is no room. Raises: OSError."""
        content = json.dumps(asdict(answer), ensure_ascii=True).encode("ascii")
        folder = self._find_folder(question)
        if len(content) > ANSWER_BYTES_MAX or not self._has_room(since_ns):
            return False
        if sum(1 for _ in _iter_named(folder)) >= SAMPLES_MAX:
            return False
        make_private(folder)
        path = folder / answer.name
        part = path.with_suffix(f".{os.getpid()}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        part.replace(path)
        return True

    def runs(self) -> set[str]:
        """The ids of the runs that have answers here."""
        return {run_id for _, run_id, _ in self._iter_all()}

    def erase(self, chosen: Erasure, run_ids: set[str], *, is_trial: bool = False) -> set[str]:
        """Remove the answers of these runs, of the chosen users and sessions, and of before; return whose they were.

        With `is_trial` they are only found. What is not an answer is removed, too.
        """
        erased: set[str] = set()
        for path, _, _ in self._iter_all():
            found = _read(path)
            if found is not None and not _is_chosen(found, chosen, run_ids):
                continue
            if found is not None:
                erased.add(found.run_id)
            if not is_trial:
                path.unlink(missing_ok=True)
        return erased

    def _has_room(self, since_ns: int) -> bool:
        with self._lock:
            if not 0 <= self._count < ANSWERS_MAX:
                self._count = self._sweep(since_ns)
            has_room = self._count < ANSWERS_MAX
            self._count += has_room
        return has_room

    def _sweep(self, since_ns: int) -> int:
        """Remove the answers of before; return how many are left."""
        left = 0
        for path, _, _ in self._iter_all():
            if int(path.name[:19]) < since_ns:
                with suppress(OSError):
                    path.unlink()
            else:
                left += 1
        return left

    def _iter_all(self) -> Iterator[tuple[Path, str, int]]:
        for group in _list(self._folder):
            for folder in _list(group):
                yield from _iter_named(folder)

    def _find_folder(self, question: str) -> Path:
        digest = hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self._folder / digest[:2] / digest


def _is_chosen(answer: Answer, chosen: Erasure, run_ids: set[str]) -> bool:
    return (
        answer.run_id in run_ids
        or answer.user_id in chosen.user_ids
        or answer.session_id in chosen.session_ids
        or answer.end_ns < chosen.before_ns
    )


def _list(folder: Path) -> list[Path]:
    try:
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except OSError:
        return []


def _iter_named(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """The answers' files in a folder, oldest first, each with its run and the number of its call."""
    for path in _list(folder):
        named = _NAME.match(path.name)
        if named is not None:
            yield path, named[2], int(named[3])


def _read(path: Path) -> Answer | None:
    """Read an answer; None if it is not one, or is gone."""
    try:
        if not is_plain_file(path) or path.stat().st_size > ANSWER_BYTES_MAX:
            return None
        answer = Answer(**json.loads(path.read_bytes()))
        texts = (answer.run_id, answer.response, answer.user_id, answer.session_id)
        numbers = (answer.seq, answer.start_ns, answer.end_ns)
        is_sound = all(type(text) is str for text in texts) and all(type(number) is int for number in numbers)
        return answer if is_sound and isinstance(answer.meta, dict) else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None
