"""Assign each trace to a Phoenix project, once; spans briefly wait for the root span that names it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.recording.otlp.otlp import FiledSpan
from spanreplay_collector import limits
from spanreplay_collector.log.segment_log import Position
from spanreplay_collector.phoenix.transform import (
    INPUT,
    OUTPUT,
    SPAN_KIND,
    Preview,
    is_open_record,
    name_fallback_project,
    name_project,
    read_text,
)

_ASKED: Final = "llm.input_messages."
_ANSWERED: Final = "llm.output_messages."


@dataclass(frozen=True)
class ReadySpan:
    """A span whose project is decided, and its position in the log."""

    project: str
    filed: FiledSpan
    preview: Preview
    position: Position


@dataclass
class _Trace:
    project: str = ""
    asked: str = ""
    asked_ns: int = 1 << 63
    answered: str = ""
    answered_ns: int = -1
    held: list[tuple[FiledSpan, Position]] = field(default_factory=list)
    held_bytes: int = 0
    deadline_s: float = 0.0

    @property
    def preview(self) -> Preview:
        return Preview(self.asked, self.answered)


class TraceBook:
    """Remembers the latest traces; not thread-safe. Spans of one run share a project, whatever their trace."""

    def __init__(
        self,
        *,
        hold_s: float = limits.PHOENIX_HOLD_S,
        held_bytes_max: int = limits.PHOENIX_HELD_BYTES_MAX,
        traces_max: int = limits.PHOENIX_TRACES_MAX,
    ) -> None:
        self._hold_s = hold_s
        self._held_bytes_max = held_bytes_max
        self._traces_max = traces_max
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        self._held_bytes = 0

    @property
    def is_holding(self) -> bool:
        """Whether spans wait for their root."""
        return self._held_bytes > 0

    def oldest_held(self) -> Position | None:
        """Log position of the oldest waiting span."""
        return min((place for t in self._traces.values() for _, place in t.held), default=None)

    def add(self, filed: FiledSpan, position: Position, now_s: float) -> Iterator[ReadySpan]:
        """Add a span; yield it and the spans waiting for it as soon as the project is known."""
        key = filed.run_id or filed.span.trace_id.hex()
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = _Trace(deadline_s=now_s + self._hold_s)
        self._traces.move_to_end(key)
        _note_preview(trace, filed.span)
        if not trace.project:
            trace.project = name_project(filed)
        if not is_open_record(filed.span):
            size = filed.span.ByteSize() + limits.PHOENIX_SPAN_BYTES
            trace.held.append((filed, position))
            trace.held_bytes += size
            self._held_bytes += size
        if trace.project:
            yield from self._release(trace)
        yield from self._make_room()

    def release_waiting(self, now_s: float) -> Iterator[ReadySpan]:
        """Yield the spans whose root did not arrive in time, under the fallback project of their resource."""
        for trace in list(self._traces.values()):
            if trace.held and trace.deadline_s <= now_s:
                yield from self._release(trace)

    def _make_room(self) -> Iterator[ReadySpan]:
        while len(self._traces) > self._traces_max:
            _, trace = self._traces.popitem(last=False)
            yield from self._release(trace)
        if self._held_bytes > self._held_bytes_max:
            for trace in list(self._traces.values()):
                yield from self._release(trace)

    def _release(self, trace: _Trace) -> Iterator[ReadySpan]:
        held, trace.held = trace.held, []
        self._held_bytes -= trace.held_bytes
        trace.held_bytes = 0
        if held and not trace.project:
            trace.project = name_fallback_project(held[0][0].resource)
        for filed, position in held:
            yield ReadySpan(trace.project, filed, trace.preview, position)


def _note_preview(trace: _Trace, span: Span) -> None:
    if read_text(span, SPAN_KIND) != "LLM" or is_open_record(span):
        return
    if span.start_time_unix_nano < trace.asked_ns:
        text = _read_message(span, _ASKED, role="user") or read_text(span, INPUT)
        trace.asked, trace.asked_ns = text[: limits.PHOENIX_PREVIEW_CHARS], span.start_time_unix_nano
    if span.end_time_unix_nano >= trace.answered_ns:
        text = _read_message(span, _ANSWERED) or read_text(span, OUTPUT)
        trace.answered, trace.answered_ns = text[: limits.PHOENIX_PREVIEW_CHARS], span.end_time_unix_nano


def _read_message(span: Span, prefix: str, role: str = "") -> str:
    """The text of the last message with a role."""
    roles: dict[str, str] = {}
    texts: dict[str, str] = {}
    for pair in span.attributes:
        if not pair.key.startswith(prefix):
            continue
        place, _, what = pair.key.removeprefix(prefix).partition(".")
        if what == "message.role":
            roles[place] = pair.value.string_value
        elif what == "message.content" and place.isdecimal():
            texts[place] = pair.value.string_value
    for place in sorted(texts, key=int, reverse=True):
        if texts[place] and (not role or roles.get(place) == role):
            return texts[place]
    return ""
