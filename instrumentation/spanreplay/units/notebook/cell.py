"""One execution of a cell is a unit: its source is the input, its display is the output, as stored in a notebook.

    compute:input    (read)   source, number and id of the cell; a replay runs it again
    compute:output   (write)  standard output, displayed values, result and error, in their order; compared

Standard error is not recorded, because progress bars and warnings go there. Addresses in texts (`at 0x7f…`) are masked,
because they differ in each run.
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
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
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
"""The name of a notebook whose file name is unknown."""
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-fA-F]{4,}")
_MEDIA: Final = re.compile(r"(?:image|audio|video)/(?!svg)|application/pdf")
"""Media types that are viewed, not read: compared by hash."""
INTERRUPT, BETWEEN = "interrupt", "interrupted"
"""Call names: an awaiting cell is interrupted; a cell was interrupted without cancelling any of its calls."""
WHY_BETWEEN: Final = "the cell was interrupted between its calls: where it was is not recorded"
_cells: Final[dict[tuple[str, str], Cell]] = {}
"""Run id and root lane → the cell being executed there."""


class Cell:
    """The output of one execution of a cell. Its tasks and threads may add to it until it ends."""

    def __init__(self) -> None:
        self._outputs: list[dict[str, Any]] = []
        self._left = config.PRINTED_CHARACTERS_MAX
        self._beyond = hashlib.sha256()
        self._beyond_characters = 0
        self.error: BaseException | None = None
        """The exception that the cell raised."""
        self.is_showing = False
        """Whether a shell is printing a value or error of the cell that is already in its outputs."""
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
        """Add text written to standard output; beyond a limit only the hash and length are kept."""
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
        """Add a displayed value, by media type."""
        self._outputs.append({_TYPE: kind, "data": {name: _describe_media(name, bundle[name]) for name in bundle}})

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """A block in which a shell prints a value or an error."""
        before, self.is_showing = self.is_showing, True
        try:
            yield
        finally:
            self.is_showing = before

    def describe(self) -> Ended:
        """Return the recorded output and the outcome."""
        told: dict[str, Any] = {"outputs": [_describe_output(each) for each in self._outputs]}
        if self._beyond_characters:
            told["beyond"] = {"characters": self._beyond_characters, "sha256": self._beyond.hexdigest()}
        if self.error is None:
            return Ended(told)
        told["error"] = {"ename": type(self.error).__name__, "evalue": _mask(str(self.error))}
        is_interrupted = self._is_cancelled or isinstance(self.error, KeyboardInterrupt)
        return Ended(told, Outcome.CANCELLED if is_interrupted else Outcome.ERROR)

    def interrupt(self) -> None:
        """Note that a person interrupts an awaiting cell, which is cancelled next; a replay does the same."""
        self._is_cancelled = True
        if isinstance(active_run(), UnitRun):
            call_sync(lambda: describe(INTERRUPT), lambda: None)

    def note_end(self) -> None:
        """Note the end of the cell. If it was interrupted between calls, the exact place is unknown: a hole."""
        run = active_run()
        if isinstance(self.error, KeyboardInterrupt) and isinstance(run, UnitRun) and not run.has_cancelled_call:
            call_sync(lambda: describe(BETWEEN), lambda: None)
            run.hole(WHY_BETWEEN)


def describe(name: str) -> FunctionCall:
    """Return the call that notes how a cell was interrupted."""
    return FunctionCall(Kind.COMPUTE.value, name, Effect.READ.value, {}, prints=False)


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
    """Return the current cell; None outside a cell."""
    if not _cells:
        return None
    place = _find_place()
    return None if place is None else _cells.get(place)


def note_text(name: str, text: Any) -> None:
    """Note text written to one of the notebook's standard streams."""
    if name == _STDOUT and isinstance(text, str):
        printed.note(text, is_replaced=True)
        cell = here()
        if cell is not None:
            cell.write(text)


def notes_here(note: Callable[[Cell], object]) -> None:
    """Apply a function to the current cell, if there is one; errors are counted."""
    cell = here()
    if cell is not None:
        guard.guarded("what a cell displays", note, cell)


def run_cell(given: Mapping[str, Any], work: Callable[[], Any]) -> Any:
    """Execute a cell as a unit of its program; return the result of `work`."""
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
    """Execute a notebook's cell, which is awaited, as a unit; return the result of `work`."""
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


# ── the names of notebook and user ──────────────────────────────────────────────────────────────────
def find_notebook(shell: Any) -> str:
    """Return the notebook's file name, from its front end, its editor or the command that runs it."""
    return guard.guarded("the name of a notebook", _find_name, shell) or _NAME


def _find_name(shell: Any) -> str:
    space = getattr(shell, "user_ns", None) or {}
    named = (os.environ.get("JPY_SESSION_NAME"), space.get("__vsc_ipynb_file__"), *_read_parent())
    return next((Path(each).name for each in named if isinstance(each, str) and each.endswith(_SUFFIX)), "")


_parents: Final[dict[int, tuple[str, ...]]] = {}
_open: Final = open  # the unpatched function: this read is not an input of the run


def _read_parent() -> tuple[str, ...]:
    """Return the words of the parent's command line, such as `jupyter nbconvert --execute report.ipynb`."""
    parent = os.getppid()
    if parent not in _parents:
        words: tuple[str, ...] = ()
        try:
            with _open(f"/proc/{parent}/cmdline", "rb") as stream:
                words = tuple(os.fsdecode(each) for each in stream.read().split(b"\0"))
            words = tuple(word for option, word in pairwise(words) if option != _OUTPUT)
        except OSError:  # not Linux, or another user's process
            pass
        _parents.clear()
        _parents[parent] = words
    return _parents[parent]


def _find_user() -> str:
    return os.environ.get("JUPYTERHUB_USER", "")
