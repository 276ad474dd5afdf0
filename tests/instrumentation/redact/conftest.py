"""Redactors with a fixed key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spanreplay.redact import Redactor, RunRedactor

KEY = b"k" * 32


@pytest.fixture
def make_run() -> Callable[[], RunRedactor]:
    """Make redactors that share a key but no memory."""
    return Redactor(KEY, "k").run


@pytest.fixture
def run(make_run: Callable[[], RunRedactor]) -> RunRedactor:
    """One run's redactor."""
    return make_run()
