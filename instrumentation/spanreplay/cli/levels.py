"""The doctor's list of recording levels: the groups of patches in each, and the patches applied in one agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanreplay.cli.diagnose import OFF, OK, Finding
from spanreplay.model.levels import LEVELS, level_of
from spanreplay.seams.table import SEAMS

__all__ = ["describe_levels", "describe_patches"]


def describe_levels(environ: Mapping[str, str]) -> list[Finding]:
    """One line per level, lowest first: its groups; for a higher level only the groups that it adds."""
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
    """The number of attributes that each group replaced in the agent that was run, and its level."""
    patches = report.get("patches") if isinstance(report, dict) else None
    if not isinstance(patches, dict) or not patches:
        return []
    counts = {str(name): count for name, count in patches.items() if isinstance(count, int)}
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    message = f"at level {report.get('level')}, {len(counts)} groups replaced {sum(counts.values())} attributes"
    return [Finding(OK, "patches", f"{message}: {listed}")]
