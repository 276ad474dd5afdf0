"""OpenTelemetry's provider in the agent's process: which one there is, and what its exporters receive.

A provider that the program makes is the program's own and is never changed. One that OpenTelemetry has set up from the
environment exports after redaction; its default export, and one to the address that we ship to, is replaced by ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from opentelemetry import trace

from spanreplay.model import config, ids
from spanreplay.model.here import BOOT_PARTS, PACKAGE
from spanreplay.runtime.process.outside_io import starts_program

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from spanreplay.recording.spool.target import Target
    from spanreplay.redact import RunRedactor

__all__ = [
    "find_provider",
    "is_global",
    "is_sampled",
    "is_starter_ours",
    "make_provider",
    "name_class",
    "name_foreign",
    "redact_exports",
    "watch_exporters",
    "watch_new_providers",
]

_OTLP_EXPORTERS: Final = "opentelemetry.exporter.otlp"
_NAMED_BY: Final = "OTEL_TRACES_EXPORTER"
_BOOT: Final = Path(PACKAGE, *BOOT_PARTS, "sitecustomize.py")


def find_provider() -> TracerProvider | None:
    """The process's SDK provider, or a new one that nobody else sees; None if there is to be none.

    A provider that is not the SDK's stays the program's: the recording does not use it.
    """
    from opentelemetry.sdk.trace import TracerProvider

    if config.read_flag("OTEL_SDK_DISABLED"):
        return None
    provider = trace.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else make_provider()


def make_provider() -> TracerProvider:
    """A provider with the sampler and the resource that the environment names, which exports nothing."""
    from opentelemetry.sdk.trace import TracerProvider

    class Provider(TracerProvider):
        def _handle_fork(self) -> None:
            # It looks for the resource in threads, and gevent's would have other greenlets go on in the child
            if not starts_program(sys._getframe(1)):
                super()._handle_fork()

    return Provider(shutdown_on_exit=False)


def name_foreign() -> str:
    """The class of the program's global provider if there is one that is not the SDK's; otherwise ""."""
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    if isinstance(provider, (TracerProvider, trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return ""
    return name_class(provider)


def name_class(value: object) -> str:
    """The module and the qualified name of a value's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_sampled(provider: TracerProvider) -> bool:
    """Whether the provider's sampler accepts a run."""
    decision = provider.sampler.should_sample(None, ids.new_trace_id(), "run")
    return bool(decision.decision.is_sampled())  # type: ignore[no-untyped-call]  # untyped in the SDK


def is_global(provider: TracerProvider) -> bool:
    """Whether this is the provider that the program's own code gets when it asks for one."""
    return trace.get_tracer_provider() is provider


def redact_exports(provider: TracerProvider, redactor: RunRedactor, target: Target | None) -> None:
    """Put the exporters that the environment names behind the redactor, and remove the one that we replace."""
    from spanreplay.redact.processor import RedactingSpanProcessor

    named = _was_named()
    processors = provider._active_span_processor._span_processors
    provider._active_span_processor._span_processors = tuple(
        RedactingSpanProcessor(redactor, [each]) for each in processors if not _is_ours_to_do(each, named, target)
    )


def _is_ours_to_do(processor: Any, is_named: bool, target: Target | None) -> bool:
    """Whether this is an OTLP export that nobody named, or that would send each span twice to our target."""
    exporter = getattr(processor, "span_exporter", None)
    if exporter is None:
        exporter = getattr(getattr(processor, "_batch_processor", None), "_exporter", None)
    if not str(type(exporter).__module__).startswith(_OTLP_EXPORTERS):
        return False
    return not is_named or (target is not None and getattr(exporter, "_endpoint", "") == target.url)


def _was_named(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user named an exporter; a distro sets the variable too, after the process has started."""
    try:
        # Linux keeps the environment that the process was started with
        started_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return environ.get(_NAMED_BY, "otlp").strip() not in ("", "otlp")
    return any(
        member.startswith(f"{_NAMED_BY}=".encode()) and member[len(_NAMED_BY) + 1 :].strip() for member in started_with
    )


def is_starter_ours(modules: Mapping[str, Any]) -> bool:
    """Whether `spanreplay` started this Python, not `opentelemetry-instrument`."""
    file = getattr(modules.get("sitecustomize"), "__file__", None)
    return bool(file) and Path(str(file)) == _BOOT


def watch_exporters(patches: Any, target: Target, made: Callable[[], object]) -> None:
    """Call `made` when the program makes an OTLP exporter of its own that sends to the target's host and port."""
    from wrapt import register_post_import_hook

    place = _find_place(target.url)

    def init(wrapped: Any, exporter: Any, args: Any, kwargs: Any) -> Any:
        wrapped(*args, **kwargs)
        if _find_place(str(getattr(exporter, "_endpoint", ""))) == place:
            made()

    def wrap(module: Any) -> None:
        patches.wrap(module.OTLPSpanExporter, "__init__", init)

    for protocol in ("http", "grpc"):
        register_post_import_hook(wrap, f"{_OTLP_EXPORTERS}.proto.{protocol}.trace_exporter")


def _find_place(endpoint: str) -> tuple[str, int | None]:
    """Host and port of an endpoint; gRPC's has no scheme."""
    parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    try:
        port = parts.port
    except ValueError:  # the exporter complains by itself
        port = None
    return parts.hostname or "", port or {"http": 80, "https": 443}.get(parts.scheme)


def watch_new_providers(patches: Any, made: Callable[[], object]) -> None:
    """Call `made` before the program makes an SDK provider of its own."""
    from opentelemetry.sdk.trace import TracerProvider

    def init(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        made()
        return wrapped(*args, **kwargs)

    patches.wrap(TracerProvider, "__init__", init)
