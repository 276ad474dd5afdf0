"""Fixtures that the end-to-end tests share: a provider and a directory to work in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import CURRENT
from support.provider import Provider
from support.replaying import Workplace


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A model provider that runs for the length of the test, unless the test stops it."""
    with Provider() as running:
        yield running


@pytest.fixture
def workplace(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the environment of an ordinary agent."""
    return Workplace(tmp_path, agent_environ(provider, tmp_path))


def agent_environ(provider: Provider, path: Path) -> dict[str, str]:
    """The variables that an ordinary agent's user sets."""
    return {
        **provider.environ(),
        "AGENT_DB": str(path / "notes.db"),
        "AGENT_MCP_SERVER": str(CURRENT.parent / "mcp-server-time"),
    }
