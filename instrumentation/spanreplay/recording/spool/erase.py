"""Erase runs from a data directory: find what belongs to them, and remove it from the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from spanreplay.model.attributes import UNIT
from spanreplay.model.errors import SourceError
from spanreplay.recording.catalog import PARENT, Erasure, RunSummary
from spanreplay.recording.spool.courier import is_locked
from spanreplay.recording.spool.directory import REFUSED, ack_path, run_of_file, spool_directory
from spanreplay.recording.spool.frames import expand_record, scan_file_records, write_spool_file
from spanreplay.recording.spool.requests import runs_of_record, select_run

__all__ = ["find_erased", "remove"]

_NEEDED: Final = ("process", "worker")
"""Members of a unit that name the runs without which it can't be replayed."""


def find_erased(summaries: Mapping[str, RunSummary], chosen: Erasure) -> set[str]:
    """The ids of the chosen runs, with their replays and the runs that their processes started; pure.

    `chosen.run_ids` are whole. Runs that are chosen by age stay if a run that stays needs them.
    """
    found = set(chosen.run_ids)
    for run_id, summary in summaries.items():
        root = summary.root
        if root.user_id in chosen.user_ids or root.session_id in chosen.session_ids:
            found.add(run_id)
    found = _with_related(found, summaries)
    if not chosen.before_ns:
        return found
    old = {run_id for run_id, summary in summaries.items() if _is_old(summary, chosen)}
    kept = [summary for run_id, summary in summaries.items() if run_id not in old and run_id not in found]
    return found | old - {needed for summary in kept for needed in _needed(summary)}


def _is_old(summary: RunSummary, chosen: Erasure) -> bool:
    root = summary.root
    if summary.status == "error" and not root.replay_of and not chosen.with_failures:
        return False
    return max(root.start_ns, root.end_ns) < chosen.before_ns


def _needed(summary: RunSummary) -> Iterator[Any]:
    unit = summary.root.env.get(UNIT)
    return (unit.get(name) for name in _NEEDED) if isinstance(unit, Mapping) else iter(())


def _with_related(found: set[str], summaries: Mapping[str, RunSummary]) -> set[str]:
    related: dict[str, list[str]] = {}
    for run_id, summary in summaries.items():
        parent = summary.root.env.get(PARENT)
        started_by = parent.get("run_id") if isinstance(parent, Mapping) else None
        for of in (summary.root.replay_of, started_by):
            if of:
                related.setdefault(str(of), []).append(run_id)
    result, waiting = set(found), list(found)
    while waiting:
        for run_id in related.get(waiting.pop(), ()):
            if run_id not in result:
                result.add(run_id)
                waiting.append(run_id)
    return result


def remove(directory: Path, files: Mapping[str, Sequence[Path]], run_ids: set[str]) -> None:
    """Remove runs from their files; a file that holds others as well is written anew.

    Raises: SourceError, before anything is removed, if a process still writes one of the files.
    """
    paths = {path for run_id in run_ids for path in files.get(run_id, ())}
    for path in sorted(paths):
        if is_locked(path):
            raise SourceError(
                f"run {run_of_file(path)} is still being written, so nothing was erased",
                hint="wait until its process has ended, or end it",
            )
    try:
        for path in sorted(paths):
            _remove_from(path, run_ids)
        _remove_refused(spool_directory(directory) / REFUSED, run_ids)
    except OSError as exc:
        raise SourceError(f"cannot erase in {directory}: {exc.strerror or exc}") from exc


def _remove_from(path: Path, run_ids: set[str]) -> None:
    kept = list(_iter_kept(path, run_ids))
    ack = ack_path(path)
    if not kept:
        path.unlink(missing_ok=True)
        ack.unlink(missing_ok=True)
        return
    write_spool_file(path, kept)
    if ack.exists():
        ack.write_text("0")  # what was delivered already is harmless to deliver again


def _iter_kept(path: Path, run_ids: set[str]) -> Iterator[bytes]:
    default_run = run_of_file(path)
    for record in scan_file_records(path):
        payload = expand_record(record, str(path))
        for run_id in sorted({default_run, *runs_of_record(record)} - run_ids):
            selected = select_run(payload, run_id, default_run=default_run, name=str(path))
            if selected:
                yield selected


def _remove_refused(folder: Path, run_ids: set[str]) -> None:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if run_of_file(path) in run_ids:
            path.unlink(missing_ok=True)
