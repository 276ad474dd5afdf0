"""Payloads of fixed runs, and helpers to wait for conditions, for the tests of the spool."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model import attributes as names
from spanreplay.recording.otlp.otlp import encode_attributes
from spanreplay.recording.spool import Shipper, SpoolWriter
from spanreplay.recording.spool.target import target_of

RUN = "0192f0000000700080000000000000aa"
OTHER_RUN = "0192f0000001700080000000000000bb"
DEADLINE_S = 180.0


def request(
    attributes: dict[str, object],
    *,
    span_id: int,
    start_ns: int = 0,
    resource: dict[str, object] | None = None,
) -> bytes:
    """Return one span as a serialized request."""
    message = ExportTraceServiceRequest()
    resource_spans = message.resource_spans.add()
    resource_spans.resource.attributes.extend(encode_attributes(resource or {"service.name": "trader"}))
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = names.SCOPE
    span = scope_spans.spans.add(
        trace_id=bytes(15) + b"\x01",
        span_id=span_id.to_bytes(8, "big"),
        name="call",
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + 1,
    )
    span.attributes.extend(encode_attributes(attributes))
    return message.SerializeToString()


def call(run_id: str = RUN, seq: int = 1, **extra: object) -> bytes:
    """Return a finished call of a run."""
    attributes: dict[str, object] = {
        names.SCHEMA: "1",
        names.RUN_ID: run_id,
        names.SEQ: seq,
        names.KIND: "tool",
        names.NAME: "place_order",
        names.LANE: "main",
        names.INDEX: seq,
        names.REQUEST: f'{{"args":[{seq}]}}',
        names.RESPONSE: '{"value":"done"}',
        names.OUTCOME: "ok",
    }
    attributes.update({f"spanreplay.{k}": v for k, v in extra.items()})
    return request(attributes, span_id=seq + 1000)


def root(run_id: str = RUN, *, calls: int = 0, app: str = "trader", start_ns: int = 0, user_id: str = "") -> bytes:
    """Return the final root record of a run that made `calls` calls."""
    attributes: dict[str, object] = {
        names.SCHEMA: "1",
        names.RUN_ID: run_id,
        names.SEQ: 0,
        names.KIND: names.KIND_RUN,
        names.APP: app,
        names.OUTCOME: "ok",
        names.MANIFEST: f'{{"calls":{calls}}}',
    }
    if user_id:
        attributes[names.USER_ID] = user_id
    return request(attributes, span_id=1, start_ns=start_ns)


def whole_run(
    run_id: str = RUN, calls: int = 3, *, app: str = "trader", user_id: str = "", start_ns: int = 0
) -> list[bytes]:
    """Return all payloads of a finished run."""
    return [
        *(call(run_id, n) for n in range(1, calls + 1)),
        root(run_id, calls=calls, app=app, user_id=user_id, start_ns=start_ns),
    ]


def wait_until(is_true: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fail with `what` at the deadline."""
    pause = threading.Event()
    end = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < end, f"timed out waiting for {what}"
        pause.wait(0.005)


def calls(*seqs: int) -> list[bytes]:
    """Return one call per number."""
    return [call(seq=seq) for seq in seqs]


def ids(*seqs: int) -> list[int]:
    """Return the span ids of such calls."""
    return [1000 + seq for seq in seqs]


def leave(directory: Path, payloads: list[bytes], run_id: str = RUN, *, to_ship: bool = True) -> Path:
    """Write the file that a terminated writer would leave behind."""
    writer = SpoolWriter(directory, run_id, to_ship=to_ship)
    assert all(writer.append(p) for p in payloads)
    path = writer.path
    assert path is not None
    writer.close()
    return path


def make_shipper(directory: Path, endpoint: str) -> Shipper:
    """Return a shipper that sends immediately."""
    return Shipper(directory, target_of(endpoint), interval_ms=1)


def start_python(code: str, *args: object) -> subprocess.Popen[bytes]:
    """Start another Python process that can import these tools."""
    tests = str(Path(__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
    )
