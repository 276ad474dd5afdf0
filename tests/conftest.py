"""Set-up of every test: an environment without settings, no network except loopback, a status page."""

from __future__ import annotations

import gc
import os
import signal
import socketserver
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import network, sampling, status

settings.register_profile("no-clock", deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("no-clock")  # the duration of an example only shows how busy the machine is

_SETTING_PREFIXES = ("OTEL_", "SPANREPLAY_", "OPENINFERENCE_", "PHOENIX_", "OPENAI_", "ANTHROPIC_", "LANG")
_SETTINGS = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "FORCE_COLOR",
    "NO_COLOR",
    "CLICOLOR_FORCE",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
)
_KEPT_PREFIX = "SPANREPLAY_TEST_"
"""Settings of the tests themselves, e.g. SPANREPLAY_TEST_CLICKHOUSE_URL."""


def _is_setting(name: str) -> bool:
    upper = name.upper()
    if upper.startswith(_KEPT_PREFIX):
        return False
    return upper.startswith(_SETTING_PREFIXES) or upper in _SETTINGS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --status-file and --status-part."""
    parser.addoption("--status-file", default="", help="write which requirement rows the tests prove")
    parser.addoption("--status-part", default="", help="what a run in another environment found: written, or read")


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment before any fixture of any scope, and deny the network."""
    for name in [n for n in os.environ if _is_setting(n)]:
        del os.environ[name]
    network.deny()
    # A shell's background job ignores SIGINT, and so would every program that a test interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # With the standard library's 5, the kernel resets some of many connections while a busy machine accepts none
    socketserver.TCPServer.request_queue_size = 128
    if hasattr(config, "workerinput"):
        return
    path, part = config.getoption("--status-file"), config.getoption("--status-part")
    if path:
        page = status.StatusPage(Path(path), config, Path(part) if part else None)
        config.pluginmanager.register(page, "spanreplay-status")
    elif part:
        config.pluginmanager.register(status.StatusPart(Path(part)), "spanreplay-status")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that only `make matrix` runs."""
    sampling.leave_out(config, items)


def pytest_collection_finish() -> None:
    """Freeze loaded objects for the garbage collector: with 12,000 tests in memory, each collection takes 0.5 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_environ() -> Iterator[None]:
    """Give each test an environment without settings, and undo its changes."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def python() -> str:
    """The interpreter that runs the tests, for agents in separate processes."""
    return sys.executable
