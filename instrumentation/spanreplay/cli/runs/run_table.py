"""The table of `spanreplay ls`: in full in a pipe, fitted to the width of a terminal; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spanreplay.cli.runs.states import ENDED, UNKNOWN
from spanreplay.cli.runs.times import format_duration, format_local, format_short
from spanreplay.model.escape import shorten
from spanreplay.recording.catalog import RunSummary, is_child

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["build_table", "fit", "short_ids"]

RUN_ID_CHARACTERS_MIN: Final = 13
"""A UUIDv7's first 13 characters are its millisecond and version."""
CELL_CHARACTERS_MAX: Final = 32
TOOLS_CHARACTERS_MAX: Final = 48
_STATUS_CHARACTERS_MAX: Final = 10
_GAP: Final = 2
_WIDE: Final = 100
"""Terminal width, in columns, from which the year is shown."""
_STYLE: Final = {"ok": "green", "error": "red", "incomplete": "yellow", "running": "cyan", "waiting": "yellow"}
_RIGHT: Final = frozenset({"CALLS", "TOKENS", "TIME"})
_LEAST: Final = {"APP": 8, "USER": 8, "TOOLS": 12}
"""Minimum width of the columns that can be cut."""
_BY_WORTH: Final = ("RUN", "STARTED", "STATUS", "APP", "CALLS", "USER", "TIME", "TOKENS", "TOOLS")


@dataclass(frozen=True)
class Column:
    """One column: its heading and its cells."""

    name: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        """The width that shows every cell in full."""
        return max(len(self.name), *map(len, self.cells))


def short_ids(run_ids: list[str]) -> dict[str, str]:
    """Run id → its shortest prefix that is unique among these, at least 13 characters."""
    shortened = {}
    ordered = sorted(set(run_ids))
    for i, run_id in enumerate(ordered):
        shared = 0
        for neighbour in ordered[max(0, i - 1) : i] + ordered[i + 1 : i + 2]:
            pairs = zip(run_id, neighbour, strict=False)
            same = next((n for n, (mine, other) in enumerate(pairs) if mine != other), len(run_id))
            shared = max(shared, same)
        shortened[run_id] = run_id[: max(RUN_ID_CHARACTERS_MIN, shared + 1)]
    return shortened


def fit(columns: Sequence[Column], width: int) -> dict[str, int]:
    """Column → width, for the columns that fit; run, start and status are never cut."""
    by_name = {column.name: column for column in columns}
    widths: dict[str, int] = {}
    left = width + _GAP
    for name in _BY_WORTH:
        least = min(by_name[name].width, _LEAST.get(name, by_name[name].width))
        if least + _GAP <= left or name in _BY_WORTH[:4]:
            widths[name] = least
            left -= least + _GAP
    for name in _LEAST:
        if name in widths and left > 0:
            more = min(left, by_name[name].width - widths[name])
            widths[name] += more
            left -= more
    return widths


def _columns(found: Sequence[RunSummary], states: Mapping[str, str], width: int) -> list[Column]:
    """The columns of the table. `width`: of the terminal; 0 for a pipe."""
    ids = short_ids([s.root.run_id for s in found])
    is_narrow = 0 < width < _WIDE
    rows = [
        (
            ids[s.root.run_id] if width else s.root.run_id,
            format_short(s.root.start_ns) if is_narrow else format_local(s.root.start_ns),
            shorten(s.root.app, CELL_CHARACTERS_MAX) + _role(s),
            describe_status(s, states),
            f"{s.calls}",
            f"{s.tokens_in + s.tokens_out:,}",
            format_duration(s.root.end_ns - s.root.start_ns) if s.root.end_ns > s.root.start_ns else "",
            shorten(s.root.user_id, CELL_CHARACTERS_MAX),
            shorten(", ".join(s.tools), TOOLS_CHARACTERS_MAX),
        )
        for s in found
    ]
    names = ("RUN", "STARTED", "APP", "STATUS", "CALLS", "TOKENS", "TIME", "USER", "TOOLS")
    return [Column(name, cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)]


def _role(summary: RunSummary) -> str:
    return " (replay)" if summary.root.replay_of else " (child)" if is_child(summary.root) else ""


def describe_status(summary: RunSummary, states: Mapping[str, str]) -> str:
    """Running, waiting, or how the run ended, with the signal that ended it if any."""
    state = states.get(summary.root.run_id, ENDED)
    if state not in (ENDED, UNKNOWN):
        return state
    ended_by = (summary.root.manifest or {}).get("ended_by")
    return shorten(str(ended_by), _STATUS_CHARACTERS_MAX) if ended_by and summary.status == "ok" else summary.status


def build_table(found: Sequence[RunSummary], states: Mapping[str, str], width: int) -> Table:
    """Build the table with a line for each run. `width`: of the terminal; 0 for a pipe."""
    from rich.table import Table
    from rich.text import Text

    columns = _columns(found, states, width)
    widths = fit(columns, width) if width else {column.name: column.width for column in columns}
    shown = [column for column in columns if column.name in widths]
    table = Table(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold" if width else "", show_edge=False
    )
    for column in shown:
        is_number = column.name in _RIGHT
        table.add_column(column.name, justify="right" if is_number else "left", no_wrap=True, width=widths[column.name])
    for number in range(len(found)):
        cells = [(column.name, column.cells[number]) for column in shown]
        table.add_row(*(Text(cell, style=_STYLE.get(cell, "") if name == "STATUS" else "") for name, cell in cells))
    return table
