"""What a call prints: kept with its record, and printed again where a replay serves the call and its body does not run.

In a call's meta, under `printed`: rows of text, how many writes made it, and where it stands: behind so many items of a
generator, or so many milliseconds after the start of a coroutine, whose row n is part n of `clocks`. A fourth member
says that the agent had put an object of its own in the place of `sys.stdout`: it is given the text again.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from spanreplay import config
from spanreplay.handovers import STDOUT
from spanreplay.lanes import current_crossing
from spanreplay.run import active_run

if TYPE_CHECKING:
    from spanreplay.crossing import Crossing
    from spanreplay.run import Run

MEMBER: Final = "printed"
_REPLACED: Final = 3


class Printed:
    """What one call has printed so far."""

    __slots__ = ("_run", "characters", "rows")

    def __init__(self) -> None:
        self._run = 0
        self.rows: list[list[Any]] = []
        self.characters = 0

    def add(self, crossing: Crossing, text: str, *, is_replaced: bool) -> None:
        """The body has written this."""
        self.characters += len(text)
        if self.characters > config.PRINTED_CHARACTERS_MAX:
            crossing.spec.hole = crossing.spec.hole or f"more than {config.PRINTED_CHARACTERS_MAX} characters printed"
            return
        at, before = crossing.spec.part, self._run
        self._run = crossing.run.handovers.count_runs(STDOUT)
        is_new = not self.rows or self._run != before or is_replaced != (len(self.rows[-1]) > _REPLACED)
        if crossing.opened_in >= 0:  # a coroutine: each row is a part of its own
            is_new = is_new or not crossing.run.is_now(crossing.clocks[-1])
            at = crossing.mark_printed() if is_new else at
        elif not is_new:
            is_new = self.rows[-1][2] != at
        if not is_new:
            self.rows[-1][0] += text
            self.rows[-1][1] += 1
            return
        self.rows.append([text, 1, at, 1] if is_replaced else [text, 1, at])


def note(text: str, is_replaced: bool) -> None:
    """Standard output was written to: every call that the writing code is inside of has printed it."""
    run = active_run()
    crossing = None if run is None else current_crossing(run.root_lane)
    while crossing is not None:
        spec = getattr(crossing, "spec", None)  # that of another process has none
        if spec is not None and spec.prints and crossing.served is None:
            if spec.printed is None:
                spec.printed = Printed()
            spec.printed.add(crossing, text, is_replaced=is_replaced)
        crossing = getattr(crossing, "parent", None)


def keep(crossing: Crossing) -> None:
    """Put what a call has printed into its record."""
    spec = crossing.spec
    if spec.printed is None:
        return
    rows = spec.printed.rows
    whole = "".join(row[0] for row in rows)
    redacted = crossing.run.redactor.text(whole, spec.redactions)
    if redacted != whole:  # a secret may lie across rows
        rows = [[redacted, sum(row[1] for row in rows), *rows[0][2:]], *(["", 0, row[2]] for row in rows[1:])]
    spec.meta[MEMBER] = rows


def rows_of(crossing: Crossing) -> list[list[Any]]:
    """The rows of a served call."""
    recorded = crossing.served
    rows = None if recorded is None else recorded.meta.get(MEMBER)
    return rows if isinstance(rows, list) else []


def write_row(run: Run, row: list[Any]) -> None:
    """Print one row again."""
    text, writes = row[0], row[1]
    if run.output is not None and not (len(row) > _REPLACED and run.output.is_replaced):
        run.output.write(text, writes)
    elif sys.stdout is not None:
        sys.stdout.write(text)


def write(crossing: Crossing, part: int | None = None) -> None:
    """Print what a served call has printed, or what stands behind so many of its items."""
    for row in rows_of(crossing):
        if part is None or row[2] == part:
            write_row(crossing.run, row)
