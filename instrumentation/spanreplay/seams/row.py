"""One row of the table of seams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_NONE: Final = "–"


@dataclass(frozen=True)
class Seam:
    """One library: the modules whose import triggers the seam, the module that implements it, and what it records.

    The seam's module has `install(module, patches)`; it raises if the library is not as expected. The pages of
    docs/frameworks and docs/reference are generated from the texts, in Markdown: one line each.
    """

    name: str
    distribution: str
    triggers: tuple[str, ...]
    implementation: str
    records: str
    kind: str = _NONE
    """The kind of the boundary."""
    effect: str = _NONE
    """The effect that a call may have on the world."""
    lanes: str = "the task, thread or pool call that it is made in"
    """How the lane of a call is named, and what identifies the call besides its place."""
    versions: str = "any"
    """The versions of the distribution that are supported; the tested ones are read from what the tests pin."""
    omits: str = "nothing known"
    """Parts of the library that are not recorded."""
    page: str = ""
    """The page of docs/frameworks that describes it; by default one named after its distribution."""
