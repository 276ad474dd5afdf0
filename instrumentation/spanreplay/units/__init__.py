"""A run for each unit of work of a process that serves many: where a unit begins and ends, and how it is replayed.

`_table` says where, one row a server or worker; `asgi` and `by_hand` say what a unit is given and what it gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanreplay.units.by_hand import UnitBlock, run

__all__ = ["UnitBlock", "run"]


def __getattr__(name: str) -> object:
    """Load what users ask for when they ask for it."""
    if name not in __all__:
        raise AttributeError(name)
    from spanreplay.units import by_hand

    return getattr(by_hand, name)
