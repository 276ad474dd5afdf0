"""Telling the requests of a reporting tool's own threads from those of code that it wraps, or runs."""

from __future__ import annotations

import asyncio
import sysconfig
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from spanreplay.runtime.caller.caller import FRAMES_MAX
from spanreplay.runtime.caller.reporting import is_of_flags, is_sent_by_tool

SITE: Final = Path(sysconfig.get_path("purelib"))
TOOL, SDK, TRANSPORT = "opentelemetry/sdk/sender.py", "groq/sender.py", "httpx/sender.py"
RETRY: Final = "tenacity/sender.py"
URLLIB: Final = f"{sysconfig.get_path('stdlib')}/urllib/sender.py"


def through(*files: str, method: str = "post", asks: Callable[..., bool] = is_sent_by_tool, site: Path = SITE) -> Any:
    """Return a function that asks behind a chain of calls, each in one of these installed files; outermost first."""
    found: list[bool] = []
    inner: Any = None
    for file in reversed(files):
        space: dict[str, Any] = {"call": inner, "found": found, "asks": asks}
        work = (
            "call()"
            if inner
            else f"found.append(asks({method!r}))"
            if asks is is_sent_by_tool
            else "found.append(asks())"
        )
        code = f"def ask():\n    {work}\nasync def aask():\n    {work}\n"
        exec(compile(code, str(site / file), "exec"), space)  # noqa: S102 -- code of that file
        inner = space["ask"]
        inner.found, inner.aask = found, space["aask"]
    return inner


def in_thread(ask: Callable[[], None]) -> None:
    """Run it as a thread's work."""
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()


def in_pool(ask: Callable[[], None]) -> None:
    """Run it as a pool's item."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ask).result()


def in_task(ask: Any) -> None:
    """Run it as a task of a loop that this test runs."""

    async def main() -> None:
        await asyncio.create_task(ask.aask())

    asyncio.run(main())


def in_wrapped_thread(ask: Callable[[], None]) -> None:
    """Run it in a thread whose `run` a tool has wrapped."""
    thread = threading.Thread(target=ask)
    space: dict[str, Any] = {"run": thread.run}
    exec(compile("def wrapper():\n    run()\n", str(SITE / TOOL), "exec"), space)  # noqa: S102 -- code of a tool
    thread.run = space["wrapper"]  # type: ignore[method-assign]
    thread.start()
    thread.join()


@pytest.mark.parametrize("run", [in_thread, in_pool, in_task, in_wrapped_thread])
@pytest.mark.parametrize(
    ("files", "is_report"),
    [
        ((TOOL, TRANSPORT), True),
        ((TOOL, RETRY, TOOL, TRANSPORT), True),
        ((TRANSPORT,), False),
        ((TRANSPORT, TOOL, TRANSPORT), False),
        ((SDK, TOOL, TRANSPORT), False),
        ((TOOL, SDK, TRANSPORT), False),
        (("numpy/sender.py", TOOL, TRANSPORT), False),
        ((URLLIB, TOOL, TRANSPORT), False),
    ],
)
def test_n4_a_report_is_what_a_tool_alone_sends(
    run: Callable[[Any], None], files: tuple[str, ...], is_report: bool
) -> None:
    """A tool that wraps a transport, a model's SDK or a thread does not own their requests."""
    ask = through(*files)
    run(ask)
    assert ask.found == [is_report]


def test_n4_what_the_agent_does_in_a_tools_thread_is_the_agents() -> None:
    """An evaluation runs the agent's functions in threads of its own."""
    found: list[bool] = []

    def task() -> None:
        found.append(is_sent_by_tool("POST"))

    space: dict[str, Any] = {"call": task}
    exec(compile("def ask():\n    call()\n", str(SITE / TOOL), "exec"), space)  # noqa: S102 -- a caller in that file
    in_thread(space["ask"])
    assert found == [False]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize(("tool", "gives"), [("langfuse/sender.py", True), ("elasticapm/sender.py", False)])
def test_n4_what_a_tool_fetches_for_the_agent_is_no_report(method: str, tool: str, gives: bool) -> None:
    """Prompts and flags reach the agent; where a tool runs, it asks for itself."""
    ask = through(tool, TRANSPORT, method=method)
    in_thread(ask)
    assert ask.found == [method == "POST" or not gives]


@pytest.mark.parametrize(
    ("files", "is_so"),
    [
        (("ldclient/sender.py", TRANSPORT), True),
        (("UnleashClient/sender.py", "requests/api.py", TRANSPORT), True),
        ((SDK, TRANSPORT), False),
        (("ldclient/sender.py", SDK, TRANSPORT), False),
        (("ldclient/sender.py", TOOL, TRANSPORT), False),
    ],
)
def test_n4_a_client_of_flags_is_known_by_its_code(files: tuple[str, ...], is_so: bool, tmp_path: Path) -> None:
    """From any thread; what such a client passes to others is theirs."""
    site = tmp_path / "site-packages"
    for name, distribution in (("ldclient", "launchdarkly_server_sdk"), ("UnleashClient", "unleashclient")):
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution.replace('_', '-')}\nVersion: 1.0\n")
        (info / "top_level.txt").write_text(f"{name}\n")
        (info / "RECORD").write_text(f"{name}/sender.py,,\n")
    ask = through(*files, asks=is_of_flags, site=site)
    ask()
    assert ask.found == [is_so]


def test_n4_a_stack_that_is_too_deep_to_be_seen_is_nobodys() -> None:
    """The agent may be further out."""
    ask = through(TOOL, *[TRANSPORT] * FRAMES_MAX)
    in_thread(ask)
    deep = through(*[TOOL] * FRAMES_MAX, TRANSPORT)
    in_thread(deep)
    assert ask.found == deep.found == [False]
