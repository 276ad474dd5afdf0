"""Counts the units of a process that were kept, with reasons, and left out: a member of its run's manifest.

A process that is part of another process's run passes its counts to that process in a file. So does a forked process
whose own run is not written because it made no call.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spanreplay.model.own_threads import make_lock
from spanreplay.model.private import make_private
from spanreplay.recording.sampling.governor import Governor
from spanreplay.recording.sampling.rules import ALWAYS_WORD, Rules

__all__ = ["MEMBER", "Tally", "describe_sampling"]

MEMBER: Final = "units"
"""Member of the manifest of a process whose units are sampled."""
RULES, KEPT, LEFT_OUT, KEPT_FOR, NOT_RECORDED = "sample", "kept", "left_out", "kept_for", "not_recorded"
_FOLDER: Final = "units"
_LINES_MAX: Final = 100_000


class Tally:
    """Counts of one process's units by outcome. Thread-safe."""

    def __init__(self, rules: Rules, governor: Governor) -> None:
        self.rules = rules
        self.governor = governor
        self._lock = make_lock()
        self._counts = _new_counts()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report: no unit was counted. Units are not counted if all are kept anyway."""
        return not (self._counts[KEPT] or self._counts[LEFT_OUT] or self._counts[NOT_RECORDED])

    @property
    def left_out(self) -> int:
        """Number of units that have no run."""
        count: int = self._counts[LEFT_OUT] + sum(self._counts[NOT_RECORDED].values())
        return count

    def count(self, reasons: tuple[str, ...]) -> None:
        """Count an ended unit: kept for these reasons, or left out if there are none."""
        counted = {KEPT: 1, KEPT_FOR: dict.fromkeys(reasons, 1)} if reasons else {LEFT_OUT: 1}
        self._add(counted)

    def count_not_recorded(self, limit: str) -> None:
        """Count a unit that began while this limit was exceeded."""
        self._add({NOT_RECORDED: {limit: 1}})

    def _add(self, counts: Mapping[str, Any]) -> None:
        with self._lock:
            self._counts = _sum(self._counts, counts)

    def for_manifest(self) -> dict[str, Any]:
        """The member of the manifest; empty while no unit was counted and no limit was exceeded."""
        steps = self.governor.describe()
        return {} if self.is_empty and not steps else {MEMBER: {RULES: self.rules.text, **self._counts, **steps}}

    def hand_on(self, data_dir: Path, run_id: str) -> None:
        """Pass the counts to another run on this machine. Raises: OSError."""
        if self.is_empty:
            return
        with self._lock:
            counts, self._counts = self._counts, _new_counts()
        line = json.dumps(counts) + "\n"
        path = make_private(data_dir / _FOLDER) / f"{run_id}.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def take_over(self, data_dir: Path, run_id: str) -> None:
        """Add the counts that other processes passed to a run of this process. Raises: OSError, ValueError."""
        path = data_dir / _FOLDER / f"{run_id}.json"
        if path.is_symlink() or not path.is_file():
            return
        for line in path.read_text(encoding="utf-8").splitlines()[:_LINES_MAX]:
            self._add(json.loads(line))
        path.unlink(missing_ok=True)


def _new_counts() -> dict[str, Any]:
    return {KEPT: 0, LEFT_OUT: 0, KEPT_FOR: {}, NOT_RECORDED: {}}


def _sum(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    summed: dict[str, Any] = {name: known.get(name, 0) + more.get(name, 0) for name in (KEPT, LEFT_OUT)}
    for member in (KEPT_FOR, NOT_RECORDED):
        summed[member] = dict(Counter(known.get(member, {})) + Counter(more.get(member, {})))
    return summed


def describe_sampling(manifest: Mapping[str, Any]) -> str:
    """Describe a manifest's counts of kept and left-out units in one sentence; '' if it has none."""
    counts = manifest.get(MEMBER)
    if not isinstance(counts, Mapping):
        return ""
    kept, left_out, rules = counts.get(KEPT, 0), counts.get(LEFT_OUT, 0), counts.get(RULES, "")
    why = ", ".join(f"{count} {name}" for name, count in (counts.get(KEPT_FOR) or {}).items())
    limits = ", ".join(f"{count} {name}" for name, count in (counts.get(NOT_RECORDED) or {}).items())
    passed = f"units not recorded because a limit was passed: {limits}" if limits else ""
    if rules == ALWAYS_WORD:
        return passed
    said = f"{kept + left_out} units ended, {kept} kept{f' ({why})' if why else ''}, {left_out} left out by {rules}"
    return f"{said}; {passed}" if passed else said
