"""Stores, embedded and behind HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spanreplay_collector.store.store import Store
from support.stores import Front, fresh_chdb_url, fresh_database


@pytest.fixture(scope="session")
def front() -> Iterator[Front]:
    """A ClickHouse server, or a stand-in for one."""
    server = Front()
    yield server
    server.kill()


@pytest.fixture(params=["chdb", "http"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store, on each engine in turn."""
    if request.param == "chdb":
        return fresh_chdb_url()
    server: Front = request.getfixturevalue("front")
    return server.url(fresh_database())


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An empty store with its tables."""
    with Store.open(store_url) as opened:
        opened.migrate()
        yield opened
