"""State that threads keep for themselves is found, so that a fork that loses it is noticed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from spanreplay.units.idle_threads import find_kept


def _freeze(*, is_frozen: bool) -> None:
    if is_frozen:
        gc.freeze()
    else:
        gc.unfreeze()


@pytest.fixture(params=["as they are", "frozen"])
def local(request: pytest.FixtureRequest) -> Iterator[threading.local]:
    """A local in which a running thread keeps something."""
    found = threading.local()
    is_kept, is_over = threading.Event(), threading.Event()

    def keep() -> None:
        found.connection = object()
        is_kept.set()
        is_over.wait()

    thread = threading.Thread(target=keep)
    thread.start()
    is_kept.wait()
    was_frozen = gc.get_freeze_count() > 0
    _freeze(is_frozen=request.param == "frozen")
    yield found
    _freeze(is_frozen=was_frozen)
    is_over.set()
    thread.join()


def test_p4_what_a_thread_keeps_is_found_in_frozen_objects_too(local: threading.local) -> None:
    """A forking program may first freeze its objects against garbage collection; they stay frozen."""
    frozen = gc.get_freeze_count()
    assert [count for each, count in find_kept() if each is local] == [1]
    assert bool(gc.get_freeze_count()) == bool(frozen)
