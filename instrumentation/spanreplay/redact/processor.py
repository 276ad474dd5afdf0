"""The span processor that runs before all others, so that no span leaves unredacted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Status

from spanreplay.model import guard
from spanreplay.model.attributes import SCOPE
from spanreplay.redact.engine import RunRedactor

if TYPE_CHECKING:
    from opentelemetry.context import Context

__all__ = ["REDACTION_ERROR", "RedactingSpanProcessor"]

logger = logging.getLogger(__name__)

REDACTION_ERROR: Final = "spanreplay.redaction_error"
"""bool: this span's content was dropped because it could not be redacted."""
SKELETON_NAME: Final = "redaction failed"
SKELETON_SCOPE: Final = "spanreplay.redact"
_CACHE_ITEMS_MAX: Final = 64

T = TypeVar("T")


class RedactingSpanProcessor(SpanProcessor):
    """Forwards a redacted copy of every ended span to the downstream processors; thread-safe.

    The copy covers name, attributes, status, events, links, resource and scope. Spans of our own scope were
    redacted before their key was made, so only their resource is redacted here. A span that cannot be redacted
    is forwarded as a skeleton: ids, times and `spanreplay.redaction_error`. An exception of a downstream
    processor is logged once and not passed on.

    `run_resource` is merged into every span's resource: it names the run that the span belongs to.

    Live spans (`on_start`) are forwarded unchanged: a processor that reads attributes there sees them raw.
    """

    def __init__(
        self,
        run_redactor: RunRedactor,
        downstream: Sequence[SpanProcessor],
        run_resource: Resource | None = None,
    ) -> None:
        self._run = run_redactor
        self._run_resource = run_resource
        self._downstream = tuple(downstream)
        self._resources = _IdentityCache(self._redact_resource)
        self._scopes = _IdentityCache(self._redact_scope)
        self._warned: set[tuple[str, str]] = set()
        self.errors = 0
        """Spans forwarded as skeletons."""
        self.call_sink: Any = getattr(downstream[0], "call_sink", None) if len(downstream) == 1 else None
        """Receives our own calls, already redacted, without a span; None while a processor wants to see the spans."""

        self.listener: Callable[[Mapping[str, Any] | None], None] | None = None
        """Called with the attributes of each span that is not ours when it ends."""

    def add(self, processor: SpanProcessor) -> None:
        """Add a downstream processor."""
        self._downstream = (*self._downstream, processor)
        self.call_sink = None

    def redact_resource(self, resource: Resource) -> Resource:
        """The resource as spans carry it. Raises: any exception of its redaction."""
        return self._resources.get(resource)

    @property
    def dropped(self) -> int:
        """Spans that the downstream processors report as lost."""
        return sum(int(getattr(p, "dropped", 0)) for p in self._downstream)

    # ── The interface of a span processor ───────────────────────────────────────────────────────────
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Forward the live span unchanged."""
        for processor in self._downstream:
            self._shield(processor, "on_start", span, parent_context=parent_context)

    def _on_ending(self, span: Span) -> None:
        for processor in self._downstream:
            if hasattr(processor, "_on_ending"):  # experimental in the SDK
                self._shield(processor, "_on_ending", span)

    def on_end(self, span: ReadableSpan) -> None:
        """Redact and forward the span; the raw span is never forwarded."""
        scope = span.instrumentation_scope
        if self.listener is not None and (scope is None or scope.name != SCOPE):
            guard.guarded("listening to spans", self.listener, span.attributes)
        try:
            redacted = self._redact(span)
        except Exception as exc:  # noqa: BLE001 - fails closed: never the raw span, never into the agent
            self.errors += 1
            self._warn("redaction", type(exc).__name__)
            redacted = self._skeleton(span)
        for processor in self._downstream:
            self._shield(processor, "on_end", redacted)

    def shutdown(self) -> None:
        """Shut down every downstream processor."""
        for processor in self._downstream:
            self._shield(processor, "shutdown")

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush every downstream processor, within one timeout for all of them."""
        deadline = time.monotonic() + timeout_millis / 1000
        is_flushed = True
        for processor in self._downstream:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                return False
            flushed = self._shield(processor, "force_flush", left_ms)
            is_flushed = is_flushed and flushed is not False
        return is_flushed

    def _shield(self, processor: SpanProcessor, method: str, *args: Any, **kwargs: Any) -> object:
        try:
            result: object = getattr(processor, method)(*args, **kwargs)
            return result
        except Exception as exc:  # noqa: BLE001 - a foreign processor must not break the agent
            self._warn(f"{type(processor).__name__}.{method}", type(exc).__name__)
            return False

    def _warn(self, where: str, cause: str) -> None:
        if (where, cause) not in self._warned and len(self._warned) < 32:
            self._warned.add((where, cause))
            logger.warning("%s failed with %s", where, cause)

    # ── The copy ────────────────────────────────────────────────────────────────────────────────────
    def _redact(self, span: ReadableSpan) -> ReadableSpan:
        resource = self._resources.get(span.resource)
        scope = span.instrumentation_scope
        if scope is not None and scope.name == SCOPE:
            return span if resource is span.resource else _with_resource(span, resource)
        return _copy(
            span,
            name=self._text(span.name),
            attributes=self._attributes(span.attributes, span.dropped_attributes),
            events=_bounded_list([self._event(e) for e in span.events], span.dropped_events),
            links=_bounded_list([self._link(link) for link in span.links], span.dropped_links),
            status=self._status(span.status),
            resource=resource,
            instrumentation_scope=None if scope is None else self._scopes.get(scope),
        )

    def _text(self, text: str) -> str:
        return _encodable_text(self._run.text(text))

    def _attributes(self, attributes: Mapping[str, Any] | None, dropped: int) -> BoundedAttributes:
        made = BoundedAttributes(attributes=self._values(attributes))
        made.dropped = dropped
        return made

    def _values(self, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
        if not attributes:
            return {}
        redacted = self._run.value(dict(attributes))
        if not isinstance(redacted, dict):
            raise TypeError("attributes could not be redacted")
        return {_encodable(key): _encodable(value) for key, value in redacted.items()}

    def _event(self, event: Event) -> Event:
        attributes = self._attributes(event.attributes, getattr(event, "dropped_attributes", 0))
        return Event(self._text(event.name), attributes=attributes, timestamp=event.timestamp)

    def _link(self, link: Link) -> Link:
        attributes = self._attributes(link.attributes, getattr(link, "dropped_attributes", 0))
        return Link(link.context, attributes=attributes)

    def _status(self, status: Status) -> Status:
        if not status.description:
            return status
        return Status(status.status_code, self._text(status.description))

    def _redact_resource(self, resource: Resource) -> Resource:
        if self._run_resource is not None:
            resource = resource.merge(self._run_resource)
        attributes = dict(resource.attributes)
        redacted = self._values(attributes)
        return resource if redacted == attributes else Resource(redacted, resource.schema_url)

    def _redact_scope(self, scope: InstrumentationScope) -> InstrumentationScope:
        name, attributes = self._text(scope.name), self._values(scope.attributes)
        if name == scope.name and attributes == dict(scope.attributes or {}):
            return scope
        return InstrumentationScope(name, scope.version, scope.schema_url, attributes)

    def _skeleton(self, span: ReadableSpan) -> ReadableSpan:
        """Ids, times, kind; the resource only if it can be redacted."""
        try:
            resource = self._resources.get(span.resource)
        except Exception:  # noqa: BLE001 - failing closed must not fail
            resource = Resource.get_empty()
        return ReadableSpan(
            name=SKELETON_NAME,
            context=span.context,
            parent=span.parent,
            resource=resource,
            attributes={REDACTION_ERROR: True},
            kind=span.kind,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=InstrumentationScope(SKELETON_SCOPE),
        )


class _IdentityCache:
    """Redacted forms of the few long-lived objects that all spans share."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._made: dict[int, tuple[Any, Any]] = {}

    def get(self, original: T) -> T:
        found = self._made.get(id(original))
        if found is not None and found[0] is original:
            redacted: T = found[1]
            return redacted
        made: T = self._make(original)
        if len(self._made) < _CACHE_ITEMS_MAX:
            self._made[id(original)] = (original, made)  # holding the original keeps its id from being reused
        return made


def _copy(span: ReadableSpan, **changed: Any) -> ReadableSpan:
    fields: dict[str, Any] = {
        "name": span.name,
        "context": span.context,
        "parent": span.parent,
        "resource": span.resource,
        "kind": span.kind,
        "status": span.status,
        "start_time": span.start_time,
        "end_time": span.end_time,
        "instrumentation_scope": span.instrumentation_scope,
        # The private attributes know how many entries the SDK's limits dropped.
        "attributes": getattr(span, "_attributes", span.attributes),
        "events": getattr(span, "_events", span.events),
        "links": getattr(span, "_links", span.links),
    }
    return ReadableSpan(**{**fields, **changed})


def _with_resource(span: ReadableSpan, resource: Resource) -> ReadableSpan:
    """The same span with another resource, in a tenth of the time of `_copy`."""
    made = ReadableSpan.__new__(ReadableSpan)
    made.__dict__.update(span.__dict__)
    made._resource = resource
    return made


def _bounded_list(items: list[Any], dropped: int) -> Sequence[Any]:
    if not dropped:
        return items
    bounded: Any = BoundedList.from_seq(max(1, len(items)), items)
    bounded.dropped = dropped
    return bounded  # type: ignore[no-any-return]  # the SDK's list is untyped


def _encodable(value: Any) -> Any:
    """The value with lone surrogates replaced: the OTLP encoder drops a string that holds one."""
    if isinstance(value, str):
        return _encodable_text(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_encodable(item) for item in value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def _encodable_text(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
