"""Requests with which other tools report about the agent; they are not boundaries.

Passed through when recording, black-holed in a replay. They are known by the tool that sends them by itself
(`reporting`), or by host and path: a tool may report from the agent's thread, or be another's. For tools that also
provide data to the agent (prompts, datasets), method and path distinguish the reports; their other requests are
boundaries.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from spanreplay.runtime.caller.reporting import is_of_flags, is_sent_by_tool


class Tool(NamedTuple):
    """The hosts that a tool reports to, and the form of its reports."""

    hosts: tuple[str, ...]
    """Its own hosts, and all below them."""
    settings: tuple[str, ...] = ()
    """Environment variables that hold the URL of another host."""
    reports: re.Pattern[str] | None = None
    """The pattern of a report: method, space, path; None if the tool provides no data."""


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
"""A replay's answer to a report: these tools read JSON, if anything."""
_ANSWERS: Final = (
    # Logfire asks whose token it has, wherever its server runs; without a URL it prints no link
    (re.compile(r"GET .*/v1/info$"), b'{"project_name": "", "project_url": ""}'),
)
"""Its answers to questions whose answer a tool reads."""
_ANYWHERE: Final = re.compile(r".*/v1/(traces|metrics|logs)$|/api/\d+/(envelope|store)/?$")
"""OTLP and Sentry, whoever runs the server."""
_OF_FLAGS: Final = re.compile(
    r"/(client/(metrics|register)|bulk|diagnostic|rgstr|log_event|sdk_exception|analytics/flags|metrics/\w+|\w+/bulk)/?$"
)
"""Paths at which clients of feature flags report: Unleash, LaunchDarkly, Statsig, Flagsmith, Split."""


def is_telemetry(method: str, host: str, path: str) -> bool:
    """Whether a request reports about the agent instead of working for it."""
    is_told, settings = _look_up(method.upper(), host, path)
    if is_told or (settings != () and any(host == _host_in(url) for url in map(_read_variable, settings) if url)):
        return True
    return is_sent_by_tool(method) or (_OF_FLAGS.search(path) is not None and is_of_flags())


@lru_cache(maxsize=512)
def _look_up(method: str, host: str, path: str) -> tuple[bool, tuple[str, ...]]:
    """Whether a request is a report by fixed rules, and the variables that may name its host as a tool's."""
    if _ANYWHERE.match(path):
        return True, ()
    asked = f"{method} {path}"
    tools = [tool for tool in TOOLS if tool.reports is None or tool.reports.match(asked)]
    is_told = any(host == own or host.endswith(f".{own}") for tool in tools for own in tool.hosts)
    return is_told, tuple(name for tool in tools for name in tool.settings)


def _read_variable(name: str) -> str | None:
    """The current value of a variable, for each request of the agent; bypasses the patch that notes who reads it."""
    stored: Any = getattr(os.environ, "_data", None)
    if type(stored) is not dict:
        return os.environ.get(name)
    value = stored.get(name.encode())
    return os.fsdecode(value) if isinstance(value, bytes) else None


def answer_report(method: str, path: str) -> tuple[dict[str, str], bytes]:
    """Headers and body with which a replay answers a black-holed request."""
    asked = f"{method.upper()} {path}"
    body = next((answer for pattern, answer in _ANSWERS if pattern.match(asked)), _ANSWER)
    return {"content-type": "application/json", "content-length": str(len(body))}, body


@lru_cache(maxsize=256)
def _host_in(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # the caller's error, not ours
        return None
