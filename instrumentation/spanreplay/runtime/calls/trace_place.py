"""A call's place in the trace: the span above it, and whether an OpenInference span shows it already.

The call that code runs in has an entry of its own in OpenTelemetry's context. The current span remains the agent's:
attributes it sets, spans it starts below and context it sends to other processes are the same as without us.
"""

from __future__ import annotations

import functools
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags

from spanreplay.recording.otlp.context_keys import SPAN, SUPPRESSION
from spanreplay.recording.spans import OPENINFERENCE_KIND, OPENINFERENCE_KINDS
from spanreplay.runtime.context_variables import reset_variable, set_variable

if TYPE_CHECKING:
    from contextvars import Token

    from spanreplay.runtime.run import Run

__all__ = [
    "OUTER",
    "enter_span",
    "find_call_above",
    "find_outer",
    "find_place",
    "is_suppressed",
    "leave_span",
    "make_span_context",
]

OUTER: Final = "_spanreplay_outer"
"""Attribute of a span that only the recording may see: the span around it."""
_CALL: Final = otel_context.create_key("spanreplay-call")
_LANGCHAIN = "openinference.instrumentation.langchain"
_LANGCHAIN_MODEL_FILES = ("langchain_core/language_models/chat_models.py", "langchain_core/language_models/llms.py")

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

# The public functions each pass through several others, and all of them are called for every recorded call
_variable: Any = getattr(getattr(otel_context, "_RUNTIME_CONTEXT", None), "_current_context", None)
_is_plain = isinstance(_variable, ContextVar)
_current_context: Any = _variable.get if _is_plain else otel_context.get_current
_attach: Any = functools.partial(set_variable, _variable) if _is_plain else otel_context.attach
_detach: Any = functools.partial(reset_variable, _variable) if _is_plain else otel_context.detach


_PROBE = SpanContext(1, 2, False, _SAMPLED)
_NO_STATE = _PROBE.trace_state
_is_tuple_known = tuple(_PROBE) == (1, 2, False, _SAMPLED, _NO_STATE, True)


def make_span_context(above: SpanContext, span_id: int) -> SpanContext:
    """A sampled span of this process below another one, whose trace id is valid."""
    if _is_tuple_known:  # without the checks, which take three times as long
        return tuple.__new__(SpanContext, (above[0], span_id, False, _SAMPLED, _NO_STATE, True))
    return SpanContext(above.trace_id, span_id, False, _SAMPLED)


def is_suppressed() -> bool:
    """Whether instrumentation is suppressed here: exporters and our own plumbing."""
    return bool(_current_context().get(SUPPRESSION))


def enter_span(run: Run, span_context: SpanContext) -> Token[Context]:
    """Make a call the one that code runs in; pass the result to `leave_span`."""
    context = _current_context()
    token: Token[Context] = _attach(Context({**context, _CALL: (run, span_context, context.get(SPAN))}))
    return token


def leave_span(token: Token[Context]) -> None:
    """Undo `enter_span`; no-op in a context other than the one entered (generators)."""
    try:
        _detach(token)
    except ValueError:
        otel_context.detach(token)  # which reports it in its own way


def find_outer(span: Any) -> Any:
    """The span around a span that only the recording may see; None for any other span."""
    try:
        return vars(span).get(OUTER)
    except TypeError:  # it has no `__dict__`
        return None


def find_call_above(run: Run, context: Context | None) -> SpanContext | None:
    """The run's call that a span starts in, unless another span lies between; `context` None is the current one."""
    known = _current_context() if context is None else context
    call: Any = known.get(_CALL)
    if call is None or call[0] is not run:
        return None
    span, around = known.get(SPAN), call[2]
    is_next = span is around or (around is not None and span is find_outer(around))
    above: SpanContext | None = call[1] if is_next else None
    return above


def find_place(run: Run, kind: str, name: str) -> tuple[SpanContext, bool]:
    """The span above a call made here, and whether an OpenInference span around it shows it already."""
    context = _current_context()
    span: Any = context.get(SPAN)
    call: Any = context.get(_CALL)
    is_inside = call is not None and call[0] is run
    above: SpanContext = call[1] if is_inside else run.span_context
    others = run.others
    if others is None:
        return above, False
    heard = None if span is None or (is_inside and span is call[2]) else others.find(span)
    attributes: Any = None if heard is None else getattr(span, "attributes", None)
    above = heard or above
    if not attributes and _LANGCHAIN not in sys.modules:
        return above, False
    wanted = OPENINFERENCE_KINDS.get(kind)
    is_shown = bool(attributes) and wanted is not None and attributes.get(OPENINFERENCE_KIND) == wanted
    langchain = _langchain_span() if _LANGCHAIN in sys.modules else None
    if langchain is not None:
        if wanted is not None and not is_shown:
            # LangChain's spans get their attributes when they end; a tool's span has its name from the start
            is_named = getattr(langchain, "name", None) == name
            is_shown = is_named or (wanted == "LLM" and _is_in_langchain_model())
        # A current span of our own or of an SDK's instrumentor lies below LangChain's; only the root lies above it
        if above.span_id == run.span_context.span_id:
            above = others.find(langchain) or above
    return above, is_shown


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
