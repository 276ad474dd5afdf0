"""The gRPC service `Runs`: finds, exports and imports recorded runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import Recording, RootRecord
from spanreplay.model.config import GRPC_MESSAGE_BYTES_MAX
from spanreplay.model.errors import ConfigError, DamagedRecording, ForeignFile, RunNotFound, SourceError, StoreError
from spanreplay.recording import bundle
from spanreplay.recording.catalog import Imported, RunQuery, RunSummary, summarize
from spanreplay.recording.model_drift import DriftQuery, DriftScan
from spanreplay.recording.otlp import otlp
from spanreplay.recording.remote import wire
from spanreplay.v1 import replay_pb2 as pb
from spanreplay.v1 import replay_pb2_grpc
from spanreplay_service.guard import abort, check_may_erase, current_tenant
from spanreplay_service.limits import (
    ERASED_MAX,
    EXPORT_PIECE_BYTES,
    FRESHEN_MISSING_S_MAX,
    FRESHEN_S_MAX,
    IMPORT_BYTES_MAX,
    REASON_CHARS_MAX,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Freshen = Callable[[float], Awaitable[None]]
"""Waits, for at most the given number of seconds, until acknowledged spans are stored. Raises: TimeoutError."""

RUN_ID_CHARS: Final = 32
PREFIX_CHARS_MIN: Final = 6


class RunStore(Protocol):
    """The interface that the service needs of a store; its methods block and must be thread-safe."""

    def search(self, tenant: str, query: RunQuery) -> list[RunSummary]:
        """Matching runs, newest first."""
        ...

    def resolve_run_id(self, tenant: str, prefix: str) -> str:
        """Find the one run whose id starts with a prefix. Raises: RunNotFound, AmbiguousRun."""
        ...

    def scan_drift(self, tenant: str, query: DriftQuery) -> DriftScan:
        """Find model requests that have more than one serving stack or output."""
        ...

    def read_run(self, tenant: str, run_id: str) -> list[bytes]:
        """Every span of a run, as serialised export requests. Raises: RunNotFound."""
        ...

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Store payloads, once per token; return how many of their spans the store now has unchanged."""
        ...

    def count_apart(self, tenant: str, run_id: str) -> int:
        """Number of a run's records kept apart because they arrived later with different content."""
        ...

    def pin(self, tenant: str, run_id: str, *, is_pinned: bool = True, reason: str = "") -> str:
        """Keep a run whatever its age, or no longer; return its whole id. Raises: RunNotFound, AmbiguousRun."""
        ...

    def find_related(
        self, tenant: str, *, run_ids: Iterable[str] = (), users: Sequence[str] = (), sessions: Sequence[str] = ()
    ) -> list[str]:
        """Find these runs and those of the users and sessions, with their replays and child processes' runs."""
        ...

    def erase(self, tenant: str, run_ids: Sequence[str]) -> list[str]:
        """Remove these runs for good; later records of theirs are not stored. Return the ids of their traces."""
        ...

    def is_erased(self, tenant: str, run_id: str) -> bool:
        """Whether a run was erased."""
        ...


class TraceSink(Protocol):
    """What shows the traces of runs; its method blocks and is called from a thread."""

    def forget(self, trace_ids: Sequence[str]) -> bool:
        """Remove these traces; return whether none is shown any more."""
        ...


def normalize_run_id(text: str) -> str:
    """Convert a run id or prefix to its stored form: lower case, no dashes. Raises: RunNotFound, ConfigError."""
    run_id = text.strip().lower().replace("-", "")
    if len(run_id) > RUN_ID_CHARS or any(c not in "0123456789abcdef" for c in run_id):
        raise RunNotFound(f"no run {text[:80]!r}", hint="a run id is hexadecimal; see `spanreplay ls`")
    if len(run_id) < PREFIX_CHARS_MIN:
        raise ConfigError(f"a run id needs at least {PREFIX_CHARS_MIN} characters, got {text!r}")
    return run_id


def parse_payloads(payloads: Sequence[bytes]) -> list[ExportTraceServiceRequest]:
    """Parse serialised export requests. Raises: DamagedRecording."""
    try:
        return [ExportTraceServiceRequest.FromString(p) for p in payloads]
    except DecodeError as exc:
        raise DamagedRecording("the recording's spans cannot be decoded") from exc


class RunAccess:
    """Asynchronous access to the runs of a store: each method runs in the given thread pool."""

    def __init__(self, store: RunStore, pool: Executor, freshen: Freshen | None = None) -> None:
        self._store = store
        self._pool = pool
        self._freshen = freshen

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run blocking work in the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    async def _read_own_writes(self, timeout_s: float = FRESHEN_S_MAX) -> bool:
        """Wait for the store to catch up; False if it lacks acknowledged spans after `timeout_s`."""
        if self._freshen is None:
            return True
        try:
            await self._freshen(timeout_s)
        except TimeoutError:
            # The store lags behind or is unavailable: older data is better than no answer.
            logger.info("reading without the newest spans: the store has not loaded them yet")
            return False
        return True

    async def _find(self, work: Callable[[str, str], T], tenant: str, run_id: str) -> T:
        """Run `work` on a run. Raises: RunNotFound only if the store has all acknowledged spans, else StoreError."""
        is_fresh = await self._read_own_writes()
        try:
            return await self.in_thread(work, tenant, run_id)
        except RunNotFound:
            if is_fresh:
                raise
        is_fresh = await self._read_own_writes(FRESHEN_MISSING_S_MAX)
        try:
            return await self.in_thread(work, tenant, run_id)
        except RunNotFound as exc:
            if is_fresh:
                raise
            message = f"{exc}; the store has not loaded the newest spans yet, so the run may have arrived"
            raise StoreError(message, hint="try again in some seconds") from exc

    async def search(self, tenant: str, query: RunQuery) -> list[RunSummary]:
        """Find matching runs of a tenant."""
        await self._read_own_writes()
        return await self.in_thread(self._store.search, tenant, query)

    async def scan_drift(self, tenant: str, query: DriftQuery) -> DriftScan:
        """Find model requests with differing answers in a tenant's runs."""
        await self._read_own_writes()
        return await self.in_thread(self._store.scan_drift, tenant, query)

    async def find_root(self, tenant: str, run_id: str) -> RootRecord:
        """Load the root record of a tenant's run, without its calls."""
        return await self._find(self._find_root, tenant, run_id)

    async def load(self, tenant: str, run_id: str) -> Recording:
        """Load a tenant's run with its calls."""
        return await self._find(self._load, tenant, run_id)

    async def export(self, tenant: str, run_id: str) -> bytes:
        """Export a tenant's run as a `.replay` file."""
        return await self._find(self._export, tenant, run_id)

    async def import_bundle(self, tenant: str, content: bytes) -> Imported:
        """Store a `.replay` file as a tenant's run."""
        return await self.in_thread(self._import, tenant, content)

    async def pin(self, tenant: str, run_id: str, *, is_pinned: bool, reason: str) -> str:
        """Keep a tenant's run whatever its age, or no longer; return its whole id."""
        return await self._find(
            lambda owner, text: self._store.pin(owner, normalize_run_id(text), is_pinned=is_pinned, reason=reason),
            tenant,
            run_id,
        )

    async def find_related(self, tenant: str, request: pb.EraseRequest) -> list[str]:
        """Find all runs that a request to erase concerns. Raises: RunNotFound if it names one that is not there."""
        named = [await self._find(self._resolve, tenant, run_id) for run_id in request.run_ids]
        await self._read_own_writes()
        users, sessions = list(request.user_ids), list(request.session_ids)
        return await self.in_thread(
            lambda: self._store.find_related(tenant, run_ids=named, users=users, sessions=sessions)
        )

    async def erase(self, tenant: str, run_ids: Sequence[str]) -> list[str]:
        """Remove a tenant's runs for good; return the ids of their traces."""
        return await self.in_thread(self._store.erase, tenant, run_ids)

    def _resolve(self, tenant: str, text: str) -> str:
        return self._store.resolve_run_id(tenant, normalize_run_id(text))

    def _read(self, tenant: str, text: str) -> tuple[str, list[bytes]]:
        run_id = normalize_run_id(text)
        if len(run_id) < RUN_ID_CHARS:  # a full id needs no extra query: reading raises if it doesn't exist
            run_id = self._store.resolve_run_id(tenant, run_id)
        return run_id, self._store.read_run(tenant, run_id)

    def _find_root(self, tenant: str, text: str) -> RootRecord:
        run_id = self._store.resolve_run_id(tenant, normalize_run_id(text))
        found = self._store.search(tenant, RunQuery(run_id_prefix=run_id, include_replays=True, limit=1))
        return found[0].root if found else RootRecord(run_id)

    def _load(self, tenant: str, text: str) -> Recording:
        run_id, payloads = self._read(tenant, text)
        found = otlp.build_recording(parse_payloads(payloads), run_id)
        apart = self._store.count_apart(tenant, run_id)
        return replace(found, root=replace(found.root, apart=apart)) if apart else found

    def _export(self, tenant: str, text: str) -> bytes:
        return bundle.pack(*self._read(tenant, text))

    def _import(self, tenant: str, content: bytes) -> Imported:
        found = bundle.read_bundle(content, name="the file")
        requests = parse_payloads(found.payloads)
        # (1) Read it as a replay would before it is stored, so that every stored run can be served.
        otlp.build_recording(requests, found.run_id)
        # (2) One file holds one run; a span of another run would change that run's recording.
        spans = [span for request in requests for span in otlp.iter_spans(request)]
        if any(span.run_id not in ("", found.run_id) for span in spans):
            raise ForeignFile(f"the file names run {found.run_id} and holds spans of another run")
        if self._store.is_erased(tenant, found.run_id):
            raise SourceError(
                f"run {found.run_id} was erased here, so it is not stored again",
                hint="replay the file itself: spanreplay replay FILE -- CMD",
            )
        # (3) Equal content gets an equal token, so the store takes it once; an existing run stays unchanged.
        apart = len(spans) - self._store.load(tenant, found.payloads, f"import-{found.sha256}")
        if apart:
            raise SourceError(
                f"run {found.run_id} is stored already, and {apart} of the file's {len(spans)} records differ from it",
                hint="the stored run stays as it is; replay the file itself if you trust it more",
            )
        return Imported(found.run_id, len(spans))


class RunsServicer(replay_pb2_grpc.RunsServicer):
    """Search, Get, Export, Import, Drift, Pin, Erase."""

    def __init__(self, runs: RunAccess, phoenix_url: Callable[[], str], sink: TraceSink | None = None) -> None:
        self._runs = runs
        self._sink = sink
        self._phoenix_url = phoenix_url

    async def Search(self, request: pb.SearchRequest, context: Any) -> pb.SearchResponse:  # noqa: N802 - gRPC's name
        """Find matching runs, newest first."""
        found = await self._runs.search(current_tenant(), wire.query_from_message(request))
        return pb.SearchResponse(runs=[wire.summary_to_message(s) for s in found])

    async def Get(self, request: pb.GetRequest, context: Any) -> pb.GetResponse:  # noqa: N802 - gRPC's name
        """Return one whole run in one message; a run beyond the message limit must be streamed."""
        recording = await self._runs.load(current_tenant(), request.run_id)
        response = await self._runs.in_thread(_build_get, recording, self._phoenix_url())
        if response.ByteSize() > GRPC_MESSAGE_BYTES_MAX:
            await abort(
                context,
                status="RESOURCE_EXHAUSTED",
                reason=wire.TOO_LARGE,
                message=f"run {recording.run_id} is larger than a message of {GRPC_MESSAGE_BYTES_MAX} bytes",
                hint="ReplayRun streams it",
            )
        return response

    async def Drift(self, request: pb.DriftRequest, context: Any) -> pb.DriftResponse:  # noqa: N802 - gRPC's name
        """Find model requests that were answered by more than one serving stack or have more than one output."""
        found = await self._runs.scan_drift(current_tenant(), wire.drift_query_from_message(request))
        return wire.drift_to_message(found)

    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.PinResponse:  # noqa: N802 - gRPC's name
        """Keep a run whatever its age, or no longer."""
        reason = request.reason[:REASON_CHARS_MAX]
        found = await self._runs.pin(current_tenant(), request.run_id, is_pinned=not request.unpin, reason=reason)
        return pb.PinResponse(run_id=found)

    async def Erase(self, request: pb.EraseRequest, context: Any) -> pb.EraseResponse:  # noqa: N802 - gRPC's name
        """Remove runs for good, or only find them."""
        tenant = current_tenant()
        check_may_erase()
        named = (request.run_ids, request.user_ids, request.session_ids)
        if not any(named) or any(len(each) > ERASED_MAX for each in named) or not all(map(all, named)):
            raise ConfigError(f"name 1 to {ERASED_MAX} runs, users or sessions, none of them empty")
        found = await self._runs.find_related(tenant, request)
        is_shown = bool(self._phoenix_url())
        if found and not request.is_trial:
            traces = await self._runs.erase(tenant, found)
            logger.info("erased %d runs of tenant %r", len(found), tenant)
            if self._sink is not None:
                is_shown = not await self._runs.in_thread(self._sink.forget, traces)
        return pb.EraseResponse(run_ids=found, is_shown=is_shown)

    async def Export(self, request: pb.ExportRequest, context: Any) -> AsyncIterator[pb.ExportResponse]:  # noqa: N802 - gRPC's name
        """Stream a run's `.replay` file in pieces."""
        content = await self._runs.export(current_tenant(), request.run_id)
        for piece in wire.split_bytes(content, EXPORT_PIECE_BYTES):
            yield pb.ExportResponse(data=piece)

    async def Import(  # noqa: N802 - gRPC's name
        self, request_iterator: Any, context: Any
    ) -> pb.ImportResponse:
        """Import a `.replay` file streamed in pieces."""
        content = bytearray()
        async for piece in request_iterator:
            content += piece.data
            if len(content) > IMPORT_BYTES_MAX:
                await abort(
                    context,
                    status="RESOURCE_EXHAUSTED",
                    reason=wire.TOO_LARGE,
                    message=f"the file is larger than {IMPORT_BYTES_MAX} bytes",
                )
        imported = await self._runs.import_bundle(current_tenant(), bytes(content))
        return pb.ImportResponse(run_id=imported.run_id, spans=imported.spans)


def _build_get(recording: Recording, phoenix_url: str) -> pb.GetResponse:
    return pb.GetResponse(
        summary=wire.summary_to_message(summarize(recording)),
        calls=[wire.call_to_message(call) for call in recording.calls],
        phoenix_url=phoenix_url,
    )
