"""Exported spans before anything is made of them: read from a file, and gathered into runs.

Nothing is refused or repaired here that is still OTLP: the rules are there to say what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model import attributes as names
from spanreplay.model.call import Outcome
from spanreplay.model.errors import ForeignFile, RunNotFound
from spanreplay.recording.bundle import unpack
from spanreplay.recording.jsonl import is_json, is_jsonl, read_jsonl
from spanreplay.recording.otlp.otlp import decode_attributes, iter_spans
from spanreplay.recording.otlp.otlp_json import read_request
from spanreplay.recording.spool.limits import BUNDLE_BYTES_MAX

__all__ = ["PREFIX", "RUN_ID", "ExportedRun", "ExportedSpan", "gather_runs", "read_export"]

PREFIX: Final = "spanreplay."
RUN_ID: Final = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")
"""A UUIDv7 without dashes."""
_ZIP: Final = b"PK\x03\x04"
_HINT: Final = "judge a .replay file, OTLP as JSON (one request, or one a line), or the protobuf body of one request"


@dataclass(frozen=True)
class ExportedSpan:
    """A span with at least one attribute of the contract."""

    span: Span
    attributes: Mapping[str, Any]
    run_id: str
    """As stated by the span, else by its resource; '' if neither does."""

    @property
    def is_root(self) -> bool:
        """Whether this is a run's root span."""
        return bool(self.attributes.get(names.KIND) == names.KIND_RUN)

    @property
    def place(self) -> str:
        """The span as findings name it."""
        kind, name = self.attributes.get(names.KIND, "?"), self.attributes.get(names.NAME, self.span.name)
        return f"span {self.span.span_id.hex() or '(no id)'} ({'run' if self.is_root else f'{kind}:{name}'})"


@dataclass(frozen=True)
class ExportedRun:
    """All spans of one run, by start order as far as they state it."""

    run_id: str
    spans: tuple[ExportedSpan, ...]

    @property
    def roots(self) -> tuple[ExportedSpan, ...]:
        """Root spans; a conforming run has one."""
        return tuple(each for each in self.spans if each.is_root)

    @property
    def calls(self) -> tuple[ExportedSpan, ...]:
        """All other spans."""
        return tuple(each for each in self.spans if not each.is_root)


def read_export(path: Path) -> list[ExportTraceServiceRequest]:
    """The OTLP requests in a file: `.replay`, JSON lines, OTLP/JSON or the protobuf body of one request.

    Raises: RunNotFound if there is no file; ForeignFile, DamagedRecording, NewerSchema.
    """
    try:
        if path.stat().st_size > BUNDLE_BYTES_MAX:
            raise ForeignFile(f"{path} is larger than {BUNDLE_BYTES_MAX} bytes", hint="export fewer traces")
        content = path.read_bytes()
    except FileNotFoundError as exc:
        raise RunNotFound(f"no such file: {path}", hint=_HINT) from exc
    except OSError as exc:
        raise ForeignFile(f"cannot read {path}: {exc.strerror}", hint=_HINT) from exc
    try:
        if content.startswith(_ZIP):
            return [ExportTraceServiceRequest.FromString(each) for each in unpack(content, name=str(path))[1]]
        if not is_json(content[:64]):
            return [ExportTraceServiceRequest.FromString(content)]
        if is_jsonl(content):
            return [ExportTraceServiceRequest.FromString(each) for each in read_jsonl(content, name=str(path))[1]]
        return [read_request(tree) for tree in _documents(content)]
    except (DecodeError, ValueError, RecursionError) as exc:
        raise ForeignFile(f"{path} is not OTLP", hint=_HINT) from exc


def _documents(content: bytes) -> list[dict[str, Any]]:
    """One JSON document, or one per line."""
    try:
        found = [json.loads(content)]
    except ValueError:
        found = [json.loads(line) for line in content.split(b"\n") if line.strip()]
    if not all(isinstance(each, dict) and ("resourceSpans" in each or "resource_spans" in each) for each in found):
        raise ValueError("not OTLP/JSON")
    return found


def gather_runs(requests: Iterable[ExportTraceServiceRequest]) -> list[ExportedRun]:
    """The runs in requests, oldest first; a span without a valid run id belongs to the only run of its trace.

    Of a span that was exported when it started and again when it ended, only the end counts; one that an exporter sent
    again, unchanged, counts once.
    """
    spans = [_read(filed.span, filed.run_id) for request in requests for filed in iter_spans(request)]
    ours = _without_starts([each for each in spans if any(name.startswith(PREFIX) for name in each.attributes)])
    of_trace: dict[bytes, set[str]] = {}
    for each in ours:
        if RUN_ID.fullmatch(each.run_id):
            of_trace.setdefault(each.span.trace_id, set()).add(each.run_id)
    runs: dict[str, list[ExportedSpan]] = {}
    for each in ours:
        known = of_trace.get(each.span.trace_id, set())
        is_lost = not RUN_ID.fullmatch(each.run_id) and len(known) == 1
        runs.setdefault(next(iter(known)) if is_lost else each.run_id, []).append(each)
    return [ExportedRun(run_id, tuple(sorted(found, key=_order))) for run_id, found in sorted(runs.items())]


def _read(span: Span, run_id: str) -> ExportedSpan:
    return ExportedSpan(span, decode_attributes(span.attributes), run_id)


def _without_starts(spans: list[ExportedSpan]) -> list[ExportedSpan]:
    spans = list({(each.run_id, each.span.SerializeToString(deterministic=True)): each for each in spans}.values())
    ended = {each.span.span_id for each in spans if not _is_start(each)}
    return [each for each in spans if not (_is_start(each) and each.span.span_id in ended)]


def _is_start(each: ExportedSpan) -> bool:
    if each.is_root:
        return names.MANIFEST not in each.attributes
    return bool(each.attributes.get(names.OUTCOME) == Outcome.OPEN.value)


def _order(each: ExportedSpan) -> tuple[int, int]:
    seq = each.attributes.get(names.SEQ)
    return (seq if isinstance(seq, int) else 0, each.span.start_time_unix_nano)
