"""Unit: IPython at a prompt, in a terminal or embedded in a program. Each typed cell is its own run.

Code that a program passes to a shell is part of the program's work. A kernel's cells are units of the kernel, which has
its own row. This module also has the parts common to all shells: displayed values, programs that a cell starts (`!ls`),
times that `%time` shows. A replay doesn't prompt: it runs the recorded cell.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.agent_patches import asks, read, recorded_run
from spanreplay.runtime.calls import printed
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.process.last_error import note_shown
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.runtime.processes import starting
from spanreplay.runtime.reads import source
from spanreplay.seams.machine.processes.commands import describe_process
from spanreplay.units import factory
from spanreplay.units.jobs import is_replay
from spanreplay.units.notebook.cell import NUMBER, SOURCE, Cell, here, notes_here, run_cell
from spanreplay.units.notebook.replay import check_cell, play_cells

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_getframe: Final = sys._getframe
_PART: Final = "a cell"
_CPU: Final = source("clock", "ipython.clock")
_CPU_PARTS: Final = source("clock", "ipython.clock2", pack=list, unpack=tuple)
_prompting: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Shells whose cells are typed at a prompt."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of IPython's modules."""
    if module.__name__ == "IPython.core.displayhook":
        patches.wrap(module.DisplayHook, "__call__", _display)
        patches.wrap(module.DisplayHook, "compute_format_data", _format)
    elif module.__name__ == "IPython.core.displaypub":
        patches.wrap(module.DisplayPublisher, "publish", _publish)
    elif module.__name__ == "IPython.terminal.interactiveshell":
        patches.wrap(module.TerminalInteractiveShell, "interact", _interact)
    elif module.__name__ == "IPython.utils._process_posix":
        patches.wrap(module, "system", _start_program)  # before other modules import it
    elif module.__name__ == "IPython.utils.timing":
        patches.wrap(module, "clock", _read_cpu)
        patches.wrap(module, "clock2", _read_cpu_parts)
    else:
        patches.wrap(module.InteractiveShell, "run_cell", _run)
        patches.wrap(module.InteractiveShell, "run_cell_async", _run_source)
        patches.wrap(module.InteractiveShell, "_showtraceback", _show_error)


# ── at a prompt ─────────────────────────────────────────────────────────────────────────────────────
def _interact(wrapped: Any, shell: Any, args: Any, kwargs: Any) -> Any:
    """The shell is ready: a replay now runs the recorded cell."""
    if _hear not in printed.listeners:
        printed.listeners.append(_hear)
    if is_replay():
        play_cells(lambda given: _work(shell, given))
    guard.guarded("the start of a shell", factory.begin_units)
    _prompting.add(shell)
    return wrapped(*args, **kwargs)


def _run(wrapped: Any, shell: Any, args: Any, kwargs: Any) -> Any:
    """Run a cell; as a unit if it was typed, not if a program passed it."""
    if shell not in _prompting or here() is not None:
        return wrapped(*args, **kwargs)
    asked = guard.guarded(_PART, lambda: inspect.signature(wrapped).bind(*args, **kwargs).arguments) or {}
    code = asked.get("raw_cell", "")
    if not asked.get("store_history") or not str(code).strip():
        return wrapped(*args, **kwargs)
    given = {SOURCE: code, NUMBER: shell.execution_count}
    return run_cell(given, lambda: wrapped(*args, **kwargs))


def _work(shell: Any, given: Mapping[str, Any]) -> Cell:
    shell.execution_count = given.get(NUMBER) or 1
    with Cell() as cell:
        shell.run_cell(given[SOURCE], store_history=True)
    return check_cell(cell)


def _hear(text: str) -> None:
    """Add text written to standard output to the current cell."""
    cell = here()
    if cell is not None and not cell.is_showing:
        cell.write(text)


# ── in every shell ──────────────────────────────────────────────────────────────────────────────────
async def _run_source(wrapped: Any, shell: Any, args: Any, kwargs: Any) -> Any:
    """Note the error of an executed source: the cell itself, or code that a cell runs."""
    result = await wrapped(*args, **kwargs)
    error = result.error_before_exec or result.error_in_exec

    def note(cell: Cell) -> None:
        cell.error = error

    if error is not None:
        note_shown(error)
    notes_here(note)  # also without an error: the last source to end is the cell itself
    return result


def _display(wrapped: Any, hook: Any, args: Any, kwargs: Any) -> Any:
    """Display the value of a cell's last expression, which a shell may print after its number."""
    cell = here()
    if cell is None:
        return wrapped(*args, **kwargs)
    with cell.showing():
        return wrapped(*args, **kwargs)


def _format(wrapped: Any, hook: Any, args: Any, kwargs: Any) -> Any:
    """Note the displayed form of that value."""
    made = wrapped(*args, **kwargs)
    notes_here(lambda cell: cell.show("execute_result", made[0]))
    return made


def _publish(wrapped: Any, publisher: Any, args: Any, kwargs: Any) -> Any:
    """Note any other displayed value, which a terminal prints as text."""
    cell = here()
    if cell is None:
        return wrapped(*args, **kwargs)
    data = args[0] if args else kwargs.get("data", {})
    notes_here(lambda cell: cell.show("display_data", data))
    with cell.showing():
        return wrapped(*args, **kwargs)


def _show_error(wrapped: Any, shell: Any, args: Any, kwargs: Any) -> Any:
    """Show a traceback, whose text belongs to the shell. A ReplayMiss is not an error of the cell and is not shown."""
    kind = args[0] if args else kwargs.get("etype")
    if isinstance(kind, type) and issubclass(kind, ReplayMiss):
        return None
    cell = here()
    if cell is None:
        return wrapped(*args, **kwargs)
    with cell.showing():
        return wrapped(*args, **kwargs)


def _start_program(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Record `!command`, which IPython starts in a pseudo-terminal; its output belongs to the cell."""
    if here() is None or recorded_run() is None:
        return wrapped(*args, **kwargs)
    command = args[0] if args else kwargs["cmd"]

    def start() -> Any:
        starting.is_now, before = True, starting.is_now
        try:
            with unwatched():
                return wrapped(*args, **kwargs)
        finally:
            starting.is_now = before

    return call_sync(lambda: describe_process(command, {"shell": True}), start)


def _read_cpu(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return read(_CPU, wrapped) if asks(_getframe(1)) else wrapped()


def _read_cpu_parts(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return read(_CPU_PARTS, wrapped) if asks(_getframe(1)) else wrapped()
