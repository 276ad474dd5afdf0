"""The spans of other instrumentors in a spool, in a form in which a recording and its replay can be compared.

A span is described by its scope, name, kind, status, attributes, events, links, and by the names of the spans
above it. Its ids and times are left out, and ids in its texts are masked.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model import attributes as names
from spanreplay.model.ids import is_agent_file
from spanreplay.recording.otlp.otlp import decode_attributes
from spanreplay.recording.spool import iter_frames

OPENINFERENCE: Final = "openinference."

_OPAQUE: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUIDs that a library makes for itself
    r"|\b0x[0-9a-f]+|\b[0-9a-f]{16,}\b"
    r"|run_id[\\\": ]+\w+"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?"
)
_CHAINED: Final = re.compile(r"^(?:The above exception was the direct|During handling of the above).*$", re.MULTILINE)
_FRAME: Final = re.compile(r'^  File "(.*)", line .*$', re.MULTILINE)
_BODIES: Final = frozenset({"TOOL", "RETRIEVER"})
"""What frameworks call inside of these kinds of spans is a call's body; their spans know no parents but their own."""
_DRAWN: Final = frozenset({"graph.node.id", "graph.node.parent_id"})
"""Attributes that Agno's instrumentor draws for itself."""
_COUNTED: Final = frozenset({"tool.current_usage_count"})
"""Attributes of a CrewAI tool that threads share: whichever of them is first has the lower number."""


@dataclass(frozen=True)
class _Found:
    span: Span
    scope: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Spans:
    """The spans of some instrumentors in one run, described, and how often each occurs."""

    bodies: Counter[str]
    """Those inside of a call's body, which a replay does not run."""
    others: Counter[str]
    scopes: set[str]
    """The last part of each scope's name: `openai` of `openinference.instrumentation.openai`."""


def read_spans(data_dir: Path, scope: str = OPENINFERENCE) -> dict[str, Spans]:
    """By run: the spans whose scope begins with `scope`."""
    return {run_id: _count(spans, scope) for run_id, spans in _find_spans(data_dir).items()}


def read_attribute(data_dir: Path, run_id: str, scope: str, name: str) -> set[Any]:
    """The values that an attribute has in the spans of one run and scope; None for spans that lack it."""
    found = _find_spans(data_dir)[run_id].values()
    return {each.attributes.get(name) for each in found if each.scope.startswith(scope)}


def _find_spans(data_dir: Path) -> dict[str, dict[bytes, _Found]]:
    runs: dict[str, dict[bytes, _Found]] = {}
    for path in sorted((data_dir / "spool").glob("*.spool")):
        for payload in iter_frames(path):
            for resource_spans in ExportTraceServiceRequest.FromString(payload).resource_spans:
                run_id = str(decode_attributes(resource_spans.resource.attributes).get(names.RUN_ID, ""))
                for scope_spans in resource_spans.scope_spans:
                    for span in scope_spans.spans:
                        found = _Found(span, scope_spans.scope.name, decode_attributes(span.attributes))
                        runs.setdefault(run_id, {})[span.span_id] = found
    return runs


def assert_same_spans(data_dir: Path, run_id: str, scope: str = OPENINFERENCE) -> set[str]:
    """One replay of a run gave its spans again, less those of bodies that it did not run; gives their scopes."""
    runs = read_spans(data_dir, scope)
    recorded = runs.pop(run_id)
    (replayed,) = runs.values()
    assert recorded.others - replayed.others == replayed.others - recorded.others == Counter()
    assert replayed.bodies - recorded.bodies == Counter()
    return recorded.scopes


def _count(spans: Mapping[bytes, _Found], scope: str) -> Spans:
    bodies: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for found in spans.values():
        if found.scope.startswith(scope):
            above = _above(found, spans)
            (bodies if any(map(_is_call, above)) else others)[_describe(found, above)] += 1
    scopes = {found.scope.rpartition(".")[2] for found in spans.values() if found.scope.startswith(scope)}
    return Spans(bodies, others, scopes)


def _above(found: _Found, spans: Mapping[bytes, _Found]) -> list[_Found]:
    above = []
    parent = spans.get(found.span.parent_span_id)
    while parent is not None:
        above.append(parent)
        parent = spans.get(parent.span.parent_span_id)
    return above


def _is_call(found: _Found) -> bool:
    if found.scope == names.SCOPE:
        return found.attributes.get(names.KIND) != "run"
    return found.attributes.get("openinference.span.kind") in _BODIES


def _describe(found: _Found, above: list[_Found]) -> str:
    span = found.span
    described = {
        "scope": found.scope,
        "name": span.name,
        "kind": span.kind,
        "status": [span.status.code, span.status.message],
        "above": [f"{parent.scope} {parent.span.name}" for parent in above],
        "attributes": _read(found.attributes),
        "events": [[event.name, _read(decode_attributes(event.attributes))] for event in span.events],
        "links": [_read(decode_attributes(link.attributes)) for link in span.links],
    }
    return _OPAQUE.sub("·", json.dumps(described, default=repr, ensure_ascii=False))


def _read(attributes: Mapping[str, Any]) -> dict[str, Any]:
    read = {name: attributes[name] for name in sorted(attributes.keys() - _DRAWN - _COUNTED)}
    if "exception.stacktrace" in read:
        read["exception.stacktrace"] = _own_frames(str(read["exception.stacktrace"]))
    return read


def _own_frames(stack: str) -> list[str]:
    """The agent's frames of an error and the error itself: what lies below a transport, no replay goes through."""
    last = _CHAINED.split(stack)[-1]
    frames = [found.group().strip() for found in _FRAME.finditer(last) if is_agent_file(found.group(1))]
    return [*frames, last.strip().rpartition("\n")[2]]
