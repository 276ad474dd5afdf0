"""Replays recorded cells in the process of their shell: warm-up cells, then the judged one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn

from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.caller.running import within_unit
from spanreplay.runtime.calls.function_calls import call_async, call_sync
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import Run
from spanreplay.units import factory
from spanreplay.units.asgi import await_left
from spanreplay.units.jobs import await_input, find_replay_of_job, note_output, take_input
from spanreplay.units.notebook.cell import BETWEEN, INTERRUPT, WHY_BETWEEN, Cell, describe
from spanreplay.units.notebook.interruption import await_calls, has_call, interrupting
from spanreplay.units.play import end_replay, iter_units
from spanreplay.units.start import await_start
from spanreplay.units.stated import GIVEN

__all__ = ["check_cell", "play_cells", "play_cells_async"]

_OUTPUT: Final = "compute:output"
_PAUSE_S_MAX: Final = 60.0
Work = Callable[[Mapping[str, Any]], Awaitable[Cell]]


def play_cells(work: Callable[[Mapping[str, Any]], Cell]) -> NoReturn:
    """Replay the recorded cells in a started shell, compare their output, and end the process."""
    run = find_replay_of_job()
    with contextlib.suppress(ReplayMiss):  # the session has noted it
        factory.end_start(run)
        for lane in iter_units(run, GIVEN):
            with contextlib.suppress(ReplayMiss), inside_lane(Lane(lane)):
                given = take_input()
                with interrupting(run, lane):
                    cell = work(given)
                _end(run, lane, cell)
    end_replay()


async def play_cells_async(work: Work) -> NoReturn:
    """Like `play_cells`, for a shell that executes cells on a loop."""
    run = find_replay_of_job()
    with contextlib.suppress(ReplayMiss):  # the session has noted it
        await await_start(run)
        before = ""
        for lane in iter_units(run, GIVEN):
            await asyncio.sleep(_find_pause_s(run, before, lane))  # tasks started by earlier cells continue meanwhile
            before = lane
            with within_unit():
                task = asyncio.create_task(_play(run, Lane(lane), work))  # a task has its own context
            await task
    end_replay()


def _find_pause_s(run: Run, before: str, lane: str) -> float:
    """Return how long the kernel was idle before the cell with this root lane; 0 for the first."""
    if not before:
        return 0.0
    index = run.resolver.answers.index
    ended, begun = index.at(before, _OUTPUT, 0), index.at(lane, GIVEN, 0)
    if ended is None or begun is None:
        return 0.0
    return min(max(0, begun.start_ns - ended.end_ns) / 1_000_000_000, _PAUSE_S_MAX)


async def _play(run: Run, lane: Lane, work: Work) -> None:
    before = asyncio.all_tasks()
    with contextlib.suppress(ReplayMiss), inside_lane(lane):
        given = await await_input()
        with interrupting(run, lane.path):
            cell = await (_interrupt(lane, work, given) if has_call(run, lane.path, INTERRUPT) else work(given))
        _end(run, lane.path, cell)
        await await_left(run, before)


async def _interrupt(lane: Lane, work: Work, given: Mapping[str, Any]) -> Cell:
    """Run an awaiting cell and cancel it where it was cancelled when recorded."""

    async def execute() -> Cell:
        with inside_lane(lane):
            return await work(given)

    working = asyncio.create_task(execute())
    await await_calls(lane.path, INTERRUPT)
    await call_async(lambda: describe(INTERRUPT), _not_live)
    working.cancel()
    return await working


async def _not_live() -> None:
    raise ReplayMiss("nobody interrupts a replay")


def _end(run: Run, lane: str, cell: Cell) -> None:
    """Compare a cell's output. Raises: ReplayMiss if it is unknown or differs."""
    answers = run.resolver.answers
    if has_call(run, lane, BETWEEN):
        call_sync(lambda: describe(BETWEEN), lambda: None)
        raise answers.at_hole(WHY_BETWEEN)
    note_output(cell.describe().output)
    if answers.extent is not None:
        answers.extent.is_over = True


def check_cell(cell: Cell) -> Cell:
    """Return the executed cell. Raises: the ReplayMiss that its shell has caught as the cell's error, if any."""
    if isinstance(cell.error, ReplayMiss):
        raise cell.error
    return cell
