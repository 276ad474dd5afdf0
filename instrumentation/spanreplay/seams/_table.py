"""The table of seams: one row a library. A seam's code is imported when its library is."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from wrapt import register_post_import_hook

from spanreplay import guard
from spanreplay._patch import Patches


@dataclass(frozen=True)
class Seam:
    """One library: which module's import triggers which of our modules, and what it then records.

    The seam's module has `install(module, patches)`; it raises if the library is not as expected.
    """

    name: str
    distribution: str
    triggers: tuple[str, ...]
    implementation: str
    records: str


SEAMS: Final[tuple[Seam, ...]] = (
    Seam("clock", "python", ("time",), "spanreplay.local.clock", "reads of the clock by the agent's code"),
    Seam("random", "python", ("random",), "spanreplay.local.randomness", "random numbers of the agent's code"),
    Seam("entropy", "python", ("os", "secrets"), "spanreplay.local.entropy", "`os.urandom` and `secrets`, sealed"),
    Seam("uuid", "python", ("uuid",), "spanreplay.local.uuids", "UUIDs that the agent's code makes"),
    Seam(
        "human", "python", ("builtins", "getpass"), "spanreplay.local.human", "`input()` and `getpass()` of the agent"
    ),
    Seam(
        "subprocess",
        "python",
        ("subprocess", "asyncio"),
        "spanreplay.local.processes",
        "processes that the agent's code starts; in a replay none is started",
    ),
    Seam(
        "sqlite3",
        "python",
        ("sqlite3",),
        "spanreplay.local.database",
        "statements of the agent's code; in a replay no database is opened",
    ),
    Seam("uvloop", "uvloop", ("uvloop",), "spanreplay.seams._uvloop", "nothing by itself: names the lane of each task"),
    Seam(
        "multiprocessing",
        "python",
        ("multiprocessing.process",),
        "spanreplay.seams._multiprocessing",
        "nothing: a process that is started is a hole",
    ),
    Seam("httpx", "httpx", ("httpx",), "spanreplay.seams._httpx", "every request of httpx clients"),
    Seam("httpx2", "httpx2", ("httpx2",), "spanreplay.seams._httpx", "every request of httpx2 clients"),
    Seam("requests", "requests", ("requests",), "spanreplay.seams._requests", "every request of requests sessions"),
    Seam("aiohttp", "aiohttp", ("aiohttp",), "spanreplay.seams._aiohttp", "every request of aiohttp client sessions"),
    Seam("urllib3", "urllib3", ("urllib3",), "spanreplay.seams._urllib3", "every request of urllib3 pools"),
    Seam(
        "botocore",
        "botocore",
        ("botocore.httpsession",),
        "spanreplay.seams._botocore",
        "every request of boto3 and other AWS clients",
    ),
    Seam(
        "files",
        "python",
        ("builtins",),
        "spanreplay.local.files",
        "data files outside of its code that the agent reads",
    ),
    Seam("environ", "python", ("os",), "spanreplay.local.environ", "hashes of the variables that the agent reads"),
    Seam("grpc", "grpcio", ("grpc",), "spanreplay.seams._grpc", "every call of gRPC channels, sync and asyncio"),
    Seam("urllib", "python", ("urllib.request",), "spanreplay.seams._urllib", "every request of urllib's openers"),
    Seam(
        "websockets",
        "websockets",
        ("websockets.asyncio.client", "websockets.sync.client"),
        "spanreplay.seams._websockets",
        "every connection of websockets clients",
    ),
    Seam(
        "langchain-tools",
        "langchain-core",
        ("langchain_core.tools.base",),
        "spanreplay.seams._langchain_tools",
        "the body of every tool",
    ),
    Seam(
        "langchain-retrievers",
        "langchain-core",
        ("langchain_core.retrievers",),
        "spanreplay.seams._langchain_retrievers",
        "the search of every retriever",
    ),
    Seam(
        "langgraph",
        "langgraph",
        ("langgraph.pregel._retry", "langgraph.pregel.retry", "langgraph.pregel.main", "langgraph.pregel"),
        "spanreplay.seams._langgraph",
        "nothing by itself: names the lane of each node",
    ),
    Seam(
        "mcp",
        "mcp",
        ("mcp.client.session", "mcp.shared.jsonrpc_dispatcher"),
        "spanreplay.seams._mcp",
        "every request of an MCP client session",
    ),
    Seam(
        "mcp-transports",
        "mcp",
        ("mcp.client.stdio", "mcp.client.sse", "mcp.client.streamable_http", "mcp.shared._context_streams"),
        "spanreplay.seams._mcp_transports",
        "nothing: in a replay no server is started or dialled",
    ),
)


@dataclass
class Status:
    """What became of one seam in this process: waiting, installed or failed."""

    seam: Seam
    state: str = "waiting"
    reason: str = "its library has not been imported"
    modules: list[str] = field(default_factory=list)


class InstalledSeams:
    """The seams of this process."""

    def __init__(self, on_failure: Callable[[Seam, Exception], None]) -> None:
        self._on_failure = on_failure
        self._patches = Patches()
        self._statuses = [Status(seam) for seam in SEAMS]
        self._is_active = True

    def register(self) -> None:
        """Hook the import of every library of the table; a library that is loaded already is patched now."""
        for status in self._statuses:
            for trigger in status.seam.triggers:
                register_post_import_hook(self._hook(status), trigger)

    def _hook(self, status: Status) -> Callable[[Any], None]:
        def hook(module: Any) -> None:
            if not self._is_active:
                return
            try:
                import_module(status.seam.implementation).install(module, self._patches)
            except Exception as exc:  # noqa: BLE001 -- another library's shape; reported, never raised into its import
                status.state, status.reason = "failed", f"{type(exc).__name__}: {exc}"
                self._on_failure(status.seam, exc)
            else:
                status.state, status.reason = "installed", ""
                status.modules.append(module.__name__)

        return hook

    def uninstall(self) -> None:
        """Restore every original by identity; libraries imported later stay unpatched."""
        self._is_active = False
        self._patches.undo()

    def describe(self) -> list[dict[str, Any]]:
        """One row a seam, for `doctor`."""
        return [
            {
                "seam": s.seam.name,
                "library": s.seam.distribution,
                "version": _version(s.seam.distribution),
                "state": s.state if _version(s.seam.distribution) else "absent",
                "reason": s.reason if _version(s.seam.distribution) else "not installed",
                "records": s.seam.records,
            }
            for s in self._statuses
        ]


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    if distribution == "python":
        return platform.python_version()

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def is_loaded(seam: Seam) -> bool:
    """Whether the library of a seam is imported in this process."""
    return any(trigger in sys.modules for trigger in seam.triggers)


def log_failure(seam: Seam, exc: Exception) -> None:
    """The reaction while recording: count it, say it once."""
    guard.report_failure(f"seam {seam.name}", exc)
