"""One execution of a cell as a unit: its source is the input, what it displays is the output, as a notebook keeps it.

    compute:input    (read)   source, number and id of the cell; a replay runs it again
    compute:output   (write)  standard output, displayed values, result and error, in their order; compared

Standard error is not in it: progress bars and warnings go there. An address in a text (`at 0x7f…`) is one of its run's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from spanreplay.model import config, guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.runtime.calls import printed
from spanreplay.runtime.calls.function_calls import Leaf, call_sync
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.run import Run, active_run
from spanreplay.units.jobs import Ended, record_job, record_job_async
from spanreplay.units.unit_run import UnitRun

__all__ = [
    "BETWEEN",
    "INTERRUPT",
    "WHY_BETWEEN",
    "Cell",
    "describe",
    "find_notebook",
    "here",
    "note_text",
    "notes_here",
    "run_cell",
    "run_cell_async",
]

SOURCE, NUMBER, ID = "source", "execution_count", "cell_id"
_PART: Final = "a cell"
_TYPE: Final = "output_type"
_STDOUT: Final = "stdout"
_SUFFIX: Final = ".ipynb"
_OUTPUT: Final = "--output"
_NAME: Final = "notebook"
"""A notebook whose name nobody says."""
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-fA-F]{4,}")
_MEDIA: Final = re.compile(r"(?:image|audio|video)/(?!svg)|application/pdf")
"""Types of what is shown and not read: compared by its hash."""
INTERRUPT, BETWEEN = "interrupt", "interrupted"
"""Calls: a cell that awaits is interrupted; one was interrupted, and no call of it was given up for that."""
WHY_BETWEEN: Final = "the cell was interrupted between its calls: where it was is not recorded"
_cells: Final[dict[tuple[str, str], Cell]] = {}
"""Run and root lane → the cell that is executed there."""


class Cell:
    """What one execution of a cell displays. Its tasks and threads may add to it until it ends."""

    def __init__(self) -> None:
        self._outputs: list[dict[str, Any]] = []
        self._left = config.PRINTED_CHARACTERS_MAX
        self._beyond = hashlib.sha256()
        self._beyond_characters = 0
        self.error: BaseException | None = None
        """What the cell has raised."""
        self.is_showing = False
        """Whether a shell prints a value or an error of the cell, which is in its outputs already."""
        self._is_cancelled = False
        self._place: tuple[str, str] | None = None

    def __enter__(self) -> Cell:
        self._place = _find_place()
        if self._place is not None:
            _cells[self._place] = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._place is not None:
            _cells.pop(self._place, None)

    def write(self, text: str) -> None:
        """The cell writes to standard output; beyond a limit only the hash goes on."""
        kept, beyond = text[: self._left], text[self._left :]
        self._left -= len(kept)
        if beyond:
            self._beyond.update(beyond.encode("utf-8", "surrogatepass"))
            self._beyond_characters += len(beyond)
        last = self._outputs[-1] if self._outputs else {}
        if last.get("name") == _STDOUT:
            last["parts"].append(kept)
        elif kept:
            self._outputs.append({_TYPE: "stream", "name": _STDOUT, "parts": [kept]})

    def show(self, kind: str, bundle: Mapping[str, Any]) -> None:
        """The cell displays a value, by its types of media."""
        self._outputs.append({_TYPE: kind, "data": {name: _describe_media(name, bundle[name]) for name in bundle}})

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """A block in which a shell displays a value or an error."""
        before, self.is_showing = self.is_showing, True
        try:
            yield
        finally:
            self.is_showing = before

    def describe(self) -> Ended:
        """What is recorded of it."""
        told: dict[str, Any] = {"outputs": [_describe_output(each) for each in self._outputs]}
        if self._beyond_characters:
            told["beyond"] = {"characters": self._beyond_characters, "sha256": self._beyond.hexdigest()}
        if self.error is None:
            return Ended(told)
        told["error"] = {"ename": type(self.error).__name__, "evalue": _mask(str(self.error))}
        is_interrupted = self._is_cancelled or isinstance(self.error, KeyboardInterrupt)
        return Ended(told, Outcome.CANCELLED if is_interrupted else Outcome.ERROR)

    def interrupt(self) -> None:
        """A person interrupts a cell that awaits, which is cancelled next: in a replay too."""
        self._is_cancelled = True
        if isinstance(active_run(), UnitRun):
            call_sync(lambda: describe(INTERRUPT), lambda: None)

    def note_end(self) -> None:
        """The cell has ended. Where one was interrupted between its calls, nobody knows."""
        run = active_run()
        if isinstance(self.error, KeyboardInterrupt) and isinstance(run, UnitRun) and not run.has_cancelled_call:
            call_sync(lambda: describe(BETWEEN), lambda: None)
            run.hole(WHY_BETWEEN)


def describe(name: str) -> Leaf:
    """The call that says how a cell was interrupted."""
    return Leaf(Kind.COMPUTE.value, name, Effect.READ.value, {}, prints=False)


def _describe_output(output: Mapping[str, Any]) -> dict[str, Any]:
    if "parts" not in output:
        return dict(output)
    return {_TYPE: output[_TYPE], "name": output["name"], "text": _mask("".join(output["parts"]))}


def _describe_media(kind: str, value: Any) -> Any:
    if isinstance(value, str) and not _MEDIA.match(kind):
        return _mask(value)
    if isinstance(value, (str, bytes)):
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        return {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    return value


def _mask(text: str) -> str:
    return _ADDRESS.sub("at 0x…", text)


# ── where cells are executed ────────────────────────────────────────────────────────────────────────
def _find_place() -> tuple[str, str] | None:
    run = active_run()
    return None if run is None else (run.run_id, _root_of(run))


def _root_of(run: Run) -> str:
    return current_lane(run.root_lane).path.partition("/")[0]


def here() -> Cell | None:
    """The cell that is executed here; None outside of one."""
    if not _cells:
        return None
    place = _find_place()
    return None if place is None else _cells.get(place)


def note_text(name: str, text: Any) -> None:
    """A text was written to a standard stream that is the notebook's."""
    if name == _STDOUT and isinstance(text, str):
        printed.note(text, is_replaced=True)
        cell = here()
        if cell is not None:
            cell.write(text)


def notes_here(note: Callable[[Cell], object]) -> None:
    """Tell the cell that is executed here, if there is one; whatever fails is counted."""
    cell = here()
    if cell is not None:
        guard.guarded("what a cell displays", note, cell)


def run_cell(given: Mapping[str, Any], work: Callable[[], Any]) -> Any:
    """Execute a cell as a unit of its program; gives what `work` gives."""
    cell = Cell()
    told: list[Any] = []

    def execute() -> Cell:
        with cell:
            told.append(work())
            guard.guarded(_PART, cell.note_end)
        return cell

    record_job("", lambda: given, execute, Cell.describe)
    return told[0]


async def run_cell_async(given: Mapping[str, Any], shell: Any, session: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """The same for a cell of a notebook, which is awaited."""
    cell = Cell()
    told: list[Any] = []

    async def execute() -> Cell:
        with cell:
            told.append(await work())
            guard.guarded(_PART, cell.note_end)
        return cell

    name, user = find_notebook(shell), _find_user()
    await record_job_async(name, lambda: given, execute, Cell.describe, user=user, session=session)
    return told[0]


# ── what it is called ───────────────────────────────────────────────────────────────────────────────
def find_notebook(shell: Any) -> str:
    """The file name of the notebook, as its front end, its editor or the command that runs it says."""
    return guard.guarded("the name of a notebook", _find_name, shell) or _NAME


def _find_name(shell: Any) -> str:
    space = getattr(shell, "user_ns", None) or {}
    named = (os.environ.get("JPY_SESSION_NAME"), space.get("__vsc_ipynb_file__"), *_read_parent())
    return next((Path(each).name for each in named if isinstance(each, str) and each.endswith(_SUFFIX)), "")


_parents: Final[dict[int, tuple[str, ...]]] = {}
_open: Final = open  # the real one: what is read here is nobody's input


def _read_parent() -> tuple[str, ...]:
    """The words of the command that has started this process, as `jupyter nbconvert --execute report.ipynb`."""
    parent = os.getppid()
    if parent not in _parents:
        words: tuple[str, ...] = ()
        try:
            with _open(f"/proc/{parent}/cmdline", "rb") as stream:
                words = tuple(os.fsdecode(each) for each in stream.read().split(b"\0"))
            words = tuple(word for option, word in pairwise(words) if option != _OUTPUT)
        except OSError:  # not Linux, or somebody else's process
            pass
        _parents.clear()
        _parents[parent] = words
    return _parents[parent]


def _find_user() -> str:
    return os.environ.get("JUPYTERHUB_USER", "")
