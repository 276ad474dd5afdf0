"""Calls to boundary spans: the only place that emits spans of ours.

A boundary span is built as a finished `ReadableSpan` and handed to the processors, instead of being started on a
tracer: the SDK's limits (128 attributes, value length) would evict or cut payloads, and its attribute checks cost
more than the whole record. While a call runs, a non-recording span with its ids is current, so that children nest.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

from spanreplay import attributes as names
from spanreplay import guard
from spanreplay._json import dump
from spanreplay._version import VERSION
from spanreplay.call import CallRecord, Outcome

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

_SCOPE = InstrumentationScope(names.SCOPE, VERSION)
_OPEN = Outcome.OPEN.value
_STATUS_OK = Status(StatusCode.UNSET)
_STATUS_ERROR = Status(StatusCode.ERROR)


class Emitter:
    """Hands finished spans to span processors; never raises."""

    def __init__(self, processors: Sequence[SpanProcessor], resource: Resource) -> None:
        self._processors = tuple(processors)
        self._resource = resource
        self._lock = threading.Lock()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Records that did not reach the spool: failures here plus what the processors dropped."""
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
        span = ReadableSpan(
            name=name,
            context=span_context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=SpanKind.INTERNAL,
            status=_STATUS_ERROR if is_error else _STATUS_OK,
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=_SCOPE,
        )
        for processor in self._processors:
            try:
                processor.on_end(span)
            except Exception as exc:  # noqa: BLE001 -- a processor's failure is not the agent's
                with self._lock:
                    self._dropped += 1
                guard.report_failure("span processor", exc)


def build_attributes(call: CallRecord, leaf: str, openinference: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a boundary span; OpenInference's first, ours last."""
    attributes: dict[str, Any] = dict(openinference)
    attributes.update(
        {
            names.SCHEMA: names.SCHEMA_VERSION,
            names.RUN_ID: call.run_id,
            names.SEQ: call.seq,
            names.KIND: call.kind,
            names.NAME: call.name,
            names.EFFECT: call.effect,
            names.LANE: call.lane,
            names.INDEX: call.index,
            names.KEY: call.key,
            names.KEYSPEC: call.keyspec,
            names.REQUEST: call.request,
            names.OUTCOME: call.outcome,
        }
    )
    if call.outcome != _OPEN:
        attributes[names.RESPONSE] = call.response
        attributes[names.END_SEQ] = call.end_seq
        attributes[names.LEAF] = leaf
        if call.joint >= 0:
            attributes[names.JOINT] = call.joint
        if call.clocks:
            attributes[names.CLOCKS] = dump(call.clocks)
    if call.digests:
        attributes[names.DIGESTS] = call.digests
    if call.reads:
        attributes[names.READS] = call.reads
    if call.parent >= 0:
        attributes[names.PARENT] = call.parent
    if call.call_id:
        attributes[names.CALL_ID] = call.call_id
    if call.code:
        attributes[names.CODE] = call.code
    if call.meta:
        attributes[names.META] = dump(call.meta)
    if call.redactions:
        attributes[names.REDACTIONS] = dump(call.redactions)
    return attributes
