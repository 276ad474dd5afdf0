"""Decide which records of a load enter the store: the first final record of a span stays, whatever arrives later.

(1) Within a load, a final record replaces the open one; if there are several final ones, the first is taken.
(2) If the store has a final record of a span, an equal one is harmless and a different one is kept apart.
(3) A run that has ended and whose calls are all stored accepts no further call.
(4) Versions of final records decrease with the time of arrival, so that a merge keeps the first one as well,
    whichever process inserted the other.

A run has one root span, whatever its id; a call is identified by its span id, as in every reader.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from clickhouse_connect.driver.client import Client

from spanreplay.model import attributes as names
from spanreplay_collector.store.rows import SEQ_FOREIGN, SPAN_COLUMNS, VERSION_OPEN, Batch, Row

__all__ = ["APART_COLUMNS", "FINAL_VERSION_MIN", "Sorted", "sort_batch"]

FINAL_VERSION_MIN: Final = 2**60
"""Lower versions are open records, by arrival in µs. Earlier releases: open records 0, final ones the end in ns."""
_VERSION_MAX: Final = 2**64 - 1
IDS_PER_QUERY: Final = 2_000
APART_PER_LOAD_MAX: Final = 1_000
"""Maximum number of records of one load that are kept apart; further ones are only counted."""

OTHER_CONTENT: Final = "other content"
AFTER_THE_END: Final = "after the end"
APART_COLUMNS: Final = (*SPAN_COLUMNS, ("content", "FixedString(16)"), ("reason", "LowCardinality(String)"))

_PLACE: Final = {name: place for place, (name, _) in enumerate(SPAN_COLUMNS)}
_RUN, _SEQ, _TRACE, _SPAN = _PLACE["run_id"], _PLACE["seq"], _PLACE["trace_id"], _PLACE["span_id"]
_VERSION, _KIND, _CONTENT = _PLACE["version"], _PLACE["kind"], _PLACE["resource"]

_STORED: Final = """
SELECT run_id, seq, trace_id, span_id, kind, version, resource, scope_header, skeleton, cuts, parts
FROM spans
WHERE tenant = {tenant:String}
    AND day IN {days:Array(Date)}
    AND run_id IN (SELECT toFixedString(unhex(arrayJoin({runs:Array(String)})), 16))
    AND (span_id IN (SELECT toFixedString(unhex(arrayJoin({ids:Array(String)})), 8)) OR kind = 'run')
"""
_CLOSED: Final = """
SELECT run_id
FROM runs
WHERE tenant = {tenant:String}
    AND day IN {days:Array(Date)}
    AND run_id IN (SELECT toFixedString(unhex(arrayJoin({runs:Array(String)})), 16))
GROUP BY run_id
HAVING max(has_manifest) = 1 AND max(has_holes) = 0
    AND max(expected_calls) >= 0 AND uniqExactIfMerge(calls) >= max(expected_calls)
"""
_BYTES: Final = {"String": "bytes", "FixedString": "bytes"}

Key = tuple[bytes, bytes]
_Content = tuple[Any, ...]


@dataclass
class Sorted:
    """The rows to insert, and in `apart` those that don't join their run; `apart_runs` counts the latter per run."""

    spans: list[Row] = field(default_factory=list)
    boundaries: list[Row] = field(default_factory=list)
    apart: list[Row] = field(default_factory=list)
    apart_runs: dict[str, int] = field(default_factory=dict)

    def without(self, run_ids: frozenset[bytes]) -> Sorted:
        """The same rows, except those of these runs."""
        if not run_ids:
            return self
        spans, boundaries, apart = (
            [row for row in rows if row[_RUN] not in run_ids] for rows in (self.spans, self.boundaries, self.apart)
        )
        apart_runs = {
            run_id: count for run_id, count in self.apart_runs.items() if bytes.fromhex(run_id) not in run_ids
        }
        return Sorted(spans, boundaries, apart, apart_runs)

    @property
    def apart_spans(self) -> int:
        """Number of records kept apart, including those beyond the limit."""
        return sum(self.apart_runs.values())


@dataclass(frozen=True)
class _Known:
    """The stored record of a span."""

    is_final: bool
    version: int
    content: _Content


def sort_batch(client: Client, tenant: str, batch: Batch) -> Sorted:
    """Sort a batch into rows to insert and rows to keep apart, compared with the store; only queries, no inserts."""
    result = Sorted()
    chosen = _choose(batch.spans, result)  # (1)
    known = dict(_read_known(client, tenant, batch.spans)) if chosen else {}
    closed = _read_closed(client, tenant, batch.spans) if _has_new_calls(chosen, known) else frozenset()
    boundary_at = dict(zip(batch.boundary_places, batch.boundaries, strict=True))
    arrived_us = time.time_ns() // 1000
    for key, place in chosen.items():
        row = batch.spans[place]
        is_final = row[_VERSION] != VERSION_OPEN
        stored = known.get(key)
        if stored is not None and stored.is_final:
            if not is_final:
                continue
            if stored.content != _content(row):  # (2)
                _set_apart(result, row, OTHER_CONTENT)
                continue
        if stored is None and row[_SEQ] != SEQ_FOREIGN and row[_RUN] in closed:  # (3)
            _set_apart(result, row, AFTER_THE_END)
            continue
        version = _VERSION_MAX - arrived_us if is_final else arrived_us  # (4)
        result.spans.append(_with_version(row, version))
        if place in boundary_at:
            result.boundaries.append(_with_version(boundary_at[place], version))
    return result


def _choose(rows: Sequence[Row], result: Sorted) -> dict[Key, int]:
    """Map each span to the place of its decisive record: the first final one, else the last open one."""
    chosen: dict[Key, int] = {}
    for place, row in enumerate(rows):
        key = _key(row[_RUN], row[_SEQ], row[_TRACE], row[_SPAN], row[_KIND])
        seen = chosen.get(key)
        if seen is None or rows[seen][_VERSION] == VERSION_OPEN:
            chosen[key] = place
        elif row[_VERSION] != VERSION_OPEN and _content(row) != _content(rows[seen]):
            _set_apart(result, row, OTHER_CONTENT)
    return chosen


def _key(run_id: bytes, seq: int, trace_id: bytes, span_id: bytes, kind: str) -> Key:
    if seq == SEQ_FOREIGN:
        return run_id, trace_id + span_id
    return run_id, b"" if kind == names.KIND_RUN else span_id


def _content(row: Row) -> _Content:
    return tuple(tuple(value) if isinstance(value, (list, tuple)) else value for value in row[_CONTENT:])


def _with_version(row: Row, version: int) -> Row:
    return (*row[:_VERSION], version, *row[_VERSION + 1 :])


def _set_apart(result: Sorted, row: Row, reason: str) -> None:
    run_id = row[_RUN].hex()
    result.apart_runs[run_id] = result.apart_runs.get(run_id, 0) + 1
    if len(result.apart) < APART_PER_LOAD_MAX:
        digest = blake2b(repr(_content(row)).encode(), digest_size=16).digest()
        result.apart.append((*row, digest, reason))


def _read_known(client: Client, tenant: str, rows: Sequence[Row]) -> Iterator[tuple[Key, _Known]]:
    """Yield the stored records of the spans of these rows; the best record of a span comes last."""
    found: list[tuple[Key, _Known]] = []
    for chunk in _chunks(rows):
        parameters = {"tenant": tenant, **_name_runs(chunk), "ids": sorted({row[_SPAN].hex() for row in chunk})}
        for stored in client.query(_STORED, parameters=parameters, query_formats=_BYTES).result_rows:
            run_id, seq, trace_id, span_id, kind, version, *content = stored
            key = _key(bytes(run_id), seq, bytes(trace_id), bytes(span_id), _text(kind))
            found.append((key, _Known(version >= FINAL_VERSION_MIN, version, _content((*[None] * _CONTENT, *content)))))
    found.sort(key=lambda each: each[1].version)
    yield from found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _read_closed(client: Client, tenant: str, rows: Sequence[Row]) -> frozenset[bytes]:
    """The runs of these rows that have ended and have all their calls stored."""
    parameters: Mapping[str, Any] = {"tenant": tenant, **_name_runs(rows)}
    found = client.query(_CLOSED, parameters=dict(parameters), query_formats=_BYTES).result_rows
    return frozenset(bytes(row[0]) for row in found)


def _has_new_calls(chosen: Iterable[Key], known: Mapping[Key, _Known]) -> bool:
    """Whether there is a new record for a run that the store already has."""
    runs = {run_id for run_id, _ in known}
    return any(key[0] in runs and key not in known for key in chosen)


def _name_runs(rows: Iterable[Row]) -> dict[str, Any]:
    named = {row[_RUN]: row[_PLACE["day"]] for row in rows}
    return {"runs": sorted(run_id.hex() for run_id in named), "days": sorted(set(named.values()))}


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), IDS_PER_QUERY):
        yield rows[start : start + IDS_PER_QUERY]
