"""Compact records: the agent's process writes a call in short form; readers expand it to a whole span.

The agent waits while its call is recorded, so it writes only what cannot be derived later: the redacted payloads, the
numbers and the names, as one text. Everything derived from them (the key of a function call, the leaf hash,
OpenInference's attributes, the OTLP message) is computed when the spool is read or shipped.

A spool file that holds compact records has magic `SPRSPOOL2` and begins with one context: the run, and the bytes of
resource and scope that all its spans share. Payload of a context: `0x01`, JSON. Payload of a call: `0x02`, three lines
of ASCII text, then request, response, reads and digests as UTF-8:

    seq end_seq index joint parent outcome
    [run_id, kind, name, effect, keyspec, lane, code, call_id, key, meta, redactions, clocks]
    trace_id span_id parent_span_id start_ns end_ns flags request_bytes response_bytes reads_bytes

The leaf hash covers the first two lines (`seal.tree`).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from spanreplay.model.call import CallRecord
from spanreplay.model.function_keys import derive_key_hex

__all__ = ["CALL", "CONTEXT", "Context", "decode_call", "decode_context", "encode_context", "expand", "is_compact"]

CONTEXT: Final = b"\x01"
CALL: Final = b"\x02"
IS_SHOWN: Final = 1
"""Flag: an OpenInference span around the call shows it already."""
IS_PARENT_REMOTE: Final = 2
"""Flag: the parent span is in another process."""
_LINES: Final = 3


@dataclass(frozen=True)
class Context:
    """The part that all compact records of a file share."""

    run_id: str
    resource: bytes
    """The fields of OTLP's ResourceSpans other than its spans."""
    scope: bytes
    """The fields of OTLP's ScopeSpans other than its spans."""


def is_compact(payload: bytes) -> bool:
    """Whether a payload is a compact call; an OTLP request begins with the tag of its first field."""
    return payload[:1] == CALL


def encode_context(run_id: str, resource: bytes, scope: bytes) -> bytes:
    """The payload of a file's context."""
    members = {
        "run_id": run_id,
        "resource": base64.b64encode(resource).decode("ascii"),
        "scope": base64.b64encode(scope).decode("ascii"),
    }
    return CONTEXT + json.dumps(members).encode("ascii")


def decode_context(payload: bytes) -> Context:
    """A file's context. Raises: ValueError if it is not one."""
    if payload[:1] != CONTEXT:
        raise ValueError("no context")
    members = json.loads(payload[1:])
    try:
        return Context(
            str(members["run_id"]),
            base64.b64decode(members["resource"], validate=True),
            base64.b64decode(members["scope"], validate=True),
        )
    except (KeyError, TypeError) as exc:
        raise ValueError("no context") from exc


@lru_cache(maxsize=4096)
def _load_constant(line: bytes) -> tuple[Any, ...]:
    constant = json.loads(line)
    if type(constant) is not list or len(constant) != 12:
        raise ValueError("not the names of a call")
    return tuple(constant)


def decode_call(payload: bytes) -> tuple[CallRecord, int]:
    """The call of a compact record, and its flags. Raises: ValueError if it is not one."""
    try:
        return _decode_call(payload)
    except (LookupError, TypeError, RecursionError) as exc:
        raise ValueError(f"not a compact record ({type(exc).__name__})") from exc


def _decode_call(payload: bytes) -> tuple[CallRecord, int]:
    if payload[:1] != CALL:
        raise ValueError("not a compact record")
    call_line, constant_line, place_line, texts = payload[1:].split(b"\n", _LINES)
    seq, end_seq, index, joint, parent, outcome = call_line.split(b" ")
    trace_id, span_id, parent_id, start_ns, end_ns, flags, request_bytes, response_bytes, reads_bytes = (
        place_line.split(b" ")
    )
    run_id, kind, name, effect, keyspec, lane, code, call_id, key, meta, redactions, clocks = _load_constant(
        constant_line
    )
    middle = int(request_bytes)
    end = middle + int(response_bytes)
    last = end + int(reads_bytes)
    request = texts[:middle].decode("utf-8")
    record = CallRecord.assemble(
        run_id=run_id,
        seq=int(seq),
        kind=kind,
        name=name,
        lane=lane,
        index=int(index),
        key=key or derive_key_hex(keyspec, name, request),
        keyspec=keyspec,
        request=request,
        response=texts[middle:end].decode("utf-8"),
        outcome=outcome.decode("ascii"),
        effect=effect,
        end_seq=int(end_seq),
        parent=int(parent),
        call_id=call_id,
        code=code,
        meta=dict(meta),
        redactions=dict(redactions),
        trace_id=trace_id.decode("ascii").zfill(32),
        span_id=span_id.decode("ascii").zfill(16),
        parent_span_id=parent_id.decode("ascii").zfill(16),
        start_ns=int(start_ns),
        end_ns=int(end_ns),
        reads=texts[end:last].decode("utf-8"),
        digests=texts[last:].decode("utf-8"),
        joint=int(joint),
        clocks=tuple(clocks),
    )
    return record, int(flags)


def expand(payload: bytes, context: Context) -> bytes:
    """Expand a compact record to its ExportTraceServiceRequest. Raises: ValueError if it is not one."""
    from spanreplay.recording.spans import build_span
    from spanreplay.recording.spool.encode import encode_in

    record, flags = decode_call(payload)
    span = build_span(record, is_shown=bool(flags & IS_SHOWN), is_parent_remote=bool(flags & IS_PARENT_REMOTE))
    return encode_in(span, context.resource, context.scope)
