"""Keys of OpenTelemetry's context that place a call and mark our own work, whatever the version of OpenTelemetry."""

from __future__ import annotations

from typing import Final

from opentelemetry import context, trace

__all__ = ["SPAN", "SUPPRESSION"]


def _find_suppression() -> str:
    """The key that `suppress_instrumentation` sets; private, so that another version may keep it elsewhere."""
    known = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", None)
    if isinstance(known, str):
        return known
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    before = context.get_current()
    with suppress_instrumentation():
        # The longest: a plain name beside it is kept for old versions only
        return max(context.get_current().keys() - before.keys(), key=len, default="suppress_instrumentation")


SPAN: Final[str] = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, context.Context())))
"""Key of the current span."""
SUPPRESSION: Final = _find_suppression()
"""Key of a true value where instrumentation is suppressed: in exporters, and in our own threads."""
