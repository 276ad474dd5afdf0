"""Explains what a replayed unit lacks: the state that earlier units left in their process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from spanreplay.model.attributes import UNIT, UNITS_BEFORE
from spanreplay.replayer.divergence import Divergence

__all__ = ["hint_at_earlier_units"]

_UNDEFINED: Final = re.compile(r"name '\w+' is not defined")
"""The error of a notebook cell if an earlier cell would have defined a name."""


def _count_before(environment: Mapping[str, Any]) -> int:
    """Return how many units the process had begun before this unit; 0 for a run that is not a unit."""
    stated = environment.get(UNIT)
    before = stated.get(UNITS_BEFORE) if isinstance(stated, Mapping) else None
    return before if isinstance(before, int) else 0


def hint_at_earlier_units(
    divergences: Sequence[Divergence], environment: Mapping[str, Any], warm_up: Mapping[str, Any] | None = None
) -> list[Divergence]:
    """Return the divergences; the first one's hint mentions earlier units whose state the replay lacks.

    `warm_up` is the verdict's member about the units that were replayed first.
    """
    replayed = 0 if warm_up is None else sum(not unit["why"] for unit in warm_up["units"])
    before = _count_before(environment) - replayed
    if not divergences or before < 1:
        return list(divergences)
    units = "1 unit" if before == 1 else f"{before} units"
    more = " more" if replayed else ""
    left = "it" if before == 1 else "they"
    hint = f"{units}{more} of its process came before, but what {left} left in memory is missing here"
    first, *rest = divergences
    name = next((found[0] for each in first.diff if (found := _UNDEFINED.search(str(each.now)))), "")
    if name:
        hint = f"{name} without them: {hint}" if before > 1 else f"{name} without it: {hint}"
    return [replace(first, hint="; ".join(filter(None, (first.hint, hint)))), *rest]
