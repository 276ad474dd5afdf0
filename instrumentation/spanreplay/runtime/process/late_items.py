"""Items that the work of a call put into queues after the call had ended: a task that its body made and did not await.

They are in the manifest, under `late`: lane, boundary and index of the call → its items (`runtime.calls.passed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from spanreplay.model.own_threads import make_lock

if TYPE_CHECKING:
    from spanreplay.redact import RunRedactor

__all__ = ["MEMBER", "for_manifest", "items_of", "note"]


class Keeper(Protocol):
    """The run, as far as it is needed here."""

    @property
    def redactor(self) -> RunRedactor:
        """Redacts what is written."""

    def count(self, name: str, by: int = 1) -> None:
        """Add to one of the manifest's counters."""


MEMBER: Final = "late"
ITEMS_MAX: Final = 1_000
"""Per run; the rest is counted."""
_items: Final[WeakKeyDictionary[Keeper, list[tuple[str, list[Any]]]]] = WeakKeyDictionary()
_lock: Final = make_lock()


def _slot(crossing: Any) -> str:
    return f"{crossing.lane.path}|{crossing.boundary}|{crossing.index}"


def note(run: Keeper, crossing: Any, row: list[Any]) -> None:
    """Note an item of a call that has ended."""
    with _lock:
        found = _items.setdefault(run, [])
        is_full = len(found) >= ITEMS_MAX
        if not is_full:
            found.append((_slot(crossing), row))
    if is_full:
        run.count("unpassed")


def for_manifest(run: Keeper) -> dict[str, Any]:
    """Return the manifest's member, redacted; empty without items."""
    with _lock:
        found = list(_items.get(run, ()))
    if not found:
        return {}
    clean = run.redactor.items([row[-1] for _, row in found])
    made: dict[str, list[Any]] = {}
    for (slot, row), item in zip(found, clean, strict=True):
        made.setdefault(slot, []).append([*row[:-1], item])
    return {MEMBER: made}


def items_of(crossing: Any) -> list[list[Any]]:
    """Return the items that came after the end of a call that is served."""
    late = crossing.answers.recording.root.manifest.get(MEMBER)
    found = late.get(_slot(crossing)) if isinstance(late, Mapping) else None
    return found if isinstance(found, list) else []
