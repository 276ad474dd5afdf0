"""The owner of each code file: the agent, a framework, a library, or nobody.

The agent is all code that is not installed, and the distribution from which the process was started. Every other
distribution is a library, which works for the agent, unless a row here says that it is plumbing: code that carries
traffic, serves, measures or reports. `SPANREPLAY_AGENT` and `SPANREPLAY_PLUMBING` take precedence over all of this.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final

from spanreplay.model import config
from spanreplay.model import distributions as installed

FOREIGN: Final = 0
AGENT: Final = 1
PASS: Final = 2
LIBRARY: Final = 3
FRAMEWORK: Final = 4


def compile_row(names: str) -> re.Pattern[str]:
    """Compile a pattern that fully matches one of these distributions; `*` stands for any characters."""
    return re.compile("|".join(re.escape(each).replace(r"\*", ".*") for each in names.split()))


FRAMEWORKS: Final = compile_row(
    """
    agno aiosqlite arrow autogen autogen-* backoff beeai-framework crewai crewai-* diskcache dspy dspy-* faker
    google-adk haystack haystack-ai langchain langchain-* langgraph langgraph-* letta letta-* llama-index llama-index-*
    mem0 mem0ai nanoid pendulum py-ulid pydantic-ai pydantic-ai-* python-ulid qdrant-client requests-cache
    semantic-kernel shortuuid smolagents stamina strands strands-* tenacity ulid ulid-py
    """
)
"""Distributions whose reads of the clock and of random sources are compared one by one, like the agent's own."""
RETRIES: Final = compile_row("backoff retry retrying stamina tenacity")
"""Distributions that repeat what their caller does."""
PASSES: Final = compile_row(
    """
    attr attrs blockbuster dataset docx fpdf fpdf2 icalendar openpyxl pandas peewee pptx pydantic pydantic-core pypdf
    python-docx python-pptx reportlab sqlalchemy sqlite-utils wrapt xlsxwriter
    """
)
"""Distributions that only carry out their caller's wishes, so that their reads are the caller's. Some put the time, or
random values, into the documents that they make."""
TELEMETRY: Final = compile_row(
    """
    agentops arize-phoenix arize-phoenix-* braintrust coverage ddtrace debugpy elastic-apm elasticapm langfuse langsmith
    lmnr logfire logfire-* newrelic openinference-* openlit opentelemetry opentelemetry-* opik posthog pydevd scarf
    sentry-sdk statsd traceloop traceloop-* wandb weave prometheus-client datadog
    """
)
"""Distributions that report about the agent instead of working for it."""
FLAGS: Final = compile_row(
    "configcat-client flagsmith growthbook launchdarkly-server-sdk splitio-client statsig statsig-* unleashclient"
)
"""Distributions that fetch feature flags for the agent, and report which of them it has asked for."""
GIVING: Final = compile_row(
    "arize-phoenix arize-phoenix-* braintrust langfuse langsmith lmnr openlit opik posthog traceloop-* wandb weave"
)
"""Those of TELEMETRY that also fetch something for the agent: prompts, datasets, flags."""
RUNNERS: Final = compile_row("pytest pytest-* coverage execnet pluggy tox nox hypothesis xdist")
"""Distributions that run and measure tests."""
TRANSPORTS: Final = compile_row(
    """
    aiobotocore aiohttp anyio async-timeout asyncssh boto3 botocore certifi charset-normalizer chardet curl-cffi
    eventlet gevent greenlet grpcio grpcio-* h11 h2 hpack hyperframe httpcore httpcore2 httplib2 httpx httpx2 httpx-*
    idna motor niquests pycurl pymongo requests requests-* s3transfer sniffio sseclient* trio truststore urllib3 uvloop
    websockets wsproto yarl outcome sortedcontainers
    """
)
"""Distributions that carry requests."""
MODEL_SDKS: Final = compile_row(
    """
    anthropic azure-* cohere fireworks-ai google-api-* google-auth google-auth-* google-cloud-* google-genai
    google-generativeai googleapis-common-protos groq huggingface-hub litellm mistralai ollama openai portkey-ai
    protobuf replicate tiktoken together vertexai voyageai
    """
)
"""Distributions that make requests to models: their boundary is the request. A program of such a distribution is still
an agent: litellm's proxy."""
SERVERS: Final = compile_row(
    """
    arq celery cheroot daphne dramatiq fastmcp granian gunicorn hypercorn ipykernel ipython jupyter jupyter-* jupyterhub
    jupyterlab jupyterlab-* kombu billiard mcp nbclient nbconvert notebook papermill portend robyn rq sanic
    tornado uvicorn voila waitress watchfiles watchdog werkzeug langgraph-api langgraph-cli
    """
)
"""Distributions that run other people's code, for each request, job or cell."""
NOTEBOOKS: Final = compile_row(
    "ipykernel ipython jupyter jupyter-* jupyterhub jupyterlab nbclient nbconvert notebook papermill"
)
"""Those that run cells."""
LAUNCHERS: Final = compile_row(
    "cherrypy django fastapi fastapi-* faststream flask litestar procrastinate quart starlette taskiq taskiq-*"
)
"""Frameworks whose commands start an application under a server or as a worker: their work for a request or task
belongs to it, like any library's (ids of tasks that they draw), and the program that was started is the application."""
PROMPTS: Final = compile_row("asttokens executing jedi parso prompt-toolkit pure-eval stack-data")
"""Distributions that help people who type code: they complete it, and show where it failed."""
COMPUTE: Final = compile_row(
    """
    accelerate cffi cupy* cython dask faiss-* jax jaxlib joblib matplotlib numba numpy nvidia-* onnxruntime pip polars
    pyarrow pycparser safetensors scikit-learn scipy sentence-transformers setuptools spacy sympy tensorflow
    threadpoolctl tokenizers torch torch* tqdm transformers triton vllm wheel xgboost
    """
)
"""Distributions that compute, install, or draw a progress bar: the machine determines when they read the clock."""
LOCKS: Final = compile_row("fasteners filelock portalocker")
"""Distributions that make processes wait for each other, with their own files."""
LOGS: Final = compile_row("loguru structlog")
"""Distributions that log the agent's actions, as `logging` does: the time that they show is their caller's, their
files and threads are their own."""
PLUMBING: Final = (TELEMETRY, RUNNERS, TRANSPORTS, MODEL_SDKS, SERVERS, PROMPTS, COMPUTE, LOCKS)
BOOKKEEPING: Final = (
    "agno/api/",
    "crewai/events/",
    "crewai/memory/storage/kickoff_task_outputs",
    "crewai/rag/chromadb/factory",
    "crewai/telemetry/",
    "crewai_cli/",
    "crewai_core/",
    "django/utils/autoreload",
    "haystack/telemetry/",
)
"""Parts of frameworks that keep their own records, in files in the user's home, or that watch the program's files and
start it again; none of this reaches a prompt."""
ASKED: Final = (
    *("IPython/core/interactiveshell", "IPython/core/magic", "IPython/utils/", "gridfs/"),
    *("langsmith/_internal/_uuid", "langsmith/uuid"),
)
"""Parts of SERVERS, TRANSPORTS and TELEMETRY that only carry out their caller's wishes: magics of a cell and programs
that it starts, files kept in MongoDB, with their time, ids of runs that an agent makes for itself."""

SENDING: Final = ("kombu/utils/uuid", "mcp/server/sse", "mcp/server/streamable_http", "tornado/web.")
"""Parts of SERVERS that send others what they draw: ids of sessions and messages, tokens, signed cookies. They are
libraries."""


class _Named:
    """Distributions and modules that a setting names."""

    def __init__(self, setting: str) -> None:
        names = [each.strip() for each in config.read_setting(setting).split(",") if each.strip()]
        self._distributions = frozenset(installed.normalise(each) for each in names)
        self._paths = tuple(each.replace(".", "/") for each in names)

    def has(self, filename: str, distribution: str) -> bool:
        if not self._paths:
            return False
        if distribution and distribution in self._distributions:
            return True
        return any(self._is_at(path, filename) for path in self._paths)

    def _is_at(self, path: str, filename: str) -> bool:
        """Whether a file belongs to the module with this path, in a folder of sys.path or of installed packages."""
        text = filename.replace(os.sep, "/")
        at = text.rfind(f"/{path}")
        if at < 0 or text[at + len(path) + 1 : at + len(path) + 2] not in ("/", "."):
            return False
        folder = filename[:at]
        return folder in sys.path or installed.split_site(filename)[0] == folder


class Owners:
    """Classifies code files by this process's settings, its start and the tables; determined once."""

    def __init__(self) -> None:
        self._agent = _Named("SPANREPLAY_AGENT")
        self._plumbing = _Named("SPANREPLAY_PLUMBING")
        started = installed.find_started()
        is_agent = find_row(started) not in (FOREIGN, PASS) and not is_among(started, (LAUNCHERS,))
        self.started = started if is_agent or is_among(started, (MODEL_SDKS,)) else ""
        """The distribution from which this process was started, if that is an agent."""

    def classify(self, filename: str) -> int:
        """AGENT, FRAMEWORK, LIBRARY, PASS or FOREIGN for a code file that is neither Python's nor ours."""
        distribution = installed.find_distribution(filename)
        if self._agent.has(filename, distribution):
            return AGENT
        if self._plumbing.has(filename, distribution):
            return FOREIGN
        if not distribution or distribution == self.started:
            return AGENT
        below = installed.split_site(filename)[1]
        if below.startswith(BOOKKEEPING):
            return FOREIGN
        if below.startswith(ASKED):
            return PASS
        if below.startswith(SENDING):
            return LIBRARY
        return find_row(distribution)


def find_row(distribution: str) -> int:
    """Classify a distribution by the tables: FRAMEWORK, PASS or FOREIGN; LIBRARY if none names it."""
    if FRAMEWORKS.fullmatch(distribution):
        return FRAMEWORK
    if PASSES.fullmatch(distribution) or LOGS.fullmatch(distribution):
        return PASS
    return FOREIGN if is_among(distribution, PLUMBING) else LIBRARY


def is_among(distribution: str, rows: tuple[re.Pattern[str], ...]) -> bool:
    """Whether one of these rows names a distribution."""
    return any(row.fullmatch(distribution) is not None for row in rows)


def starts_application() -> bool:
    """Whether an installed program has started this process: the code of the application is elsewhere.

    What lies beside a notebook is mostly its data.
    """
    started = installed.find_started()
    return bool(started) and not is_among(started, (NOTEBOOKS,))


_owners: list[Owners] = []


def owners() -> Owners:
    """The owners of this process's code; determined at the first call."""
    if not _owners:
        _owners.append(Owners())
    return _owners[0]


def forget_owners() -> None:
    """Determine the owners anew at the next call, because the settings may have changed."""
    _owners.clear()
