"""Telling requests in which other tools report on the agent from those that give it something."""

from __future__ import annotations

import json
import sys
import sysconfig

import pytest

from spanreplay.runtime.process.outside_io import is_telemetry_stack
from spanreplay.runtime.wire.telemetry import answer_report, is_telemetry

RUN = "0b6cf7f2-2f8f-4d93-9d1e-7a7c3a6a0c11"
REPORTS = [
    ("POST", "api.smith.langchain.com", "/runs/batch"),
    ("POST", "eu.api.smith.langchain.com", "/runs/multipart"),
    ("PATCH", "api.smith.langchain.com", f"/runs/{RUN}"),
    ("POST", "api.smith.langchain.com", "/runs"),
    ("GET", "api.smith.langchain.com", "/info"),
    ("POST", "api.smith.langchain.com", "/feedback"),
    ("POST", "cloud.langfuse.com", "/api/public/ingestion"),
    ("POST", "us.cloud.langfuse.com", "/api/public/otel/v1/traces"),
    ("POST", "o42.ingest.us.sentry.io", "/api/42/envelope/"),
    ("POST", "sentry.example.com", "/api/42/envelope/"),
    ("POST", "us.i.posthog.com", "/batch/"),
    ("POST", "otel.example.com:4318", "/v1/traces"),
    ("POST", "api.openai.com", "/v1/traces/ingest"),
    ("POST", "api.braintrust.dev", "/logs3"),
    ("HEAD", "huggingface.co", "/api/telemetry/gradio/initiated"),
    ("POST", "api.segment.io", "/v1/batch"),
    ("POST", "collector", "/prefix/v1/logs"),
]
BOUNDARIES = [
    ("GET", "api.smith.langchain.com", f"/runs/{RUN}"),
    ("POST", "api.smith.langchain.com", "/runs/query"),
    ("GET", "api.smith.langchain.com", "/commits/owner/prompt/latest"),
    ("GET", "api.smith.langchain.com", "/feedback"),
    ("GET", "cloud.langfuse.com", "/api/public/v2/prompts/trader"),
    ("GET", "cloud.langfuse.com", "/api/public/datasets/d"),
    ("POST", "api.openai.com", "/v1/chat/completions"),
    ("GET", "huggingface.co", "/api/models/gpt2"),
    ("POST", "api.braintrust.dev", "/btql"),
    ("POST", "notlangfuse.com", "/api/public/ingestion"),
    ("POST", "example.com", "/batch/"),
    ("POST", "example.com", "/runs"),
]


@pytest.mark.parametrize(("method", "host", "path"), REPORTS)
def test_n4_reports_of_other_tools_are_no_boundary(method: str, host: str, path: str) -> None:
    """Reports of LangSmith, Langfuse, OpenAI Agents, Sentry, PostHog and OTLP exporters are not boundaries."""
    assert is_telemetry(method, host, path)
    assert is_telemetry(method.lower(), host, path)


@pytest.mark.parametrize(
    ("method", "path", "members"),
    [
        ("POST", "/v1/traces", set()),
        ("GET", "/info", set()),
        ("get", "/v1/info", {"project_name", "project_url"}),
        ("GET", "/behind/a/proxy/v1/info", {"project_name", "project_url"}),
    ],
)
def test_n4_a_question_of_a_tool_is_answered_with_what_it_reads(method: str, path: str, members: set[str]) -> None:
    """A replay answers with JSON of a stated length; Logfire's token check gets the members that it reads."""
    headers, body = answer_report(method, path)
    assert headers["content-length"] == str(len(body))
    assert set(json.loads(body)) == members


@pytest.mark.parametrize(("method", "host", "path"), BOUNDARIES)
def test_n4_what_such_tools_give_the_agent_is_a_boundary(method: str, host: str, path: str) -> None:
    """Prompts, datasets and queries affect the agent's behaviour."""
    assert not is_telemetry(method, host, path)


@pytest.mark.parametrize("variable", ["LANGSMITH_ENDPOINT", "LANGCHAIN_ENDPOINT"])
def test_n4_a_server_of_ones_own_is_known_by_its_setting(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If LangSmith runs elsewhere, an environment variable gives its address."""
    assert not is_telemetry("POST", "langsmith.corp", "/api/v1/runs/batch")
    monkeypatch.setenv(variable, "https://langsmith.corp/api/v1")
    assert is_telemetry("POST", "langsmith.corp", "/api/v1/runs/batch")
    assert not is_telemetry("GET", "langsmith.corp", "/api/v1/commits/owner/prompt/latest")
    monkeypatch.setenv(variable, "http://[not a url")
    assert not is_telemetry("POST", "langsmith.corp", "/api/v1/runs/batch")


@pytest.mark.parametrize(
    ("package", "is_report"),
    [("agno/api/agent.py", True), ("langsmith/client.py", True), ("agno/agent/agent.py", False)],
)
def test_n4_io_of_packages_that_only_report_is_no_leak(package: str, is_report: bool) -> None:
    """A socket opened on behalf of such a package reports on the agent, whatever library is in between."""
    space: dict[str, object] = {"look": lambda: is_telemetry_stack(sys._getframe(1))}
    exec(compile("found = look()", f"{sysconfig.get_path('purelib')}/{package}", "exec"), space)  # noqa: S102 -- a caller of that file
    assert space["found"] is is_report
