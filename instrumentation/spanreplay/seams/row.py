"""One row of the table of seams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_NONE: Final = "–"


@dataclass(frozen=True)
class Seam:
    """One library: which module's import triggers which of our modules, and what it then records.

    The seam's module has `install(module, patches)`; it raises if the library is not as expected. The texts are what
    the pages of docs/frameworks and docs/reference are made of, in Markdown: one line each.
    """

    name: str
    distribution: str
    triggers: tuple[str, ...]
    implementation: str
    records: str
    kind: str = _NONE
    """The kind of the boundary."""
    effect: str = _NONE
    """What a call may do to the world."""
    lanes: str = "the task, thread or pool call that it is made in"
    """How the lane of a call is named, and what identifies the call beside its place."""
    versions: str = "any"
    """The versions of the distribution that are supported; the tested ones are read from what the tests pin."""
    omits: str = "nothing known"
    """What is not recorded."""
    page: str = ""
    """The page of docs/frameworks that tells of it; by default one of its distribution's name."""
