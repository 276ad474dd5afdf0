"""What tests of the pytest plug-in share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.provider import Provider


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """A model provider that the environment names; gone at the end, or when the test stops it."""
    with Provider() as started:
        for name, value in started.environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CI", raising=False)
        yield started
