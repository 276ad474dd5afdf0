"""The spans of other instrumentors in a spool, in a form in which a recording and its replay can be compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.spool.frames import iter_frames

_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,}\b")
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):.*", re.DOTALL)
_LEFT_OUT: Final = frozenset(
    {
        "exception.stacktrace",  # in a replay it lacks the frames of a tool's body
        "graph.node.id",  # Agno's instrumentor draws it for itself
        "graph.node.parent_id",
        "tool.current_usage_count",  # of a CrewAI tool that threads share, whichever of them is first
    }
)


def iter_spans(file: Path) -> Iterator[tuple[str, Any]]:
    """(scope, span) of everything in one file of a spool, in order of its end."""
    for payload in iter_frames(file):
        message = ExportTraceServiceRequest.FromString(payload)
        for resource_spans in message.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    yield scope_spans.scope.name, span


def framework_spans(file: Path, scope_prefix: str) -> Counter[tuple[Any, ...]]:
    """Name, status, attributes and events of each span of some instrumentors; addresses masked.

    Some attributes are left out, each for its reason.
    """
    return Counter(
        (
            span.name,
            span.status.code,
            _mask(span.status.message),
            _read(span.attributes),
            tuple((event.name, _read(event.attributes)) for event in span.events),
        )
        for scope, span in iter_spans(file)
        if scope.startswith(scope_prefix)
    )


def _read(attributes: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((a.key, _mask(str(a.value))) for a in attributes if a.key not in _LEFT_OUT))


def _mask(text: str) -> str:
    return _TRACEBACK.sub("Traceback", _ADDRESS.sub("0x", text))
