"""Datagrams that libraries tried to send in a replay: dropped, and listed in the verdict as not compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Answers

ADDRESSES_MAX: Final = 20
_dropped: Final[WeakKeyDictionary[Answers, dict[str, None]]] = WeakKeyDictionary()


def note_dropped(session: Answers, address: str) -> None:
    """Note a dropped datagram of a library."""
    known = _dropped.setdefault(session, {})
    if len(known) < ADDRESSES_MAX:
        known[address] = None


def list_dropped(session: Answers) -> tuple[str, ...]:
    """Return the addresses in the order of their first datagram."""
    return tuple(_dropped.get(session, ()))
