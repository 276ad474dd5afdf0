"""Spans that others make in the agent's process: heard as they start and end, never changed on their way.

Whatever SDK provider a span comes from, a copy of it is recorded; the original reaches the processors of its provider
as it would without us. The copy is part of the run's trace: below the call inside which it started, else below its own
parent, else below the run's root. A trace that began in another process keeps its id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, ReadableSpan, Span, SynchronousMultiSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext

from spanreplay.model import guard
from spanreplay.recording.sampling.own_cpu import measured
from spanreplay.runtime.caller.running import is_off
from spanreplay.runtime.calls.trace_place import find_call_above, make_span_context
from spanreplay.runtime.run import active_run
from spanreplay.seams.telemetry import made_ids
from spanreplay.seams.telemetry.providers import name_class, name_foreign

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches
    from spanreplay.runtime.run import Run

__all__ = ["OtherSpans"]

OPEN_SPANS_MAX: Final = 10_000
REMOTE_TRACES_MAX: Final = 10_000
NOT_KEPT: Final = "other_spans_dropped"
"""Counter of the manifest: spans of others that began while too many were open."""
NOT_HEARD: Final = "other_spans_not_heard"
"""Member of the manifest: the class of the program's spans, or of its provider, that is not the SDK's."""


class OtherSpans:
    """Hears the spans of every SDK provider of this process for one run; thread-safe."""

    def __init__(self, run: Run, forward: Callable[[ReadableSpan], None]) -> None:
        self._run = run
        self._forward = forward
        self._above: dict[int, SpanContext] = {}
        self._remote_traces: dict[int, None] = {}
        self._foreign = ""
        self._has_heard = False
        self.first_trace = 0
        """The id of the first trace that began here; 0 if none has."""

    def install(self, patches: Patches, provider: Any = None) -> None:
        """Listen. Code that inspects, replaces or shuts down a provider's processors finds none of ours.

        `provider` is the one that exists already.
        """
        made_ids.install(patches, provider)
        for cls in (SynchronousMultiSpanProcessor, ConcurrentMultiSpanProcessor):
            patches.wrap(cls, "on_start", self._on_start)
            patches.wrap(cls, "on_end", self._on_end)

    def follow(self, run: Run, forward: Callable[[ReadableSpan], None]) -> None:
        """Continue for another run: this process was forked from that of the first one."""
        self._run, self._forward = run, forward
        self._above, self._remote_traces = {}, {}
        run.others = self

    def find(self, span: Any) -> SpanContext | None:
        """A span as the recording will contain it, for a call below it; None if the recording won't contain it."""
        context: SpanContext = span.get_span_context()
        if type(span) is NonRecordingSpan:
            return context if context.is_remote and context.is_valid else None
        above = self._above.get(context.span_id)
        if above is None:
            if not self._foreign and not isinstance(span, Span) and span.is_recording():
                self._foreign = name_class(span)
            return None
        return make_span_context(above, context.span_id)

    def name_unheard(self) -> str:
        """The class of the program's spans or provider if these are not the SDK's and not heard; otherwise ""."""
        if self._foreign or self._has_heard:
            return self._foreign
        return name_foreign()

    def for_manifest(self) -> dict[str, str]:
        """The manifest's members about spans that could not be heard."""
        unheard = guard.guarded("the program's provider", self.name_unheard)
        return {NOT_HEARD: unheard} if unheard else {}

    def _on_start(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        span = args[0] if args else kwargs.get("span")
        context = args[1] if len(args) > 1 else kwargs.get("parent_context")
        guard.guarded("a span of another instrumentor", lambda: self._hearer()._hear_start(span, context))
        return wrapped(*args, **kwargs)

    def _on_end(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        span = args[0] if args else kwargs.get("span")
        # Taken out first: a processor may hold others, which hear of the span in between
        hearer = guard.guarded("a span of another instrumentor", self._hearer, span) or self
        heard = guard.guarded("a span of another instrumentor", hearer._take, span)
        try:
            return wrapped(*args, **kwargs)
        finally:
            # After all processors of the program: some complete a span at its end (OpenInference for pydantic-ai)
            if heard is not None:
                guard.guarded("a span of another instrumentor", hearer._hear_end, span, *heard)

    def _hearer(self, ended: Any = None) -> OtherSpans:
        """The hearer of a span that starts or ends here: that of the unit that the calling code works for."""
        run = active_run()
        others = None if run is None else run.others
        if not isinstance(others, OtherSpans) or (
            ended is not None and ended.get_span_context().span_id not in others._above
        ):
            return self
        return others

    def _hear_start(self, span: Any, parent_context: Any) -> None:
        if is_off():
            return
        context: SpanContext = span.get_span_context()
        if span.parent is None:
            self.first_trace = self.first_trace or context.trace_id
        if not context.trace_flags.sampled:
            return
        if len(self._above) >= OPEN_SPANS_MAX:
            self._run.count(NOT_KEPT)
            return
        self._above[context.span_id] = self._find_above(span.parent, parent_context)
        self._has_heard = True

    def _find_above(self, parent: SpanContext | None, parent_context: Any) -> SpanContext:
        call = find_call_above(self._run, parent_context)
        if call is not None:
            return call
        if parent is None:
            return self._run.span_context
        if parent.is_remote:
            self._keep_trace(parent.trace_id)
            return parent
        known = self._above.get(parent.span_id)
        if known is not None:
            return make_span_context(known, parent.span_id)
        if parent.trace_id in self._remote_traces:  # its parent has ended, or it began before us
            return parent
        return make_span_context(self._run.span_context, parent.span_id)

    def _keep_trace(self, trace_id: int) -> None:
        self._remote_traces[trace_id] = None
        if len(self._remote_traces) > REMOTE_TRACES_MAX:
            self._remote_traces.pop(next(iter(self._remote_traces)), None)

    def _take(self, span: ReadableSpan) -> tuple[SpanContext, SpanContext] | None:
        """The contexts of an ending span and of its parent; None if it is not to be recorded, or is already."""
        context = span.get_span_context()
        above = None if context is None else self._above.pop(context.span_id, None)
        return None if context is None or above is None else (context, above)

    @measured
    def _hear_end(self, span: ReadableSpan, context: SpanContext, above: SpanContext) -> None:
        copy = ReadableSpan.__new__(ReadableSpan)
        copy.__dict__.update(span.__dict__)
        copy._context = SpanContext(above.trace_id, context.span_id, False, context.trace_flags, context.trace_state)
        copy._parent = above
        self._forward(copy)
