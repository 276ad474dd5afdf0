"""The levels of recording as the doctor lists them: which groups of patches each has, and how much one agent got."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanreplay.cli.diagnose import OFF, OK, Finding
from spanreplay.model.levels import LEVELS, level_of
from spanreplay.seams.table import SEAMS

__all__ = ["describe_levels", "describe_patches"]


def describe_levels(environ: Mapping[str, str]) -> list[Finding]:
    """One line a level, the lowest first: its groups, of a higher level those that it adds."""
    chosen = level_of(environ)
    found: list[Finding] = []
    known: set[str] = set()
    for level in LEVELS.values():
        groups = [name for name in level.groups(seam.name for seam in SEAMS) if name not in known]
        count = f"{len(groups)} {'more ' if known else ''}groups of patches"
        hint = "" if level is chosen else f"SPANREPLAY_LEVEL={level.name} chooses it"
        mark = OK if level is chosen else OFF
        found.append(Finding(mark, f"level {level.name}", f"{count}: {', '.join(groups)}", hint))
        known.update(groups)
    return found


def describe_patches(report: Any) -> list[Finding]:
    """How many attributes each group has replaced in an agent that was run, at its level."""
    patches = report.get("patches") if isinstance(report, dict) else None
    if not isinstance(patches, dict) or not patches:
        return []
    counts = {str(name): count for name, count in patches.items() if isinstance(count, int)}
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    message = f"at level {report.get('level')}, {len(counts)} groups replaced {sum(counts.values())} attributes"
    return [Finding(OK, "patches", f"{message}: {listed}")]
