"""Requests with which other tools report about the agent: no boundary.

Passed through when recording, black-holed in replay. Of tools that also give the agent something (prompts, datasets)
the reports are told apart by method and path; the other requests are boundaries.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit


class Tool(NamedTuple):
    """Where a tool is reported to, and with what."""

    hosts: tuple[str, ...]
    """Its own hosts, and all below them."""
    settings: tuple[str, ...] = ()
    """Environment variables that hold the URL of another host."""
    reports: re.Pattern[str] | None = None
    """What a report looks like: method, space, path; None if the tool gives nothing back."""


TOOLS: Final = (
    Tool(
        ("smith.langchain.com",),
        ("LANGSMITH_ENDPOINT", "LANGCHAIN_ENDPOINT"),
        re.compile(r"(POST|PATCH) .*/runs(/batch|/multipart|/[0-9a-f-]{36})?$|POST .*/feedback(/batch)?$|GET .*/info$"),
    ),
    Tool(
        ("langfuse.com",),
        ("LANGFUSE_HOST", "LANGFUSE_BASE_URL"),
        re.compile(r"POST .*/api/public/(ingestion|scores|otel/.*)$|(POST|PATCH) .*/api/public/media(/.*)?$"),
    ),
    Tool(("api.openai.com",), (), re.compile(r"POST /v1/traces/ingest$")),
    Tool(("braintrust.dev",), ("BRAINTRUST_API_URL",), re.compile(r"POST .*/logs3(/overflow)?$")),
    Tool(("huggingface.co",), ("HF_ENDPOINT",), re.compile(r"(HEAD|GET|POST) /api/telemetry(/.*)?$")),
    Tool(("posthog.com",), ("POSTHOG_HOST",)),
    Tool(("sentry.io",)),
    Tool(("agentops.ai", "amplitude.com", "datadoghq.com", "datadoghq.eu", "mixpanel.com", "segment.io")),
    Tool(("logfire-api.pydantic.dev", "logfire-us.pydantic.dev", "logfire-eu.pydantic.dev")),
    Tool(("api.agno.com", "os-api.agno.com", "scarf.sh", "telemetry.crewai.com", "api.honeycomb.io")),
)
_ANSWER: Final = b"{}"
"""What a replay says to a report: these tools read JSON, if anything."""
_ANSWERS: Final = (
    # Logfire asks whose token it has, wherever its server runs; without a URL it prints no link
    (re.compile(r"GET .*/v1/info$"), b'{"project_name": "", "project_url": ""}'),
)
"""What it says to questions whose answer a tool reads."""
_ANYWHERE: Final = re.compile(r".*/v1/(traces|metrics|logs)$|/api/\d+/(envelope|store)/?$")
"""OTLP and Sentry, whoever runs the server."""


def is_telemetry(method: str, host: str, path: str) -> bool:
    """Whether a request reports about the agent instead of working for it."""
    is_told, settings = _look_up(method.upper(), host, path)
    return is_told or (settings != () and any(host == _host_in(url) for url in map(_read_variable, settings) if url))


@lru_cache(maxsize=512)
def _look_up(method: str, host: str, path: str) -> tuple[bool, tuple[str, ...]]:
    """Whether such a request is a report by what is fixed, and the variables that may name its host as a tool's."""
    if _ANYWHERE.match(path):
        return True, ()
    asked = f"{method} {path}"
    tools = [tool for tool in TOOLS if tool.reports is None or tool.reports.match(asked)]
    is_told = any(host == own or host.endswith(f".{own}") for tool in tools for own in tool.hosts)
    return is_told, tuple(name for tool in tools for name in tool.settings)


def _read_variable(name: str) -> str | None:
    """What the environment says now, for each request of the agent: not through what notes who reads a variable."""
    stored: Any = getattr(os.environ, "_data", None)
    if type(stored) is not dict:
        return os.environ.get(name)
    value = stored.get(name.encode())
    return os.fsdecode(value) if isinstance(value, bytes) else None


def answer_report(method: str, path: str) -> tuple[dict[str, str], bytes]:
    """Headers and body with which a replay answers a request that goes nowhere."""
    asked = f"{method.upper()} {path}"
    body = next((answer for pattern, answer in _ANSWERS if pattern.match(asked)), _ANSWER)
    return {"content-type": "application/json", "content-length": str(len(body))}, body


@lru_cache(maxsize=256)
def _host_in(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # not ours to complain about
        return None
