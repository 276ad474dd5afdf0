"""Hosts and paths of other tools' telemetry: no boundary. Passed through when recording, black-holed in replay."""

from __future__ import annotations

from typing import Final

HOST_SUFFIXES: Final = (
    "api.agno.com",
    "api.smith.langchain.com",
    "app.posthog.com",
    "datadoghq.com",
    "datadoghq.eu",
    "i.posthog.com",
    "ingest.sentry.io",
    "ingest.us.sentry.io",
    "langfuse.com",
    "logfire-api.pydantic.dev",
    "os-api.agno.com",
    "scarf.sh",
    "telemetry.crewai.com",
)
PATHS: Final = ("/v1/traces", "/v1/metrics", "/v1/logs")


def is_telemetry(host: str, path: str) -> bool:
    """Whether a request reports about the agent instead of working for it."""
    if path.endswith(PATHS):
        return True
    return any(host == suffix or host.endswith("." + suffix) for suffix in HOST_SUFFIXES)
