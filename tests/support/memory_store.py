"""An in-memory store with the guarantees of the real one, for tests of the service's own behaviour."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.errors import AmbiguousRun, RunNotFound
from spanreplay.recording.catalog import RunQuery, RunSummary, matches, summarize
from spanreplay.recording.model_drift import DriftQuery, DriftScan, fold_recordings
from spanreplay.recording.otlp import otlp
from spanreplay_collector.receive.auth import DEFAULT_TENANT
from support.runs import make_payload, make_recording, make_run_id


class MemoryStore:
    """Implements `spanreplay_service.runs.RunStore`; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: set[tuple[str, str]] = set()
        self._runs: dict[tuple[str, str], list[bytes]] = {}

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Store payloads, once per token; return their number of spans."""
        spans = 0
        with self._lock:
            is_new = (tenant, token) not in self._tokens
            self._tokens.add((tenant, token))
            for payload in payloads:
                filed = list(otlp.iter_spans(ExportTraceServiceRequest.FromString(payload)))
                spans += len(filed)
                if not is_new:
                    continue
                for run_id in {f.run_id for f in filed}:
                    self._runs.setdefault((tenant, run_id), []).append(payload)
        return spans

    def count_apart(self, tenant: str, run_id: str) -> int:
        """Return 0: this store keeps nothing apart."""
        del tenant, run_id
        return 0

    def pin(self, tenant: str, run_id: str, *, is_pinned: bool = True, reason: str = "") -> str:
        """Return the run's id: this store removes nothing by age."""
        del is_pinned, reason
        return self.resolve_run_id(tenant, run_id)

    def find_related(
        self, tenant: str, *, run_ids: Iterable[str] = (), users: Sequence[str] = (), sessions: Sequence[str] = ()
    ) -> list[str]:
        """Return these runs and those of the users and sessions."""
        every = self.search(tenant, RunQuery(include_replays=True, limit=1000))
        of_people = [s.root.run_id for s in every if s.root.user_id in users or s.root.session_id in sessions]
        return sorted({*run_ids, *of_people})

    def erase(self, tenant: str, run_ids: Sequence[str]) -> list[str]:
        """Remove these runs."""
        with self._lock:
            for run_id in run_ids:
                self._runs.pop((tenant, run_id), None)
        return []

    def is_erased(self, tenant: str, run_id: str) -> bool:
        """Return False: this store forgets what it erased."""
        del tenant, run_id
        return False

    def resolve_run_id(self, tenant: str, prefix: str) -> str:
        """Return the one run that a prefix identifies."""
        with self._lock:
            found = [r for t, r in self._runs if t == tenant and r.startswith(prefix)]
        if not found:
            raise RunNotFound(f"no run {prefix!r} here")
        if len(found) > 1:
            raise AmbiguousRun(f"{prefix!r} names {len(found)} runs")
        return found[0]

    def read_run(self, tenant: str, run_id: str) -> list[bytes]:
        """Return every payload of a run."""
        with self._lock:
            if (tenant, run_id) not in self._runs:
                raise RunNotFound(f"no run {run_id!r} here")
            return list(self._runs[tenant, run_id])

    def scan_drift(self, tenant: str, query: DriftQuery) -> DriftScan:
        """Compare equal requests over the runs, folded in one after another."""
        with self._lock:
            runs = {r: list(p) for (t, r), p in self._runs.items() if t == tenant}
        found = [
            otlp.build_recording(map(ExportTraceServiceRequest.FromString, payloads), run_id)
            for run_id, payloads in runs.items()
        ]
        return fold_recordings(sorted(found, key=lambda r: r.root.start_ns), query)

    def search(self, tenant: str, query: RunQuery) -> list[RunSummary]:
        """Return matching runs, newest first."""
        with self._lock:
            runs = {r: list(p) for (t, r), p in self._runs.items() if t == tenant}
        found = [
            summarize(otlp.build_recording(map(ExportTraceServiceRequest.FromString, payloads), run_id))
            for run_id, payloads in runs.items()
        ]
        found.sort(key=lambda s: s.root.start_ns, reverse=True)
        return [s for s in found if matches(s, query)][: query.limit]


def fill(store: MemoryStore, *numbers: int, tenant: str = DEFAULT_TENANT, **root: Any) -> None:
    """Put complete runs into a store."""
    for n in numbers:
        payload = make_payload(make_recording(make_run_id(n), **root))
        store.load(tenant, [payload], f"{tenant}-{n}")
