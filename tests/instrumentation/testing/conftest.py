"""Fixtures for tests of the pytest plug-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.provider import Provider


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """A model provider named by the environment; stopped at the end, or earlier by the test."""
    with Provider() as started:
        for name, value in started.environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CI", raising=False)
        yield started
