"""Runs recorded cells again in the process of their shell: the judged one, and those that a replay warms up with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.caller.running import within_unit
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import Run, active_run
from spanreplay.units import factory
from spanreplay.units.asgi import await_left
from spanreplay.units.jobs import await_input, note_output, take_input
from spanreplay.units.notebook.cell import Cell
from spanreplay.units.play import UNITS_APART, end_replay, iter_units
from spanreplay.units.start import await_start
from spanreplay.units.stated import GIVEN, find_unit

__all__ = ["check_cell", "play_cells", "play_cells_async"]

Work = Callable[[Mapping[str, Any]], Awaitable[Cell]]


def _find_replay() -> Run:
    """The run of the replay of a cell; ends that of a process whose cells are runs of their own."""
    run = active_run()
    if run is None or run.session is None:
        raise AssertionError("only a replay plays a cell")
    if find_unit(run.session.recording.root.env) is None:
        run.session.stop(UNITS_APART)
        end_replay()
    return run


def play_cells(work: Callable[[Mapping[str, Any]], Cell]) -> NoReturn:
    """Give the recorded cells to a shell that has started, compare what they display, and end the process."""
    run = _find_replay()
    with contextlib.suppress(ReplayMiss):  # the session knows
        factory.end_start(run)
        for lane in iter_units(run, GIVEN):
            with contextlib.suppress(ReplayMiss), inside_lane(Lane(lane)):
                _end(run, work(take_input()))
    end_replay()


async def play_cells_async(work: Work) -> NoReturn:
    """The same for a shell whose cells are executed on a loop."""
    run = _find_replay()
    with contextlib.suppress(ReplayMiss):  # the session knows
        await await_start(run)
        for lane in iter_units(run, GIVEN):
            with within_unit():
                task = asyncio.create_task(_play(run, Lane(lane), work))  # in a context of its own
            await task
    end_replay()


async def _play(run: Run, lane: Lane, work: Work) -> None:
    before = asyncio.all_tasks()
    with contextlib.suppress(ReplayMiss), inside_lane(lane):
        _end(run, await work(await await_input()))
        await await_left(run, before)


def _end(run: Run, cell: Cell) -> None:
    note_output(cell.describe().output)
    if run.session is not None and run.session.extent is not None:
        run.session.extent.is_over = True


def check_cell(cell: Cell) -> Cell:
    """The cell that was executed. Raises: ReplayMiss where one came out of it, which its shell takes for an error."""
    if isinstance(cell.error, ReplayMiss):
        raise cell.error
    return cell
