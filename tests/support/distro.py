"""An OpenTelemetry distro and configurator like those of `opentelemetry-distro`, installed into one directory."""

from __future__ import annotations

from pathlib import Path

_MODULE = """
import os
from opentelemetry.instrumentation.distro import BaseDistro
from opentelemetry.sdk._configuration import _OTelSDKConfigurator

class Configurator(_OTelSDKConfigurator):
    pass

class Distro(BaseDistro):
    def _configure(self, **kwargs):
        os.environ.setdefault("OTEL_TRACES_EXPORTER", {exporter!r})
        os.environ.setdefault("OTEL_METRICS_EXPORTER", "none")
        os.environ.setdefault("OTEL_LOGS_EXPORTER", "none")
"""
_ENTRY_POINTS = """
[opentelemetry_distro]
made_distro = made_distro:Distro

[opentelemetry_configurator]
made_distro = made_distro:Configurator
"""


def make_distro(folder: Path, *, exporter: str = "otlp_proto_http") -> dict[str, str]:
    """Install a distro into a folder and return the variables with which Python finds it.

    `exporter` is the distro's default; the real one's is `otlp`.
    """
    site = folder / "site"
    metadata = site / "made_distro-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "made_distro.py").write_text(_MODULE.format(exporter=exporter))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: made-distro\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    return {"PYTHONPATH": str(site)}
