"""Writes every finished span of the process to the spool, on the thread that ended it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from spanreplay.recording.spool.writer import SpoolWriter

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from spanreplay.recording.spool.courier import ShipReport
    from spanreplay.recording.spool.shipper import Shipper

__all__ = ["CallSink", "SpoolSpanProcessor", "encode_span"]

logger = logging.getLogger(__name__)


def encode_span(span: ReadableSpan) -> bytes:
    """One span as the bytes of an ExportTraceServiceRequest; imports protobuf at the first call."""
    global _encode
    if _encode is None:
        from spanreplay.recording.spool import encode

        _encode = encode.encode_span
    return _encode(span)


_encode: Callable[[ReadableSpan], bytes] | None = None


def _before_fork() -> None:
    """Wait for a thread that is importing these modules: in the child the import would never finish."""
    if threading.active_count() > 1:
        from spanreplay.recording.spool import compact, encode  # noqa: F401 -- for later


os.register_at_fork(before=_before_fork)


class CallSink:
    """Writes compact records of calls without building a span; `adopt` must first set the part that they share."""

    __slots__ = ("_shipper", "_writer", "owner", "write")

    def __init__(self, writer: SpoolWriter, shipper: Shipper | None) -> None:
        self._writer = writer
        self._shipper = shipper
        self.write: Callable[[bytes], object] = writer.append if shipper is None else self._write_and_ship
        """Write one compact record to the spool; the writer counts a failed one as dropped. Never raises."""
        self.owner: object = None

    def adopt(self, owner: object, run_id: str, resource: Resource, scope: InstrumentationScope) -> None:
        """Assign all later records to this run; `resource` is already redacted."""
        from spanreplay.recording.spool.compact import encode_context
        from spanreplay.recording.spool.encode import encode_surroundings

        self._writer.context = encode_context(run_id, *encode_surroundings(resource, scope))
        self.owner = owner

    def _write_and_ship(self, payload: bytes) -> None:
        if self._writer.append(payload) and self._shipper is not None:
            self._shipper.notify()


class SpoolSpanProcessor(SpanProcessor):
    """Writes each sampled span to the spool when it ends; put the redactor in front of it.

    on_end returns once the span is in the page cache. Never raises; `dropped` counts spans that could
    not be encoded or written.
    """

    def __init__(self, writer: SpoolWriter, shipper: Shipper | None = None) -> None:
        self._writer = writer
        self._shipper = shipper
        self.call_sink = CallSink(writer, shipper)
        # A file that is closed before the shipper first sees it must be marked by then.
        writer.to_ship = writer.to_ship or shipper is not None
        self._not_encoded = 0

    @property
    def dropped(self) -> int:
        """Number of spans that could not be encoded or written."""
        return self._not_encoded + self._writer.dropped

    @property
    def shipper(self) -> Shipper | None:
        """Delivers the spool of this process; None if nothing is shipped."""
        return self._shipper

    @property
    def report(self) -> ShipReport | None:
        """Totals shipped so far; None if nothing is shipped."""
        shipper = self._shipper
        return None if shipper is None else shipper.report

    def doubt(self) -> None:
        """Ship only if the target is a spanreplay collector; otherwise keep the recordings on this machine."""
        if self._shipper is not None:
            self._shipper.doubt(self._stay)

    def _stay(self) -> None:  # on the shipper's thread
        self._shipper = None
        self._writer.stay()

    def on_end(self, span: ReadableSpan) -> None:
        """Record a finished span; unsampled spans are ignored."""
        context = span.get_span_context()
        if context is not None and not context.trace_flags.sampled:
            return
        try:
            payload = encode_span(span)
        except Exception as exc:  # noqa: BLE001 - nothing of ours may escape into the agent
            if not self._not_encoded:
                logger.error("a span cannot be recorded: %s", type(exc).__name__)
            self._not_encoded += 1
            return
        shipper = self._shipper
        if self._writer.append(payload) and shipper is not None:
            shipper.notify()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Deliver everything recorded so far; return whether that succeeded in time. True if nothing is shipped."""
        shipper = self._shipper
        return shipper is None or shipper.flush(timeout_millis)

    def shutdown(self) -> None:
        """Release the spool file and ship it; a span that ends later is still recorded, in a new file."""
        self._writer.close()
        shipper = self._shipper
        if shipper is not None:
            shipper.shutdown()
