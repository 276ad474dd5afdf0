"""The provider that receives spans while the program has none: recorded, and seen by nobody else.

OpenTelemetry's global provider remains the one that the program sets. Without us, proxy tracers do nothing while there
is none; here they make spans that only the recording gets. Once the program sets a provider, they use that one. Nobody
else sees a span of the stand-in: a span that another provider starts below it, and the headers of a request, have the
parent that they would have without us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from spanreplay.runtime.calls.trace_place import OUTER, find_outer

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from spanreplay.runtime.patches import Patches

__all__ = ["install"]

_TRACER: Final = "_spanreplay_tracer"


def install(patches: Patches, provider: TracerProvider) -> None:
    """Let spans of a program that has no provider come from this one."""
    _StandIn(provider).install(patches)


class _StandIn:
    """The stand-in's tracers, in place of OpenTelemetry's no-op ones."""

    def __init__(self, provider: TracerProvider) -> None:
        provider.sampler = ALWAYS_ON  # the run is sampled as a whole
        self._provider = provider
        self._processor = provider._active_span_processor

    def install(self, patches: Patches) -> None:
        """Patch the proxies, and the functions that could see the stand-in's spans."""
        asked = vars(trace.ProxyTracer)["_tracer"].fget
        give = self._tracer_for

        def find_tracer(proxy: Any) -> Any:
            tracer = asked(proxy)
            return give(proxy) if isinstance(tracer, trace.NoOpTracer) else tracer

        patches.replace(trace.ProxyTracer, "_tracer", property(find_tracer))
        patches.wrap(Tracer, "start_span", self._start_span)
        patches.wrap(CompositePropagator, "inject", _inject)

    def _tracer_for(self, proxy: Any) -> Any:
        tracer = vars(proxy).get(_TRACER)
        if tracer is None:
            scope = (proxy._instrumenting_module_name, proxy._instrumenting_library_version, proxy._schema_url)
            tracer = self._provider.get_tracer(*scope, getattr(proxy, "_attributes", None))
            vars(proxy)[_TRACER] = tracer
        return tracer

    def _start_span(self, wrapped: Any, tracer: Any, args: Any, kwargs: Any) -> Any:
        context = args[1] if len(args) > 1 else kwargs.get("context")
        current = trace.get_current_span(context)
        outer = find_outer(current)
        if tracer.span_processor is self._processor:
            span = wrapped(*args, **kwargs)
            setattr(span, OUTER, current if outer is None else outer)
            return span
        if outer is None:
            return wrapped(*args, **kwargs)
        seen = trace.set_span_in_context(outer, context)
        if len(args) > 1:
            return wrapped(args[0], seen, *args[2:], **kwargs)
        return wrapped(*args, **{**kwargs, "context": seen})


def _inject(wrapped: Any, propagator: Any, args: Any, kwargs: Any) -> Any:
    context: Context | None = args[1] if len(args) > 1 else kwargs.get("context")
    outer = find_outer(trace.get_current_span(context))
    if outer is None:
        return wrapped(*args, **kwargs)
    seen = trace.set_span_in_context(outer, context)
    if len(args) > 1:
        return wrapped(args[0], seen, *args[2:], **kwargs)
    return wrapped(*args, **{**kwargs, "context": seen})
