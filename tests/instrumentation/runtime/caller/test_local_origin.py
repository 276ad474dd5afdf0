"""The file of the code that reads the clock decides whose read it is."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import sys
import uuid
from pathlib import Path
from types import FrameType

import pytest

from spanreplay.runtime.caller.caller import AGENT, FOREIGN, LIBRARY, PASS, classify, is_agent
from spanreplay.runtime.caller.places import places
from support.installing import install

SITE = "/venv/lib/python3.11/site-packages"
NAMESPACE = ("google/adk/agents/llm_agent.py", "google/protobuf/message.py")


@pytest.mark.parametrize(("path", "origin"), [(NAMESPACE[0], AGENT), (NAMESPACE[1], FOREIGN)])
def test_the_list_of_a_distribution_says_whose_a_file_is(path: str, origin: int, tmp_path: Path) -> None:
    """If several distributions share a folder, the one that lists the file owns it."""
    site = tmp_path / "site-packages"
    for name, file in zip(("google-adk", "protobuf"), NAMESPACE, strict=True):
        install(site, name, {file: ""})
    assert classify(str(site / path)) == origin


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("openai/_client.py", FOREIGN),
        ("stranger/main.py", LIBRARY),
        ("stranger/made_later.py", AGENT),
        ("agent.py", AGENT),
        ("bin/agent.py", AGENT),
        ("tools/search.py", AGENT),
    ],
)
def test_a_deployment_package_holds_libraries_beside_the_agent(
    path: str, origin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `pip install --target`, as for AWS Lambda, files that pip lists are libraries, all others the agent's."""
    target = tmp_path / "package"
    install(target, "openai", {"openai/_client.py": "", "bin/openai.py": ""})
    install(target, "stranger", {"stranger/main.py": ""})
    monkeypatch.syspath_prepend(str(target))
    assert classify(str(target / path)) == origin
    assert places().is_outside(str(target / path)) == (origin == AGENT)


def test_a_tree_of_sources_is_the_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `egg-info` beside sources comes from a build, so the sources are the agent's."""
    (tmp_path / "stranger.egg-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert classify(str(tmp_path / "stranger" / "main.py")) == AGENT


@pytest.mark.parametrize(
    ("filename", "origin"),
    [
        ("/srv/agent/agent.py", AGENT),
        ("<stdin>", AGENT),
        ("/tmp/ipykernel_12/3.py", AGENT),
        (f"{SITE}/langchain_core/prompts/chat.py", AGENT),
        (f"{SITE}/langgraph/pregel/main.py", AGENT),
        (f"{SITE}/llama_index/core/base.py", AGENT),
        (f"{SITE}/crewai/task.py", AGENT),
        (f"{SITE}/crewai/events/listeners/tracing/trace_listener.py", FOREIGN),
        (f"{SITE}/crewai_core/token_manager.py", FOREIGN),
        (f"{SITE}/langsmith/client.py", FOREIGN),
        (f"{SITE}/opentelemetry/sdk/trace/__init__.py", FOREIGN),
        (f"{SITE}/httpx/_client.py", FOREIGN),
        (f"{SITE}/pydantic/main.py", PASS),
        (f"{SITE}/pydantic_settings/main.py", LIBRARY),
        (f"{SITE}/a_stranger/main.py", LIBRARY),
        (logging.__file__, FOREIGN),
        (json.__file__, FOREIGN),
        (dataclasses.__file__, PASS),
        (pathlib.__file__, PASS),
        (str(pathlib.Path(uuid.__file__).parent / "pathlib" / "_abc.py"), PASS),
        ("<frozen importlib._bootstrap>", FOREIGN),
        ("<frozen os>", PASS),
        (sys.modules["spanreplay.model.ids"].__file__, FOREIGN),
    ],
)
def test_origin_of_a_file(filename: str, origin: int) -> None:
    """The agent's files, frameworks and libraries are recorded; the standard library, plumbing and ours are not."""
    assert classify(filename) == origin


def _who_asks() -> bool:
    frame: FrameType | None = sys._getframe(1)
    return is_agent(frame)


def test_a_generated_init_asks_for_the_module_of_its_class() -> None:
    """A dataclass's default factory counts as called by the file that defines the class."""

    @dataclasses.dataclass
    class Order:
        is_agent: bool = dataclasses.field(default_factory=_who_asks)

    assert Order().is_agent
    space: dict[str, object] = {"__file__": uuid.__file__, "who": _who_asks}
    exec("result = who()", space)  # noqa: S102 -- code without a file of its own, in a module of the standard library
    assert space["result"] is False
    exec(compile("named = who()", "handle_request", "exec"), space)  # noqa: S102 -- as Sanic names a method that it rewrites
    assert space["named"] is False
