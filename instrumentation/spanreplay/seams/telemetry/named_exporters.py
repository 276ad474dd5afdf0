"""Exporters that the environment names: they stay, behind the redactor, and get none of our spans.

An OTLP exporter may send to the address that recordings are shipped to. If a collector of ours is there, the recording
brings each span of the program, so the exporter sends nothing; any other server is the user's backend.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from spanreplay.model import config
from spanreplay.recording.spool.limits import SHIP_REQUEST_TIMEOUT_MS
from spanreplay.recording.spool.post import Sender

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

    from spanreplay.recording.spool.target import Target
    from spanreplay.redact import RunRedactor
    from spanreplay.runtime.patches import Patches

__all__ = ["OTLP_EXPORTERS", "find_place", "is_otlp_named", "redact_exports"]

OTLP_EXPORTERS: Final = "opentelemetry.exporter.otlp"
_NAMED_BY: Final = "OTEL_TRACES_EXPORTER"


def redact_exports(patches: Patches, provider: TracerProvider, redactor: RunRedactor, target: Target | None) -> None:
    """Put the exporters that the environment names behind the redactor, and remove the one that we replace."""
    from spanreplay.redact.processor import RedactingSpanProcessor

    is_named = bool(_read_named())
    processors = provider._active_span_processor._span_processors
    kept = [each for each in processors if not _is_ours_to_do(_find_exporter(each), is_named, target)]
    for each in kept:
        if target is not None and _sends_to(_find_exporter(each), target):
            _ask_first(each, target)
    provider._active_span_processor._span_processors = tuple(RedactingSpanProcessor(redactor, [each]) for each in kept)


def _find_exporter(processor: Any) -> Any:
    exporter = getattr(processor, "span_exporter", None)
    return exporter if exporter is not None else getattr(_find_batch(processor), "_exporter", None)


def _find_batch(processor: Any) -> Any:
    return getattr(processor, "_batch_processor", None)


def _is_otlp(exporter: Any) -> bool:
    return str(type(exporter).__module__).startswith(OTLP_EXPORTERS)


def _sends_to(exporter: Any, target: Target) -> bool:
    return _is_otlp(exporter) and find_place(str(getattr(exporter, "_endpoint", ""))) == find_place(target.url)


def _is_ours_to_do(exporter: Any, is_named: bool, target: Target | None) -> bool:
    """Whether this is an OTLP export that nobody named, or one to the collector that SPANREPLAY_COLLECTOR names."""
    if not _is_otlp(exporter):
        return False
    is_collector = target is not None and bool(config.read_setting("SPANREPLAY_COLLECTOR"))
    return not is_named or (is_collector and target is not None and getattr(exporter, "_endpoint", "") == target.url)


class _UnlessCollector(SpanExporter):
    """Exports, unless a collector of ours is at the target; asks there before the first export."""

    def __init__(self, exporter: SpanExporter, target: Target) -> None:
        self._exporter = exporter
        self._target = target
        self._is_collector: bool | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._is_collector is None:
            self._is_collector = Sender(self._target).is_collector(SHIP_REQUEST_TIMEOUT_MS / 1000)
        return SpanExportResult.SUCCESS if self._is_collector else self._exporter.export(spans)

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _ask_first(processor: Any, target: Target) -> None:
    """Let the processor's exporter ask first; one whose exporter can't be replaced sends in any case."""
    asking = _UnlessCollector(_find_exporter(processor), target)
    if "span_exporter" in vars(processor):
        processor.span_exporter = asking
    elif hasattr(_find_batch(processor), "_exporter"):
        _find_batch(processor)._exporter = asking


def is_otlp_named() -> bool:
    """Whether the user named an OTLP exporter, so that the OTLP address may be the address of a backend."""
    in_replay = config.read_setting("SPANREPLAY_REPLAY_EXPORTER").split(",")
    return any(name.strip().startswith("otlp") for name in (*_read_named(), *in_replay))


def _read_named(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The exporters that the user named; a distro sets the variable too, after the process has started."""
    try:
        # Linux keeps the environment that the process was started with
        started_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        value = environ.get(_NAMED_BY, "")
        value = "" if value.strip() == "otlp" else value
    else:
        prefix = f"{_NAMED_BY}=".encode()
        value = next((each[len(prefix) :].decode() for each in started_with if each.startswith(prefix)), "")
    return [name for each in value.split(",") if (name := each.strip())]


def find_place(endpoint: str) -> tuple[str, int | None]:
    """Host and port of an endpoint; gRPC's has no scheme."""
    parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    try:
        port = parts.port
    except ValueError:  # the exporter complains by itself
        port = None
    return parts.hostname or "", port or {"http": 80, "https": 443}.get(parts.scheme)
