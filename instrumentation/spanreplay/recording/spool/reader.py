"""The runs in a spool directory, as a catalog.

A run may be spread over several files (one for each process that took part) and a file may hold spans of
several runs (a server). The catalog caches what it read of a file until the file's size or time changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spanreplay.model.call import Outcome
from spanreplay.model.errors import AmbiguousRun, RunNotFound, SourceError
from spanreplay.model.own_threads import make_lock
from spanreplay.recording import bundle as bundle_file
from spanreplay.recording.catalog import RUNS_MAX, Erased, Erasure, Imported, RunQuery, RunSummary, matches, summarize
from spanreplay.recording.spool.courier import is_locked
from spanreplay.recording.spool.directory import (
    SPOOL_SUFFIX,
    ack_path,
    iter_spool_files,
    prepare_directory,
    run_of_file,
)
from spanreplay.recording.spool.frames import Record, expand_record, iter_frames, scan_file_records, write_spool_file
from spanreplay.recording.spool.limits import CANDIDATES_SHOWN_MAX, PREFIX_CHARS_MIN
from spanreplay.recording.spool.requests import add_record, count_spans, parse_payload, runs_of_record, select_run

if TYPE_CHECKING:
    from spanreplay.model.call import Recording

__all__ = ["SpoolCatalog", "iter_frames"]

logger = logging.getLogger(__name__)

_HINT_LS: Final = "list the runs that are here: spanreplay ls"
_DAY_NS: Final = 86_400 * 1_000_000_000
_Version = tuple[int, int]


@dataclass(frozen=True)
class _Indexed:
    version: _Version
    run_ids: frozenset[str]


def _start_ns(run_id: str) -> int:
    """Creation time of a UUIDv7, in nanoseconds since the epoch; 0 for another kind of id."""
    return int(run_id[:12], 16) * 1_000_000 if run_id[12] == "7" else 0


def _with_start(recording: Recording) -> Recording:
    """The recording; if its root span is missing, the start is taken from the run id."""
    if recording.root.start_ns:
        return recording
    return replace(recording, root=replace(recording.root, start_ns=_start_ns(recording.run_id)))


class SpoolCatalog:
    """The recordings in a data directory (`.spanreplay/`); a missing one is empty. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._indexed: dict[Path, _Indexed] = {}
        self._summaries: dict[str, tuple[tuple[tuple[Path, _Version], ...], RunSummary | None]] = {}
        self._said: set[str] = set()
        self._lock = make_lock()

    def search(self, query: RunQuery) -> list[RunSummary]:
        """Matching runs, newest first, at most `query.limit` (1000 at most).

        A damaged file is logged once; its readable part is listed.
        """
        limit = min(query.limit, RUNS_MAX)
        found: list[RunSummary] = []
        with self._lock:
            files = self._refresh()
            run_ids = sorted((r for r in files if r.startswith(query.run_id_prefix)), reverse=True)
            # Ids of version 7 sort by time, so that the rest need not be read.
            is_by_time = all(_start_ns(r) for r in run_ids)
            for run_id in run_ids:
                if is_by_time and len(found) >= limit:
                    break
                summary = self._summary(run_id, files[run_id])
                if summary is not None and matches(summary, query):
                    found.append(summary)
        found.sort(key=lambda s: (s.root.start_ns, s.root.run_id), reverse=True)
        return found[: max(limit, 0)]

    def resolve(self, run_id: str) -> str:
        """The whole id of the run that a prefix of at least 6 characters names.

        Raises: RunNotFound, AmbiguousRun.
        """
        with self._lock:
            return self._resolve(run_id, self._refresh())

    def load(self, run_id: str) -> Recording:
        """All boundary calls of a run. Raises: RunNotFound, AmbiguousRun, DamagedRecording, NewerSchema."""
        from spanreplay.recording.otlp.otlp import RecordingBuilder

        with self._lock:
            files = self._refresh()
            whole_id = self._resolve(run_id, files)
            builder = RecordingBuilder(whole_id)
            for path, record in self._iter_run(whole_id, files[whole_id]):
                add_record(builder, record, str(path))
            return builder.build()

    def iter_recordings(self, since_ns: int = 0) -> Iterator[Recording]:
        """Every run that may have begun at or after a time, by the time in its id; oldest first, one in memory.

        A damaged run is logged once and skipped.
        """
        from spanreplay.recording.otlp.otlp import RecordingBuilder

        with self._lock:
            files = self._refresh()
        for run_id in sorted(files, key=lambda r: (_start_ns(r), r)):
            made_ns = _start_ns(run_id)
            if made_ns and made_ns + _DAY_NS < since_ns:
                continue  # not worth reading: its id is more than a day older
            builder = RecordingBuilder(run_id)
            try:
                for path, record in self._iter_run(run_id, files[run_id]):
                    add_record(builder, record, str(path))
                recording = builder.build()
            except RunNotFound:
                continue
            except SourceError as exc:
                self._say(f"run {run_id} is not read: {exc}")
                continue
            yield _with_start(recording)

    def export(self, run_id: str) -> bytes:
        """The run as the bytes of a `.replay` file, spans of other instrumentors included.

        Raises: RunNotFound, AmbiguousRun, DamagedRecording, NewerSchema.
        """
        return next(self.iter_exports([run_id]))

    def iter_exports(self, run_ids: Iterable[str]) -> Iterator[bytes]:
        """Export each of these runs, in the given order; the directory is read only once.

        Raises: RunNotFound, AmbiguousRun, DamagedRecording, NewerSchema.
        """
        with self._lock:
            files = self._refresh()
        for run_id in run_ids:
            with self._lock:
                whole_id = self._resolve(run_id, files)
                # A record may be here twice: as recorded, and in an imported file.
                payloads = dict.fromkeys(self._iter_payloads(whole_id, files[whole_id]))
            yield bundle_file.pack(whole_id, payloads)

    def import_bundle(self, bundle: bytes, *, to_ship: bool = False) -> Imported:
        """Import a `.replay` file; importing it twice is harmless.

        The file stays on this machine unless `to_ship`.
        Raises: ForeignFile, DamagedRecording, NewerSchema, RunNotFound; SourceError, also if the run is already here
        with different content.
        """
        from spanreplay.recording.otlp.otlp import build_recording

        read = bundle_file.read_bundle(bundle)
        requests = [parse_payload(p, "the bundle") for p in read.payloads]
        found = build_recording(requests, read.run_id)
        self._check_same(found)
        try:
            spool = prepare_directory(self._directory)
            path = spool / f"{read.run_id}.{read.sha256[:16]}{SPOOL_SUFFIX}"
            if not path.exists():
                write_spool_file(path, read.payloads)
            if to_ship and not ack_path(path).exists():
                ack_path(path).write_text("0")
        except OSError as exc:
            raise SourceError(
                f"cannot write to {self._directory}: {exc.strerror}",
                hint="set SPANREPLAY_DIR to a writable place",
            ) from exc
        return Imported(read.run_id, sum(count_spans(r) for r in requests))

    def _check_same(self, found: Recording) -> None:
        """Refuse a recording that differs from a run already here, which is kept. Raises: SourceError."""
        try:
            here = self.load(found.run_id)
        except RunNotFound:
            return
        stored = {call.span_id: call for call in here.calls if call.outcome != Outcome.OPEN.value}
        ended = [call for call in found.calls if call.outcome != Outcome.OPEN.value]
        differing = sum(call != stored.get(call.span_id, call) for call in ended)
        differing += bool(found.root.manifest and here.root.manifest and found.root != here.root)
        if here.completeness().is_complete:
            differing += sum(call.span_id not in stored for call in found.calls)
        if differing:
            raise SourceError(
                f"run {found.run_id} is here already, and {differing} records of the file differ from it",
                hint="the run stays as it is; replay the file itself if you trust it more",
            )

    def erase(self, chosen: Erasure, *, is_trial: bool = False) -> Erased:
        """Remove runs for good, or with `is_trial` only find them.

        Raises: RunNotFound, AmbiguousRun; SourceError, before anything is removed, if a run is still being written.
        """
        from spanreplay.recording.kept_answers import KeptAnswers
        from spanreplay.recording.spool.erase import find_erased, remove

        with self._lock:
            files = self._refresh()
            answers = KeptAnswers(self._directory)
            known: dict[str, list[Path]] = {**{run_id: [] for run_id in answers.runs()}, **files}
            named = replace(chosen, run_ids=tuple(self._resolve(run_id, known) for run_id in chosen.run_ids))
            read = {run_id: self._summary(run_id, paths) for run_id, paths in files.items()}
            found = find_erased({run_id: summary for run_id, summary in read.items() if summary}, named)
            if not is_trial:
                remove(self._directory, files, found)
            found |= answers.erase(named, found, is_trial=is_trial)
        return Erased(tuple(sorted(found)))

    def is_written(self, run_id: str) -> bool:
        """Whether a living process is writing a file of this run."""
        return any(is_locked(path) for path in self._refresh().get(run_id, []))

    def close(self) -> None:
        """Drop the cache; idempotent."""
        with self._lock:
            self._indexed.clear()
            self._summaries.clear()

    def _refresh(self) -> dict[str, list[Path]]:
        """Read new and changed files, and return the files of each run."""
        indexed: dict[Path, _Indexed] = {}
        files: dict[str, list[Path]] = {}
        for path in iter_spool_files(self._directory):
            try:
                stat = path.stat()
            except OSError:
                continue  # shipped and deleted meanwhile
            version = (stat.st_size, stat.st_mtime_ns)
            known = self._indexed.get(path)
            if known is None or known.version != version:
                known = _Indexed(version, self._read_run_ids(path))
            indexed[path] = known
            for run_id in known.run_ids:
                files.setdefault(run_id, []).append(path)
        self._indexed = indexed
        return files

    def _read_run_ids(self, path: Path) -> frozenset[str]:
        run_ids: set[str] = set()
        for record in self._iter_readable(path):
            run_ids |= runs_of_record(record) or {run_of_file(path)}
        return frozenset(run_ids - {""})

    def _iter_readable(self, path: Path) -> Iterator[Record]:
        """The records of a file up to the first damage, which is logged once."""
        try:
            yield from scan_file_records(path)
        except FileNotFoundError:
            return
        except (SourceError, OSError) as exc:
            self._say(str(exc))

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning("%s", message)

    def _resolve(self, given: str, files: dict[str, list[Path]]) -> str:
        prefix = given.strip().lower().replace("-", "")
        if prefix in files:
            return prefix
        if len(prefix) < PREFIX_CHARS_MIN:
            raise RunNotFound(
                f"{given!r} is too short for a run id: give at least {PREFIX_CHARS_MIN} characters",
                hint=_HINT_LS,
            )
        found = sorted(r for r in files if r.startswith(prefix))
        if not found:
            # Its file may be damaged before its first readable record.
            for path in iter_spool_files(self._directory):
                if run_of_file(path).startswith(prefix):
                    for _ in iter_frames(path):
                        break
            raise RunNotFound(f"no run {given!r} in {self._directory}", hint=_HINT_LS)
        if len(found) > 1:
            shown = ", ".join(found[:CANDIDATES_SHOWN_MAX])
            more = f" and {len(found) - CANDIDATES_SHOWN_MAX} more" if len(found) > CANDIDATES_SHOWN_MAX else ""
            raise AmbiguousRun(
                f"{given!r} names {len(found)} runs: {shown}{more}", hint="give more characters of the id"
            )
        return found[0]

    def _iter_run(self, run_id: str, paths: list[Path]) -> Iterator[tuple[Path, Record]]:
        """The records that may belong to a run, with their files; raises on damage."""
        for path in paths:
            default_run = run_of_file(path)
            try:
                for record in scan_file_records(path):
                    if run_id == default_run or run_id in runs_of_record(record):
                        yield path, record
            except FileNotFoundError:
                continue  # shipped and deleted meanwhile
            except OSError as exc:
                raise SourceError(f"cannot read {path}: {exc.strerror}") from exc

    def _iter_payloads(self, run_id: str, paths: list[Path]) -> Iterator[bytes]:
        """The run's own spans in these files, as OTLP requests."""
        for path, record in self._iter_run(run_id, paths):
            payload = expand_record(record, str(path))
            selected = select_run(payload, run_id, default_run=run_of_file(path), name=str(path))
            if selected:
                yield selected

    def _summary(self, run_id: str, paths: list[Path]) -> RunSummary | None:
        fingerprint = tuple((p, self._indexed[p].version) for p in paths)
        known = self._summaries.get(run_id)
        if known is None or known[0] != fingerprint:
            known = (fingerprint, self._read_summary(run_id, paths))
            self._summaries[run_id] = known
        return known[1]

    def _read_summary(self, run_id: str, paths: list[Path]) -> RunSummary | None:
        from spanreplay.recording.otlp.otlp import RecordingBuilder

        builder = RecordingBuilder(run_id)
        try:
            for path in paths:
                for record in self._iter_readable(path):
                    if run_id in (runs_of_record(record) or {run_of_file(path)}):
                        add_record(builder, record, str(path))
            recording = builder.build()
        except RunNotFound:
            return None
        except SourceError as exc:
            self._say(f"run {run_id} is not listed: {exc}")
            return None
        return summarize(_with_start(recording))
