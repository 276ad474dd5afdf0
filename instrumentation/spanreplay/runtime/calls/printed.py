"""Printed output of a call: kept with its record, and printed again if a replay does not run the call's body.

In a call's meta, under `printed`: rows of text, the number of writes, and the position: after how many items of a
generator, or how many milliseconds after the start of a coroutine, whose row n is part n of `clocks`. A fourth member
says that the agent had replaced `sys.stdout` with its own object, which is given the text again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.runtime.calls.spec import REPLACED_MEMBERS, Printed
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.run import active_run

if TYPE_CHECKING:
    from spanreplay.runtime.calls.in_flight import InFlight
    from spanreplay.runtime.run import Run

MEMBER: Final = "printed"
listeners: Final[list[Callable[[str], object]]] = []
"""Called with each text that the process writes to standard output, at the place of the write."""
byte_listeners: Final[list[Callable[[bytes], object]]] = []
"""Called with all that reaches the buffer below, also what was written there directly."""


def note(text: str, is_replaced: bool) -> None:
    """Note a write to standard output: every call around the writing code has printed it."""
    for listen in listeners:
        listen(text)
    run = active_run()
    crossing = None if run is None else current_crossing(run.root_lane)
    while crossing is not None:
        spec = getattr(crossing, "spec", None)  # a crossing of another process has no spec
        if spec is not None and spec.prints and crossing.served is None:
            if spec.printed is None:
                spec.printed = Printed()
            spec.printed.add(crossing, text, is_replaced=is_replaced)
        crossing = getattr(crossing, "parent", None)


def keep(crossing: InFlight) -> None:
    """Put a call's printed output into its record."""
    spec = crossing.spec
    if spec.printed is None:
        return
    rows = spec.printed.rows
    whole = "".join(row[0] for row in rows)
    redacted = crossing.run.redactor.text(whole, spec.redactions)
    if redacted != whole:  # a secret may lie across rows
        if any(len(row) > REPLACED_MEMBERS for row in rows):  # it went to the agent, not only to the terminal
            spec.raw_printed = rows
        rows = [[redacted, sum(row[1] for row in rows), *rows[0][2:]], *(["", 0, row[2]] for row in rows[1:])]
    spec.meta[MEMBER] = rows


def rows_of(crossing: InFlight) -> list[list[Any]]:
    """The rows of a served call."""
    recorded = crossing.served
    rows = None if recorded is None else recorded.meta.get(MEMBER)
    if crossing.revealed is not None:
        rows = crossing.revealed.printed
    return rows if isinstance(rows, list) else []


def write_row(run: Run, row: list[Any]) -> None:
    """Print one row again."""
    text, writes = row[0], row[1]
    if run.output is not None and not (len(row) > REPLACED_MEMBERS and run.output.is_replaced):
        run.output.write(text, writes)
    elif sys.stdout is not None:
        sys.stdout.write(text)


def write(crossing: InFlight, part: int | None = None) -> None:
    """Print the output of a served call, or only the rows after its first `part` items."""
    for row in rows_of(crossing):
        if part is None or row[2] == part:
            write_row(crossing.run, row)
