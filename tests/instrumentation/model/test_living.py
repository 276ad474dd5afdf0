"""Weak sets and dictionaries can be read while other threads change them."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary, WeakSet

import pytest

from spanreplay.model.own_threads import living
from spanreplay.seams.machine.sockets import streams

LOOKS = 3000
MANY = 200


class _Thing:
    """Something that can be referred to weakly."""


@pytest.fixture(autouse=True)
def _busy_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def look_while_it_changes(add: Callable[[], object], look: Callable[[], object]) -> None:
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            kept = [add() for _ in range(MANY)]
            del kept

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(LOOKS):
            look()
    finally:
        is_over.set()
        thread.join()


def test_a_weak_set_is_read_while_another_thread_adds_to_it() -> None:
    """Members that stay are always found."""
    things: WeakSet[_Thing] = WeakSet()
    kept = [_Thing() for _ in range(MANY)]
    things.update(kept)

    def add() -> _Thing:
        made = _Thing()
        things.add(made)
        return made

    look_while_it_changes(add, lambda: living(things))
    assert set(kept) <= set(living(things))


def test_a_weak_dictionary_is_read_while_another_thread_adds_to_it() -> None:
    """Keys that stay are always found."""
    things: WeakKeyDictionary[_Thing, int] = WeakKeyDictionary()
    kept = [_Thing() for _ in range(MANY)]
    things.update(dict.fromkeys(kept, 1))

    def add() -> _Thing:
        made = _Thing()
        things[made] = 2
        return made

    look_while_it_changes(add, lambda: living(things))
    assert set(kept) <= set(living(things))


def test_u1_a_descriptor_is_looked_up_while_another_thread_connects() -> None:
    """`select` of one thread does not fail because another one opens a connection."""
    stream = streams.Stream("run", ("127.0.0.1", 1), is_of_process=False)

    def add() -> socket.socket:
        made = socket.socket()
        streams.follow(made, stream)
        made.close()
        return made

    with socket.socket() as kept:
        streams.follow(kept, stream)
        look_while_it_changes(add, lambda: streams.find_any(kept.fileno()))
        assert streams.find_any(kept.fileno()) is stream
