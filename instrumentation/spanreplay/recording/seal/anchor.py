"""Anchors: what the runs of a store were at some time, in a file that is kept where the store's owner can't change it.

(1) A run's hash is the SHA-256 of what its signature covers: its root record, with the Merkle root over its calls.
(2) Each line of the file lists the runs that ended since the line before it, their Merkle root, and the hash of that
    line: the hash of the last line, its *head*, stands for everything above it.
(3) A run that is anchored and is not there, or has another hash, has been removed or changed.

The file is written only at its end. Whoever holds a head (in a commit, a timestamp, a letter) can prove all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spanreplay.model.call import RootRecord
from spanreplay.model.errors import DamagedRecording
from spanreplay.recording.seal.signing import state_root
from spanreplay.recording.seal.tree import hash_root

__all__ = ["Anchored", "Anchors", "hash_run", "make_line", "read_anchors"]

VERSION: Final = 1


@dataclass(frozen=True)
class Anchored:
    """A run in a file of anchors: its hash, and the time of its line."""

    sha256: str
    at: str


@dataclass(frozen=True)
class Anchors:
    """All runs of a file, and the hash of its last line; '' for an empty file."""

    runs: Mapping[str, Anchored] = field(default_factory=dict)
    head: str = ""


def hash_run(root: RootRecord) -> str:
    """The hash of a run that has ended; any change of its root record or its calls changes it."""
    return hashlib.sha256(state_root(root)).hexdigest()  # (1)


def make_line(runs: Mapping[str, str], at: str, previous: str) -> str:
    """One line of the file, without its end: the hashes of runs by their ids, after the line with this hash; pure."""
    ordered = dict(sorted(runs.items()))
    stated = {"anchor": VERSION, "at": at, "previous": previous, "root": _root(ordered), "runs": ordered}  # (2)
    return json.dumps(stated, separators=(",", ":"))


def read_anchors(content: bytes) -> Anchors:
    """Read a file of anchors and check its chain. Raises: DamagedRecording, naming the line."""
    runs: dict[str, Anchored] = {}
    head = ""
    for number, line in enumerate(content.splitlines(), 1):
        try:
            stated = json.loads(line)
            at, hashes = _check(stated, head)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise DamagedRecording(
                f"line {number} of the anchors was changed, or a line before it was removed",
                hint="take the file from where it is kept safe",
            ) from exc
        for run_id, sha256 in hashes.items():
            runs.setdefault(run_id, Anchored(sha256, at))
        head = hashlib.sha256(line).hexdigest()
    return Anchors(runs, head)


def _check(stated: Any, previous: str) -> tuple[str, dict[str, str]]:
    hashes = {str(run_id): str(sha256) for run_id, sha256 in stated["runs"].items()}
    if stated["anchor"] != VERSION or stated["previous"] != previous or stated["root"] != _root(hashes):
        raise ValueError("a line of another file")
    return str(stated["at"]), hashes


def _root(runs: Mapping[str, str]) -> str:
    return hash_root(_leaves(runs.items()))


def _leaves(runs: Iterable[tuple[str, str]]) -> Iterable[str]:
    for run_id, sha256 in sorted(runs):
        yield hashlib.sha256(b"\x00" + bytes.fromhex(run_id) + bytes.fromhex(sha256)).hexdigest()
