"""A replay service over an in-memory store that holds two runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spanreplay.recording.remote.client import ServiceCatalog
from spanreplay_service.server import ReplayServer
from support.memory_store import MemoryStore, fill
from support.service import serve


@pytest.fixture
def store() -> MemoryStore:
    """A store with two runs of the default tenant."""
    store = MemoryStore()
    fill(store, 1, 2)
    return store


@pytest.fixture
def server(store: MemoryStore) -> Iterator[ReplayServer]:
    """A service over that store."""
    with serve(store) as running:
        yield running


@pytest.fixture
def catalog(server: ReplayServer) -> Iterator[ServiceCatalog]:
    """A client of that service."""
    with ServiceCatalog(server.address, timeout_s=30) as client:
        yield client
