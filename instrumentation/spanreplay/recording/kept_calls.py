"""Keeps the calls of a run in memory, as compact records, so that a test can look at a replay that writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from spanreplay.model import attributes as names
from spanreplay.model.call import Recording, RootRecord
from spanreplay.model.errors import ConfigError
from spanreplay.recording.spool.limits import BUNDLE_BYTES_MAX

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

__all__ = ["KeptCalls"]

_BYTES_MAX: Final = BUNDLE_BYTES_MAX


class _Sink:
    """Takes compact records, as `spool.processor.CallSink` does."""

    def __init__(self, kept: KeptCalls) -> None:
        self.write = kept.keep
        self.owner: object = None

    def adopt(self, owner: object, run_id: str, resource: Resource, scope: InstrumentationScope) -> None:
        """Accept the run's calls; what their spans share is not kept."""
        self.owner = owner


class KeptCalls(SpanProcessor):
    """The calls of one run so far; thread-safe, never raises towards the run."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._records: list[bytes | ReadableSpan] = []
        self._bytes = 0
        self.dropped = 0
        """Calls that were left out: all of them together were larger than a `.replay` file may be."""
        self.call_sink: Any = _Sink(self)

    def keep(self, record: bytes) -> None:
        """Keep one compact record."""
        self._bytes += len(record)
        if self._bytes > _BYTES_MAX:
            self.dropped += 1
        else:
            self._records.append(record)

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a call that has no compact form; the run itself is not a call."""
        if (span.attributes or {}).get(names.KIND) != names.KIND_RUN:
            self._records.append(span)

    def build(self, run_id: str) -> Recording:
        """The calls so far, in start order. Raises: ConfigError if some were left out."""
        from spanreplay.recording.otlp.otlp import RecordingBuilder
        from spanreplay.recording.spool.compact import decode_call
        from spanreplay.recording.spool.encode import encode_span
        from spanreplay.recording.spool.requests import parse_payload

        if self.dropped:
            raise ConfigError(
                f"{self.dropped} calls of this replay were not kept: all of them have more than {_BYTES_MAX} bytes",
                hint="assert over the recording instead: name its file",
            )
        builder = RecordingBuilder(run_id)
        for record in tuple(self._records):
            if isinstance(record, bytes):
                builder.add_call(decode_call(record)[0])
            else:
                builder.add_request(parse_payload(encode_span(record), "this replay"))
        calls = builder.build().calls if self._records else ()
        return Recording(RootRecord(run_id, app=self._app), calls)
