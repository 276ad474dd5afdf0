"""Printed output of a call: kept with its record, and printed again if a replay does not run the call's body.

In a call's meta, under `printed`: rows of text, the number of writes, and the position: after how many items of a
generator, or how many milliseconds after the start of a coroutine, whose row n is part n of `clocks`. A fourth member
says that the agent had replaced `sys.stdout` with its own object, which is given the text again. A row of five is an
item that the body put into a queue (`passed`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from spanreplay.runtime.calls import passed
from spanreplay.runtime.calls.spec import ITEM, REPLACED_MEMBERS, Printed
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.run import active_run

if TYPE_CHECKING:
    from spanreplay.runtime.calls.in_flight import InFlight

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
    raw = spec.printed.rows
    rows = _redact_items(crossing, raw)
    texts = [number for number, row in enumerate(rows) if len(row) <= ITEM]
    whole = "".join(rows[number][0] for number in texts)
    redacted = crossing.run.redactor.text(whole, spec.redactions) if whole else whole
    if redacted != whole:  # a secret may lie across rows
        first, *rest = texts
        rows[first] = [redacted, sum(rows[number][1] for number in texts), *rows[first][2:]]
        for number in rest:
            rows[number] = ["", 0, rows[number][2]]
    is_agents = any(len(row) > REPLACED_MEMBERS for row in raw)  # it went to the agent, not only to the terminal
    if is_agents and rows != raw:
        spec.raw_printed = raw
    spec.meta[MEMBER] = rows


def _redact_items(crossing: InFlight, rows: list[list[Any]]) -> list[list[Any]]:
    """The rows with their items redacted, also of a text that is spread over several."""
    numbers = [number for number, row in enumerate(rows) if len(row) > ITEM]
    if not numbers:
        return list(rows)
    clean = crossing.run.redactor.items([rows[number][ITEM][-1] for number in numbers], crossing.spec.redactions)
    found = list(rows)
    for number, item in zip(numbers, clean, strict=True):
        found[number] = [*rows[number][:ITEM], [*rows[number][ITEM][:-1], item]]
    return found


def rows_of(crossing: InFlight) -> list[list[Any]]:
    """The rows of a served call."""
    recorded = crossing.served
    rows = None if recorded is None else recorded.meta.get(MEMBER)
    if crossing.revealed is not None:
        rows = crossing.revealed.printed
    return rows if isinstance(rows, list) else []


def write_row(crossing: InFlight, row: list[Any]) -> Coroutine[Any, Any, None] | None:
    """Print one row again, or put its item into the queue again; return what to wait for if that is full.

    Raises: ReplayMiss if the item can't be rebuilt.
    """
    run = crossing.run
    if len(row) > ITEM:
        return passed.put(crossing, row[ITEM])
    text, writes = row[0], row[1]
    if run.output is not None and not (len(row) > REPLACED_MEMBERS and run.output.is_replaced):
        run.output.write(text, writes)
    elif sys.stdout is not None:
        sys.stdout.write(text)
    return None


def write(crossing: InFlight, part: int | None = None) -> None:
    """Print the output of a served call, or only the rows after its first `part` items."""
    for row in rows_of(crossing):
        if part is None or row[2] == part:
            waiting = write_row(crossing, row)
            if waiting is not None:
                waiting.close()
                raise crossing.answers.stall(crossing)
