"""A run as JSON lines, to read, search and edit with ordinary tools: one OTLP/JSON request per line.

The first line is a header. The line of a boundary call begins with the members that people search for: `key` (the
SHA-256 that identifies the call), `boundary`, `lane`, `index` and `outcome`. OTLP readers skip unknown members, so the
file is also valid output of OpenTelemetry's file exporter. protobuf is imported when first needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.errors import DamagedRecording, ForeignFile, NewerSchema, SourceError
from spanreplay.model.how_to_install import install_command
from spanreplay.recording.spool.directory import is_run_id
from spanreplay.recording.spool.limits import BUNDLE_BYTES_MAX, FRAME_BYTES_MAX
from spanreplay.recording.spool.requests import count_spans, parse_payload

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["FORMAT", "VERSION", "is_json", "is_jsonl", "read_jsonl", "write_jsonl"]

FORMAT: Final = "spanreplay.jsonl"
VERSION: Final = 1
FIRST_LINE_MAX: Final = 1000
_HINT: Final = "such a file is written by: spanreplay export --jsonl RUN"
_SHOWN: Final = ((names.LANE, "lane"), (names.INDEX, "index"), (names.OUTCOME, "outcome"))


def is_json(head: bytes) -> bool:
    """Whether a file with these first bytes may be JSON."""
    return head.lstrip()[:1] in (b"{", b"[")


def is_jsonl(data: bytes) -> bool:
    """Whether JSON data begins with this format's header line."""
    line = data.lstrip()[:FIRST_LINE_MAX].partition(b"\n")[0]
    return f'"{FORMAT}"'.encode() in line


def write_jsonl(run_id: str, payloads: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a run, each with its newline; keeps the order of payloads.

    Raises: DamagedRecording if a payload is not an OTLP request.
    """
    from spanreplay.recording.otlp.otlp_json import write_request

    requests = [parse_payload(payload, f"run {run_id}") for payload in payloads]
    header = {"format": FORMAT, "version": VERSION, "run_id": run_id, "spans": sum(map(count_spans, requests))}
    yield _line(header)
    for request in requests:
        yield _line({**_summary(request), **write_request(request)})


def read_jsonl(data: bytes, *, name: str = "the file") -> tuple[str, list[bytes]]:
    """The run id and the payloads of a file of JSON lines; errors call it `name`.

    Raises: ForeignFile, DamagedRecording, NewerSchema; SourceError above BUNDLE_BYTES_MAX.
    """
    if len(data) > BUNDLE_BYTES_MAX:
        raise SourceError(f"{name} has {len(data)} bytes, limit {BUNDLE_BYTES_MAX}", hint="replay it from the service")
    lines = data.split(b"\n")
    header = _read_header(lines[0], name)
    payloads = []
    spans = 0
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        request = _read_line(line, name, number)
        spans += count_spans(request)
        payloads.append(request.SerializeToString(deterministic=True))
    if spans != header["spans"]:
        raise DamagedRecording(
            f"{name} is damaged: it holds {spans} spans, its first line says {header['spans']}",
            hint="get the file again, or set `spans` in its first line if you edited it",
        )
    return str(header["run_id"]), payloads


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _summary(request: ExportTraceServiceRequest) -> dict[str, Any]:
    """Members put first in a line for human readers: key and place of its only call; {} if it holds no single call."""
    spans = [span for batch in request.resource_spans for scope in batch.scope_spans for span in scope.spans]
    if len(spans) != 1:
        return {}
    found: dict[str, Any] = {}
    for attribute in spans[0].attributes:
        value = attribute.value
        found[attribute.key] = value.int_value if value.HasField("int_value") else value.string_value
    if names.KEY not in found:
        return {}
    boundary = f"{found.get(names.KIND, '')}:{found.get(names.NAME, '')}"
    shown = {short: found[name] for name, short in _SHOWN if name in found}
    return {"key": found[names.KEY], "boundary": boundary, **shown}


def _read_header(line: bytes, name: str) -> dict[str, Any]:
    try:
        header: Any = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ForeignFile(f"{name} does not begin with a line of JSON", hint=_HINT) from exc
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ForeignFile(f"the first line of {name} does not say format {FORMAT!r}", hint=_HINT)
    version, run_id, spans = header.get("version"), header.get("run_id"), header.get("spans")
    if isinstance(version, int) and version > VERSION:
        raise NewerSchema(
            f"{name} has version {version}, this spanreplay reads up to {VERSION}",
            hint=f"upgrade spanreplay: {install_command()}",
        )
    if version != VERSION or not isinstance(run_id, str) or not is_run_id(run_id) or not isinstance(spans, int):
        raise DamagedRecording(f"the first line of {name} lacks version, run_id or spans", hint=_HINT)
    return header


def _read_line(line: bytes, name: str, number: int) -> ExportTraceServiceRequest:
    from spanreplay.recording.otlp.otlp_json import read_request

    if len(line) > 2 * FRAME_BYTES_MAX:
        raise DamagedRecording(f"line {number} of {name} has {len(line)} bytes, limit {2 * FRAME_BYTES_MAX}")
    try:
        tree = json.loads(line)
        if isinstance(tree, dict):
            return read_request(tree)
    except (ValueError, RecursionError) as exc:
        raise DamagedRecording(f"line {number} of {name} is not OTLP/JSON", hint=_HINT) from exc
    raise DamagedRecording(f"line {number} of {name} is not a JSON object", hint=_HINT)
