"""Turns calls into boundary spans: the only place that emits spans of ours.

A boundary span is built as a finished `ReadableSpan` and handed to the processors, instead of being started on a
tracer: the SDK's limits (128 attributes, value length) would evict or cut payloads, and its attribute checks cost more
than the whole record. While a call runs, the current span remains the agent's; `others` puts the spans that start
inside the call below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import SpanContext

from spanreplay.model import attributes as names
from spanreplay.model import guard
from spanreplay.model.call import CallRecord
from spanreplay.model.own_threads import make_lock
from spanreplay.recording.spans import (
    SCOPE,
    build_span,
    make_span,
)

if TYPE_CHECKING:
    from spanreplay.recording.spool.processor import CallSink


class Emitter:
    """Hands finished spans to span processors; never raises."""

    def __init__(self, processors: Sequence[SpanProcessor], resource: Resource) -> None:
        self._processors = tuple(processors)
        self._resource = resource
        self._lock = make_lock()
        self._dropped = 0
        self._only = processors[0] if len(processors) == 1 else None

    def find_sink(self, run_id: str) -> CallSink | None:
        """The sink for the run's calls as compact records; None if a processor wants spans."""
        sink: CallSink | None = getattr(self._only, "call_sink", None)
        if sink is not None and sink.owner is not self:
            redact = getattr(self._only, "redact_resource", None)
            try:
                sink.adopt(self, run_id, self._resource if redact is None else redact(self._resource), SCOPE)
            except Exception as exc:  # noqa: BLE001 -- spans are built instead, and fail or are redacted one by one
                guard.report_failure("the spool's context", exc)
                self._only = None
                return None
        return sink

    @property
    def dropped(self) -> int:
        """Records that did not reach the spool: failures here plus the processors' dropped records."""
        return self._dropped + sum(int(getattr(p, "dropped", 0)) for p in self._processors)

    def emit(
        self,
        *,
        name: str,
        span_context: SpanContext,
        parent: SpanContext | None,
        attributes: Mapping[str, Any],
        start_ns: int,
        end_ns: int,
        is_error: bool = False,
    ) -> None:
        """Emit one finished span."""
        self._hand_on(
            make_span(
                name,
                span_context,
                parent,
                attributes,
                start_ns=start_ns,
                end_ns=end_ns,
                is_error=is_error,
                resource=self._resource,
            )
        )

    def emit_call(
        self, record: CallRecord, count: Callable[[str], bool], *, is_shown: bool, is_parent_remote: bool
    ) -> bool:
        """Emit a call as a span if it is open or `count` accepts its leaf; return False if it does not."""
        if not self._processors:
            return True
        span = build_span(record, is_shown=is_shown, is_parent_remote=is_parent_remote, resource=self._resource)
        leaf = (span.attributes or {}).get(names.LEAF)
        if leaf and not count(str(leaf)):
            return False
        self._hand_on(span)
        return True

    def _hand_on(self, span: ReadableSpan) -> None:
        for processor in self._processors:
            try:
                processor.on_end(span)
            except Exception as exc:  # noqa: BLE001 -- a processor's failure is not the agent's
                with self._lock:
                    self._dropped += 1
                guard.report_failure("span processor", exc)
