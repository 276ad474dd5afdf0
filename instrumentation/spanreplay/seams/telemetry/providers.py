"""OpenTelemetry's provider in the agent's process: which one there is, and whether the program makes its own.

A provider that the program makes is the program's own and is never changed. One that OpenTelemetry has set up from the
environment exports after redaction (`named_exporters.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from spanreplay.model import config, ids
from spanreplay.model.here import BOOT_PARTS, PACKAGE
from spanreplay.runtime.process.outside_io import starts_program
from spanreplay.seams.telemetry.named_exporters import OTLP_EXPORTERS, find_place, is_otlp_named

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from spanreplay.recording.spool.target import Target

__all__ = [
    "find_provider",
    "is_global",
    "is_sampled",
    "is_starter_ours",
    "make_provider",
    "name_class",
    "name_foreign",
    "watch_exporters",
    "watch_new_providers",
]

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


def is_starter_ours(modules: Mapping[str, Any]) -> bool:
    """Whether `spanreplay` started this Python, not `opentelemetry-instrument`."""
    file = getattr(modules.get("sitecustomize"), "__file__", None)
    return bool(file) and Path(str(file)) == _BOOT


def watch_exporters(patches: Any, target: Target, made: Callable[[], object]) -> None:
    """Call `made` once an OTLP exporter, named by the user or made by the program, may send to the target's address."""
    from wrapt import register_post_import_hook

    if is_otlp_named():
        made()

    place = find_place(target.url)

    def init(wrapped: Any, exporter: Any, args: Any, kwargs: Any) -> Any:
        wrapped(*args, **kwargs)
        if find_place(str(getattr(exporter, "_endpoint", ""))) == place:
            made()

    def wrap(module: Any) -> None:
        patches.wrap(module.OTLPSpanExporter, "__init__", init)

    for protocol in ("http", "grpc"):
        register_post_import_hook(wrap, f"{OTLP_EXPORTERS}.proto.{protocol}.trace_exporter")


def watch_new_providers(patches: Any, made: Callable[[], object]) -> None:
    """Call `made` before the program makes an SDK provider of its own."""
    from opentelemetry.sdk.trace import TracerProvider

    def init(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        made()
        return wrapped(*args, **kwargs)

    patches.wrap(TracerProvider, "__init__", init)
