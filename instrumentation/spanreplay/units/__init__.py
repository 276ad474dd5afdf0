"""Units of work: in a process that serves many requests or jobs, each one is recorded and replayed as its own run.

`_table` has one row per server or worker, which says where units begin and end; `asgi` and `by_hand` define the
input and output of a unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanreplay.units.by_hand import UnitBlock, run

__all__ = ["UnitBlock", "run"]


def __getattr__(name: str) -> object:
    """Import public names on first use."""
    if name not in __all__:
        raise AttributeError(name)
    from spanreplay.units import by_hand

    return getattr(by_hand, name)
