"""Convert records to wire messages and back, and errors to wire reasons; pure functions.

The single place that knows both shapes. Imported lazily, like `otlp.py`, because it needs protobuf.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from spanreplay.model import errors
from spanreplay.model.call import CallRecord, Recording, RootRecord
from spanreplay.model.config import CALL_BATCH_BYTES_MAX, CALL_BATCH_ITEMS
from spanreplay.recording.catalog import RUNS_MAX, RunQuery, RunSummary
from spanreplay.recording.model_drift import Answer, DriftQuery, DriftScan, StackAnswers
from spanreplay.v1 import replay_pb2 as pb

ERROR_DOMAIN: Final = "spanreplay.dev"
"""Domain of the google.rpc.ErrorInfo that every error of the service carries."""
STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
"""Trailing metadata that carries a serialised google.rpc.Status."""


@dataclass(frozen=True)
class Reason:
    """One row of the error table: the error as raised, as sent, and as raised again by the client."""

    reason: str
    status: str
    raised: type[errors.SpanreplayError]
    mapped: type[errors.SpanreplayError]


REASONS: Final[tuple[Reason, ...]] = (
    # The first row whose `raised` is a base of the error applies: subclasses come before their base.
    Reason("RUN_NOT_FOUND", "NOT_FOUND", errors.RunNotFound, errors.RunNotFound),
    Reason("AMBIGUOUS_RUN", "FAILED_PRECONDITION", errors.AmbiguousRun, errors.AmbiguousRun),
    Reason("FOREIGN_FILE", "INVALID_ARGUMENT", errors.ForeignFile, errors.ForeignFile),
    Reason("DAMAGED_RECORDING", "DATA_LOSS", errors.DamagedRecording, errors.DamagedRecording),
    Reason("NEWER_SCHEMA", "FAILED_PRECONDITION", errors.NewerSchema, errors.NewerSchema),
    Reason("SOURCE_ERROR", "FAILED_PRECONDITION", errors.SourceError, errors.SourceError),
    Reason("BAD_REQUEST", "INVALID_ARGUMENT", errors.ConfigError, errors.ConfigError),
    Reason("ACCESS_DENIED", "UNAUTHENTICATED", errors.AccessDenied, errors.AccessDenied),
    # To a client the store is part of the service. Not UNAVAILABLE, because clients retry that.
    Reason("STORE_ERROR", "INTERNAL", errors.StoreError, errors.ServiceError),
    Reason("SERVICE_ERROR", "INTERNAL", errors.ServiceError, errors.ServiceError),
    Reason("INTERNAL", "INTERNAL", errors.SpanreplayError, errors.ServiceError),
)
# Reasons that the service states without an error class of their own.
TOO_LARGE: Final = "TOO_LARGE"
OVERLOADED: Final = "OVERLOADED"
TOO_SLOW: Final = "TOO_SLOW"

_CLASS_BY_REASON: Final[Mapping[str, type[errors.SpanreplayError]]] = {
    **{row.reason: row.mapped for row in REASONS},
    TOO_LARGE: errors.ServiceError,
    OVERLOADED: errors.ServiceError,
    TOO_SLOW: errors.ServiceError,
}


def find_reason(error: errors.SpanreplayError) -> Reason:
    """The row of the error table for an error; every error of the tree has one."""
    return next(row for row in REASONS if isinstance(error, row.raised))


def build_error(reason: str, message: str, hint: str = "") -> errors.SpanreplayError:
    """The error for a reason; an unknown reason, from a newer service, gives a ServiceError."""
    return _CLASS_BY_REASON.get(reason, errors.ServiceError)(message, hint=hint)


def list_reasons() -> tuple[str, ...]:
    """Every reason that the service may state."""
    return tuple(_CLASS_BY_REASON)


_JSON_FIELDS = ("meta", "redactions", "env", "manifest")
_CALL_FIELDS = tuple(f.name for f in fields(CallRecord) if f.name not in ("run_id", "number", *_JSON_FIELDS))
_ROOT_FIELDS = tuple(f.name for f in fields(RootRecord) if f.name not in _JSON_FIELDS)
_QUERY_FIELDS = tuple(f.name for f in fields(RunQuery))


def _dump(value: Mapping[str, Any]) -> str:
    # ASCII only: a lone surrogate cannot travel in a protobuf string, its JSON escape can.
    return json.dumps(value, separators=(",", ":")) if value else ""


def _load(text: str, where: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise errors.DamagedRecording(f"{where} is not JSON") from exc
    if not isinstance(value, dict):
        raise errors.DamagedRecording(f"{where} is not a JSON object")
    return value


def call_to_message(call: CallRecord) -> pb.Call:
    """A call as sent; its run_id is stated once, by the run. Raises: DamagedRecording."""
    try:
        return pb.Call(
            meta=_dump(call.meta),
            redactions=_dump(call.redactions),
            **{name: getattr(call, name) for name in _CALL_FIELDS},
        )
    except (ValueError, TypeError) as exc:  # a number outside its field, a lone surrogate
        raise errors.DamagedRecording(
            f"call {call.number or call.seq} of run {call.run_id} cannot be sent: {exc}"
        ) from exc


def call_from_message(message: pb.Call, run_id: str) -> CallRecord:
    """A received call. Raises: DamagedRecording."""
    return CallRecord(
        run_id=run_id,
        meta=_load(message.meta, "meta"),
        redactions=_load(message.redactions, "redactions"),
        clocks=tuple(message.clocks),
        **{name: getattr(message, name) for name in _CALL_FIELDS if name != "clocks"},
    )


def root_to_message(root: RootRecord) -> pb.Run:
    """A root record as sent. Raises: DamagedRecording."""
    try:
        return pb.Run(
            env=_dump(root.env),
            manifest=_dump(root.manifest),
            **{name: getattr(root, name) for name in _ROOT_FIELDS},
        )
    except (ValueError, TypeError) as exc:
        raise errors.DamagedRecording(f"root record of run {root.run_id} cannot be sent: {exc}") from exc


def root_from_message(message: pb.Run) -> RootRecord:
    """A received root record. Raises: DamagedRecording."""
    return RootRecord(
        env=_load(message.env, "env"),
        manifest=_load(message.manifest, "manifest"),
        **{name: getattr(message, name) for name in _ROOT_FIELDS},
    )


def summary_to_message(summary: RunSummary) -> pb.RunSummary:
    """A run's summary as sent. Raises: DamagedRecording."""
    return pb.RunSummary(
        run=root_to_message(summary.root),
        calls=summary.calls,
        llm_calls=summary.llm_calls,
        errors=summary.errors,
        tokens_in=summary.tokens_in,
        tokens_out=summary.tokens_out,
        status=summary.status,
        tools=summary.tools,
    )


def summary_from_message(message: pb.RunSummary) -> RunSummary:
    """A received summary. Raises: DamagedRecording."""
    return RunSummary(
        root=root_from_message(message.run),
        calls=message.calls,
        llm_calls=message.llm_calls,
        errors=message.errors,
        tokens_in=message.tokens_in,
        tokens_out=message.tokens_out,
        status=message.status,
        tools=tuple(message.tools),
    )


def query_to_message(query: RunQuery) -> pb.SearchRequest:
    """A query as sent. Raises: ConfigError for a number outside its field."""
    try:
        return pb.SearchRequest(**{name: getattr(query, name) for name in _QUERY_FIELDS})
    except (ValueError, TypeError) as exc:
        raise errors.ConfigError(f"the query cannot be sent: {exc}") from exc


def query_from_message(message: pb.SearchRequest) -> RunQuery:
    """A received query; its limit is clamped to 1 to 1000, 0 means the default."""
    values = {name: getattr(message, name) for name in _QUERY_FIELDS}
    values["limit"] = min(message.limit or RunQuery().limit, RUNS_MAX)
    return RunQuery(**values)


def drift_query_to_message(query: DriftQuery) -> pb.DriftRequest:
    """A drift query as sent. Raises: ConfigError for a number outside its field."""
    try:
        return pb.DriftRequest(**{f.name: getattr(query, f.name) for f in fields(DriftQuery)})
    except (ValueError, TypeError) as exc:
        raise errors.ConfigError(f"the query cannot be sent: {exc}") from exc


def drift_query_from_message(message: pb.DriftRequest) -> DriftQuery:
    """A received drift query."""
    return DriftQuery(**{f.name: getattr(message, f.name) for f in fields(DriftQuery)})


def drift_to_message(scan: DriftScan) -> pb.DriftResponse:
    """A drift scan as sent."""
    return pb.DriftResponse(
        runs=scan.runs,
        answers=scan.answers,
        keys=scan.keys,
        left_out=scan.left_out,
        found=[
            pb.StackAnswers(
                firsts=[pb.Answer(**{f.name: getattr(each, f.name) for f in fields(Answer)}) for each in stack.firsts],
                **{f.name: getattr(stack, f.name) for f in fields(StackAnswers) if f.name != "firsts"},
            )
            for stack in scan.found
        ],
    )


def drift_from_message(message: pb.DriftResponse) -> DriftScan:
    """A received drift scan. Raises: DamagedRecording if a serving stack has no answer."""
    found = []
    for stack in message.found:
        if not stack.firsts:
            raise errors.DamagedRecording("the service sent a serving stack without an answer")
        values = {f.name: getattr(stack, f.name) for f in fields(StackAnswers)}
        values["temperature"] = stack.temperature if stack.HasField("temperature") else None
        values["firsts"] = tuple(
            Answer(**{f.name: getattr(each, f.name) for f in fields(Answer)}) for each in stack.firsts
        )
        found.append(StackAnswers(**values))
    return DriftScan(message.runs, message.answers, message.keys, tuple(found), message.left_out)


def iter_replay_events(recording: Recording) -> Iterator[pb.ReplayRunResponse]:
    """Yield the events that ReplayRun streams: manifest, batches bounded by items and bytes, end.

    A single call larger than the byte bound travels alone. Raises: DamagedRecording.
    """
    yield pb.ReplayRunResponse(manifest=root_to_message(recording.root))
    batch: list[pb.Call] = []
    batch_bytes = 0
    for call in recording.calls:
        message = call_to_message(call)
        call_bytes = message.ByteSize()
        if batch and (len(batch) >= CALL_BATCH_ITEMS or batch_bytes + call_bytes > CALL_BATCH_BYTES_MAX):
            yield pb.ReplayRunResponse(batch=pb.CallBatch(calls=batch))
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += call_bytes
    if batch:
        yield pb.ReplayRunResponse(batch=pb.CallBatch(calls=batch))
    yield pb.ReplayRunResponse(end=pb.End(calls=len(recording.calls)))


class RecordingBuilder:
    """Rebuilds a recording from the events of one ReplayRun stream."""

    def __init__(self) -> None:
        self._root: RootRecord | None = None
        self._calls: list[CallRecord] = []
        self._announced: int | None = None

    def add(self, event: pb.ReplayRunResponse) -> None:
        """Add the next event; kinds of event from a newer service are skipped.

        Raises: DamagedRecording if calls come before the manifest.
        """
        which = event.WhichOneof("event")
        if which == "manifest":
            self._root = root_from_message(event.manifest)
        elif which == "batch":
            if self._root is None:
                raise errors.DamagedRecording("the service sent calls before the manifest")
            run_id = self._root.run_id
            self._calls.extend(call_from_message(call, run_id) for call in event.batch.calls)
        elif which == "end":
            self._announced = event.end.calls

    def build(self) -> Recording:
        """Return the recording. Raises: DamagedRecording if the stream broke off."""
        if self._root is None or self._announced is None:
            raise errors.DamagedRecording("the service's stream broke off before its end")
        if self._announced != len(self._calls):
            raise errors.DamagedRecording(f"{len(self._calls)} of {self._announced} calls arrived")
        return Recording(self._root, tuple(self._calls))


def build_recording(events: Iterable[pb.ReplayRunResponse]) -> Recording:
    """The recording that a whole ReplayRun stream describes. Raises: DamagedRecording."""
    builder = RecordingBuilder()
    for event in events:
        builder.add(event)
    return builder.build()


def split_bytes(content: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Content in pieces of bounded size; an empty content is one empty piece."""
    for start in range(0, max(len(content), 1), piece_bytes):
        yield content[start : start + piece_bytes]
