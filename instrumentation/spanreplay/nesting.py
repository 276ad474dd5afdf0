"""Where in the trace a call lies: the span above it, and whether a span of OpenInference shows it already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.context import _RUNTIME_CONTEXT, _SUPPRESS_INSTRUMENTATION_KEY, Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, SpanContext
from opentelemetry.trace.propagation import _SPAN_KEY

from spanreplay.record import OPENINFERENCE_KIND, OPENINFERENCE_KINDS

if TYPE_CHECKING:
    from contextvars import Token

    from spanreplay.run import Run

__all__ = ["enter_span", "find_place", "is_suppressed", "leave_span"]

_LANGCHAIN = "openinference.instrumentation.langchain"
_LANGCHAIN_MODEL_FILES = ("langchain_core/language_models/chat_models.py", "langchain_core/language_models/llms.py")

# The public functions pass through four others each, and all of them are called for every recorded call
_current_context = _RUNTIME_CONTEXT.get_current
_attach = _RUNTIME_CONTEXT.attach
_detach = _RUNTIME_CONTEXT.detach


def is_suppressed() -> bool:
    """Whether instrumentation is switched off here: exporters and our own plumbing."""
    return bool(_current_context().get(_SUPPRESS_INSTRUMENTATION_KEY))


def enter_span(span_context: SpanContext) -> Token[Context]:
    """Make a span current that records nothing itself; give the result to `leave_span`."""
    return _attach(Context({**_current_context(), _SPAN_KEY: NonRecordingSpan(span_context)}))


def leave_span(token: Token[Context]) -> None:
    """Undo `enter_span`; in another context than it was entered in (generators), nothing happens."""
    try:
        _detach(token)
    except ValueError:
        otel_context.detach(token)  # which says so in its way


def find_place(run: Run, kind: str, name: str) -> tuple[SpanContext, bool]:
    """The span above a call made here, and whether an OpenInference span around it shows it already."""
    span: Any = _current_context().get(_SPAN_KEY)
    above = INVALID_SPAN_CONTEXT if span is None else span.get_span_context()
    wanted = OPENINFERENCE_KINDS.get(kind)
    attributes: Any = getattr(span, "attributes", None)
    is_shown = bool(attributes) and wanted is not None and attributes.get(OPENINFERENCE_KIND) == wanted
    langchain = _langchain_span() if _LANGCHAIN in sys.modules else None
    if langchain is not None:
        if wanted is not None and not is_shown:
            # LangChain's spans get their attributes when they end; a tool's span has its name from the start
            is_named = getattr(langchain, "name", None) == name
            is_shown = is_named or (wanted == "LLM" and _is_in_langchain_model())
        if langchain.get_span_context().is_valid:
            return _deeper(above, langchain.get_span_context(), run), is_shown
    return above if above is run.span_context or above.is_valid else run.span_context, is_shown


def _deeper(current: SpanContext, langchain: SpanContext, run: Run) -> SpanContext:
    # A current span of our own or of an SDK's instrumentor lies below LangChain's; only the root lies above it
    is_above = not current.is_valid or current.span_id == run.span_context.span_id
    return langchain if is_above else current


def _langchain_span() -> Any:
    """The span of OpenInference's LangChain instrumentor, which is never the current one (callbacks)."""
    try:
        return sys.modules[_LANGCHAIN].get_current_span()
    except Exception:  # noqa: BLE001 -- another package's private state
        return None


def _is_in_langchain_model(frames_max: int = 60) -> bool:
    frame = sys._getframe(3)
    for _ in range(frames_max):
        if frame.f_code.co_filename.endswith(_LANGCHAIN_MODEL_FILES):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
