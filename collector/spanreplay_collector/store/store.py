"""The store: spans in, runs out. ClickHouse over HTTP or embedded chDB, the same code for both."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from clickhouse_connect.driver.client import Client

from spanreplay.model.errors import ConfigError, RunNotFound, StoreError
from spanreplay.recording.catalog import RunQuery, RunSummary
from spanreplay.recording.model_drift import DriftQuery, DriftScan
from spanreplay_collector.store import drift, retention, search
from spanreplay_collector.store import migrate as migrations
from spanreplay_collector.store.address import join
from spanreplay_collector.store.engine import Engine, parse_address
from spanreplay_collector.store.firsts import APART_COLUMNS, Sorted, sort_batch
from spanreplay_collector.store.rows import (
    BLOB_COLUMNS,
    BOUNDARY_COLUMNS,
    SPAN_COLUMNS,
    Batch,
    Columns,
    Row,
    build_batches,
    day_of_run,
    parse_run_id,
)

__all__ = ["Store"]

logger = logging.getLogger(__name__)

KNOWN_BLOBS_MAX: Final = 100_000
"""Stored blobs remembered, so that a history resent in the next load is not written again."""
KNOWN_BLOBS_S_MAX: Final = 86_400.0
"""They are remembered for less time than retention keeps a run after its last span, which another process may run."""
INSERT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of blobs in one INSERT; a larger load is written in several."""
TENANT_CHARS_MAX: Final = 128
APART_RUNS_SAID_MAX: Final = 10
"""Maximum number of runs named in the log per load because their records were kept apart."""
ANY_DAY_COUNT: Final = 0
"""No limit on the partitions of an insert: a backlog may span months and must not be refused."""

_SPANS: Final = """
SELECT seq, start_ns, trace_id, span_id, version, resource, scope_header, skeleton, cuts, parts
FROM spans
WHERE tenant = {tenant:String} AND run_id = toFixedString(unhex({run_id:String}), 16) AND day = {day:Date}
"""
_BLOBS: Final = """
SELECT hash, body
FROM blobs
WHERE tenant = {tenant:String} AND run_id = toFixedString(unhex({run_id:String}), 16) AND day = {day:Date}
"""
_APART: Final = """
SELECT uniqExact(span_id, content)
FROM spans_apart
WHERE tenant = {tenant:String} AND run_id = toFixedString(unhex({run_id:String}), 16) AND day = {day:Date}
"""
_AS_BYTES: Final = {"String": "bytes", "FixedString": "bytes"}


class Store:
    """All runs of all tenants. Thread-safe; every method that takes a tenant sees only that tenant's runs.

    Raises: StoreError, also while a server is unavailable; StoreLocked; NewerSchema if a newer release
    migrated the tables.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known_blobs: OrderedDict[tuple[str, bytes, bytes], float] = OrderedDict()
        self._known_lock = threading.Lock()
        # A load reads the stored records before it inserts: no other load may run in between.
        self._load_lock = threading.Lock()
        self.apart_spans = 0
        """Number of records that this object kept apart; see `firsts`."""
        self.erased_spans = 0
        """Number of records that this object dropped because their run was erased."""

    @classmethod
    def open(cls, url: str) -> Store:
        """Connect; `migrate` creates the tables.

        `chdb:///absolute/directory[?database=name]` is embedded: one process at a time, and one directory
        per process. `http[s]://user:password@host:port/database` is a server.
        """
        engine = Engine(parse_address(url))
        try:
            migrations.check_schema(engine)
        except BaseException:
            engine.close()
            raise
        return cls(engine)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self._engine.address)!r})"

    def migrate(self, cluster: str = "") -> list[str]:
        """Bring the schema up to date; return the names of the migrations applied by this call. Idempotent.

        `cluster` names a cluster of `remote_servers` whose servers all get the tables: see `cluster`.
        """
        return [f"{m.number:04d}_{m.name}" for m in migrations.migrate(self._engine, cluster=cluster)]

    def list_pending(self) -> list[str]:
        """Migrations that this version has and the store lacks. Raises: StoreError if it has no tables at all."""
        return [f"{m.number:04d}_{m.name}" for m in migrations.list_pending(self._engine)]

    def ping(self) -> None:
        """Return if the store answers. Raises: StoreError."""
        with self._engine.client(is_server_level=True) as client:
            client.query("SELECT 1")

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Store the spans of serialised ExportTraceServiceRequests; return how many of them the store has now.

        A large load is stored in parts to bound memory; if it is interrupted, the first parts remain.
        Records of an erased run are dropped, and not counted in the result.
        The first final record of a span stays. A later one with different content is kept apart, reported in
        the log and not counted in the result. An equal one changes nothing, whatever its token. Loading again
        under the same token changes nothing, even after a crash at any point: the token must name the content
        (a log segment), not the attempt.
        Raises: DamagedRecording if a payload is not an OTLP trace request; in that case nothing is stored.
        """
        spans = 0
        for number, batch in enumerate(build_batches(_checked_tenant(tenant), payloads)):
            if not token:
                raise ConfigError("a load needs a token", hint="name the content that is loaded, e.g. its log segment")
            # The engine compares tokens per table: without the tenant, one tenant's load could suppress another's.
            spans += self._load_batch(
                tenant, batch, f"{tenant}/{token}" if number == 0 else f"{tenant}/{token}+{number}"
            )
        return spans

    def _load_batch(self, tenant: str, batch: Batch, token: str) -> int:
        stored: list[tuple[str, bytes, bytes]] = []
        rows: list[Row] = []
        now_s = time.monotonic()
        for run_id, bodies in batch.blobs.items():
            day = day_of_run(run_id)
            for part, body in bodies.items():
                if self._known_blobs.get((tenant, run_id, part), 0.0) < now_s:
                    rows.append((tenant, run_id, day, part, body))
                    stored.append((tenant, run_id, part))
        with self._load_lock, self._engine.client() as client:
            erased = retention.find_erased(client, tenant, batch.blobs)
            rows = [row for row in rows if row[1] not in erased]
            firsts = sort_batch(client, tenant, batch).without(erased)
            # Blobs first: a reader must never see a span whose parts are missing. Boundaries last:
            # they make the run findable.
            for number, chunk in enumerate(_chunks(rows)):
                _insert(client, "blobs", BLOB_COLUMNS, chunk, f"{token}/{number}")
            for table, columns, inserted in (
                ("spans_apart", APART_COLUMNS, firsts.apart),
                ("spans", SPAN_COLUMNS, firsts.spans),
                ("boundaries", BOUNDARY_COLUMNS, firsts.boundaries),
            ):
                if inserted:
                    _insert(client, table, columns, inserted, token)
        self._remember(stored, erased)
        self._say_apart(tenant, firsts)
        dropped = sum(row[1] in erased for row in batch.spans) if erased else 0
        if dropped:
            self.erased_spans += dropped
            logger.info("%d records of tenant %r are not stored: their runs were erased", dropped, tenant)
        return len(batch.spans) - firsts.apart_spans - dropped

    def count_apart(self, tenant: str, run_id: str) -> int:
        """Number of a run's records that were kept apart because they arrived later; they are not part of the run."""
        named = parse_run_id(run_id)
        if named is None:
            return 0
        parameters = {"tenant": _checked_tenant(tenant), "run_id": named.hex(), "day": day_of_run(named)}
        with self._engine.client() as client:
            return int(client.query(_APART, parameters=parameters).result_rows[0][0])

    def read_run(self, tenant: str, run_id: str) -> list[bytes]:
        """Read the final record of every span of a run as one ExportTraceServiceRequest each, in start order.

        Byte-exact, with resource and scope. The concatenated payloads are one valid request.
        Raises: RunNotFound, DamagedRecording if a part is missing.
        """
        named = parse_run_id(run_id)
        if named is None:
            raise RunNotFound(f"{run_id!r} is not a run id", hint="a run id has 32 hexadecimal digits")
        parameters = {"tenant": _checked_tenant(tenant), "run_id": named.hex(), "day": day_of_run(named)}
        with self._engine.client() as client:
            # Spans before blobs, the reverse of writing: all parts of the spans read are present.
            spans = client.query(_SPANS, parameters=parameters, query_formats=_AS_BYTES).result_rows
            if not spans:
                raise RunNotFound(f"no run {named.hex()} in the store", hint=search.LIST_HINT)
            found = client.query(_BLOBS, parameters=parameters, query_formats=_AS_BYTES).result_rows
            blobs = {bytes(part): bytes(body) for part, body in found}
        return [_payload(row[5:], blobs) for row in _final_records(spans)]

    def resolve_run_id(self, tenant: str, prefix: str) -> str:
        """Find the one run whose id starts with a prefix of at least 6 digits. Raises: RunNotFound, AmbiguousRun."""
        with self._engine.client() as client:
            return search.find_run_id(client, _checked_tenant(tenant), prefix)

    def search(self, tenant: str, query: RunQuery) -> list[RunSummary]:
        """Find matching runs that have a boundary span, newest first, up to `query.limit` (at most 1000)."""
        with self._engine.client() as client:
            return search.find_runs(client, _checked_tenant(tenant), query)

    def scan_drift(self, tenant: str, query: DriftQuery) -> DriftScan:
        """Find model requests that have more than one serving stack or output."""
        with self._engine.client() as client:
            return drift.scan_drift(client, _checked_tenant(tenant), query)

    def pin(self, tenant: str, run_id: str, *, is_pinned: bool = True, reason: str = "") -> str:
        """Keep a run whatever its age, or no longer; return its whole id. Raises: RunNotFound, AmbiguousRun."""
        found = self.resolve_run_id(tenant, run_id)
        with self._engine.client() as client:
            retention.pin(client, tenant, [bytes.fromhex(found)], is_pinned=is_pinned, reason=reason)
        return found

    def find_related(
        self, tenant: str, *, run_ids: Iterable[str] = (), users: Sequence[str] = (), sessions: Sequence[str] = ()
    ) -> list[str]:
        """Find these runs and those of the users and sessions, with their replays and child processes' runs."""
        named = [bytes.fromhex(run_id) for run_id in run_ids]
        with self._engine.client() as client:
            found = retention.find_related(
                client, _checked_tenant(tenant), run_ids=named, users=users, sessions=sessions
            )
        return [run_id.hex() for run_id in found]

    def erase(self, tenant: str, run_ids: Sequence[str]) -> list[str]:
        """Remove these runs for good, pinned or not; return the ids of their traces.

        Records of theirs that arrive later are not stored.
        """
        with self._load_lock, self._engine.client() as client:
            traces = retention.erase(client, _checked_tenant(tenant), [bytes.fromhex(run_id) for run_id in run_ids])
        self._forget_blobs()
        return sorted(trace.hex() for trace in traces)

    def is_erased(self, tenant: str, run_id: str) -> bool:
        """Whether a run was erased."""
        with self._engine.client() as client:
            return bool(retention.find_erased(client, _checked_tenant(tenant), [bytes.fromhex(run_id)]))

    def remove_older(self, before_ns: int, *, keep_failures: bool = True) -> retention.Retained:
        """Remove the runs of all tenants whose last span ended before a time, unless pinned; see `retention`."""
        with self._engine.client() as client:
            retention.erase_again(client)
            removed = retention.remove_older(client, before_ns, keep_failures=keep_failures)
        self._forget_blobs()
        return removed

    def close(self) -> None:
        """Release every connection; idempotent."""
        self._engine.close()

    def _say_apart(self, tenant: str, firsts: Sorted) -> None:
        self.apart_spans += firsts.apart_spans
        for run_id, spans in list(firsts.apart_runs.items())[:APART_RUNS_SAID_MAX]:
            logger.warning(
                "run %s of tenant %r: %d records came again with other content, or after the run had ended; "
                "the run stays as it was, they are kept in the table spans_apart",
                run_id,
                tenant,
                spans,
            )

    def _forget_blobs(self) -> None:
        with self._known_lock:
            self._known_blobs.clear()

    def _remember(self, stored: list[tuple[str, bytes, bytes]], erased: frozenset[bytes]) -> None:
        until_s = time.monotonic() + KNOWN_BLOBS_S_MAX
        with self._known_lock:
            self._known_blobs.update(dict.fromkeys((part for part in stored if part[1] not in erased), until_s))
            while len(self._known_blobs) > KNOWN_BLOBS_MAX:
                self._known_blobs.popitem(last=False)


def _checked_tenant(tenant: str) -> str:
    if not tenant or len(tenant) > TENANT_CHARS_MAX:
        raise StoreError(f"a tenant's name has 1 to {TENANT_CHARS_MAX} characters, not {len(tenant)}")
    return tenant


def _chunks(rows: list[Row]) -> list[list[Row]]:
    """Split the blob rows into inserts of bounded size."""
    chunks: list[list[Row]] = []
    room = 0
    for row in rows:
        size = len(row[-1])
        if size > room or not chunks:
            chunks.append([])
            room = INSERT_BYTES_MAX
        chunks[-1].append(row)
        room -= size
    return chunks


def _insert(client: Client, table: str, columns: Columns, rows: list[Row], token: str) -> None:
    settings: Mapping[str, Any] = {
        "insert_deduplication_token": token,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
        "max_partitions_per_insert_block": ANY_DAY_COUNT,
        "async_insert": 0,
    }
    client.insert(
        table,
        rows,
        column_names=[name for name, _ in columns],
        column_type_names=[kind for _, kind in columns],
        settings=dict(settings),
    )


def _final_records(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The newest record of each span, in start order: the result of FINAL without its merge."""
    newest: dict[tuple[bytes, bytes], Sequence[Any]] = {}
    for row in rows:
        _, _, trace_id, span_id, version = row[:5]
        seen = newest.get((trace_id, span_id))
        if seen is None or seen[4] < version:
            newest[trace_id, span_id] = row
    return sorted(newest.values(), key=lambda row: tuple(row[:4]))


def _payload(row: Sequence[Any], blobs: Mapping[bytes, bytes]) -> bytes:
    """Assemble one span as the bytes of ExportTraceServiceRequest{ResourceSpans{ScopeSpans{Span}}}."""
    resource, scope_header, skeleton, cuts, parts = row
    span = join(skeleton, cuts, parts, blobs)
    scope_spans = join(b"", (0,), (scope_header,), blobs) + _field(2, span)
    resource_spans = join(b"", (0,), (resource,), blobs) + _field(2, scope_spans)
    return _field(1, resource_spans)


def _field(number: int, body: bytes) -> bytes:
    """Encode a length-delimited protobuf field."""
    size = len(body)
    head = bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + body
