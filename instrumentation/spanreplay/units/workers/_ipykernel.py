"""Unit: Jupyter's Python kernel (ipykernel). Each cell that a notebook executes is its own run.

Code that a front end executes for itself (silently, or without a history entry), completions and inspections are not
units. In a replay the kernel starts without ports and threads: where it would wait for messages, it gets the recorded
cell.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import is_replay
from spanreplay.units.notebook import stand_in
from spanreplay.units.notebook.cell import ID, NUMBER, SOURCE, Cell, here, note_text, notes_here, run_cell_async
from spanreplay.units.notebook.replay import check_cell, play_cells_async

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_PART: Final = "a cell"


def install(module: Any, patches: Patches) -> None:
    """Patch one of ipykernel's modules."""
    if module.__name__ == "ipykernel.ipkernel":
        patches.wrap(module.IPythonKernel, "do_execute", _execute)
        patches.wrap(module.IPythonKernel, "_cancel_on_sigint", _watch)
    elif module.__name__ == "ipykernel.iostream":
        patches.wrap(module.OutStream, "write", _write)
    elif module.__name__ == "ipykernel.zmqshell":
        patches.wrap(module.ZMQDisplayPublisher, "publish", _publish)
    elif module.__name__ == "ipykernel.kernelbase":
        patches.wrap(module.Kernel, "raw_input", _ask)
        patches.wrap(module.Kernel, "getpass", _ask_secret)
    else:
        patches.wrap(module.IPKernelApp, "start", _start)
        stand_in.install(module.IPKernelApp, patches)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
async def _execute(wrapped: Any, kernel: Any, args: Any, kwargs: Any) -> Any:
    """Execute a cell as a unit; code that a front end executes for itself is not one."""
    asked = guard.guarded(_PART, lambda: inspect.signature(wrapped).bind(*args, **kwargs))
    if asked is None or is_replay() or not _is_cell(asked):
        return await wrapped(*args, **kwargs)
    given = {SOURCE: asked.arguments["code"], NUMBER: kernel.execution_count, ID: asked.arguments.get("cell_id")}

    session = getattr(kernel.session, "session", "")
    return await run_cell_async(given, kernel.shell, session, lambda: wrapped(*args, **kwargs))


class _Interruptible:
    """Wraps an awaiting cell's task, to note the interruption before it cancels the task."""

    def __init__(self, task: Any, cell: Cell) -> None:
        self._task = task
        self._cell = cell

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
        """Cancel the task."""
        guard.guarded(_PART, self._cell.interrupt)
        return self._task.cancel(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def _watch(wrapped: Any, kernel: Any, args: Any, kwargs: Any) -> Any:
    """Watch for an interruption of a cell that begins to await."""
    cell = here()
    if cell is None or len(args) != 1:
        return wrapped(*args, **kwargs)
    return wrapped(_Interruptible(args[0], cell), **kwargs)


def _is_cell(asked: inspect.BoundArguments) -> bool:
    asked.apply_defaults()
    told = asked.arguments
    return bool(told["store_history"]) and not told["silent"] and bool(str(told["code"]).strip())


def _write(wrapped: Any, stream: Any, args: Any, kwargs: Any) -> Any:
    count = wrapped(*args, **kwargs)
    guard.guarded("standard output", note_text, stream.name, args[0] if args else kwargs.get("string"))
    return count


def _publish(wrapped: Any, publisher: Any, args: Any, kwargs: Any) -> Any:
    data = args[0] if args else kwargs.get("data", {})
    kind = "update_display_data" if kwargs.get("update") else "display_data"
    notes_here(lambda cell: cell.show(kind, data))
    return wrapped(*args, **kwargs)


# ── questions to a human ────────────────────────────────────────────────────────────────────────────
def _ask(wrapped: Any, kernel: Any, args: Any, kwargs: Any) -> Any:
    """Record `input()` in a cell, which a front end answers."""
    if active_run() is None:
        return wrapped(*args, **kwargs)
    prompt = str(args[0] if args else kwargs.get("prompt", ""))
    function_call = FunctionCall(Kind.HUMAN.value, "input", Effect.READ.value, {"prompt": prompt}, prints=False)
    return call_sync(lambda: function_call, lambda: wrapped(*args, **kwargs))


def _ask_secret(wrapped: Any, kernel: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None:
        return wrapped(*args, **kwargs)
    prompt = str(args[0] if args else kwargs.get("prompt", ""))
    function_call = FunctionCall(
        Kind.HUMAN.value, getpass.getpass.__name__, Effect.READ.value, {"prompt": prompt}, prints=False
    )
    answer = call_sync(lambda: function_call, lambda: {"password": wrapped(*args, **kwargs)})
    return answer["password"]


# ── the kernel ──────────────────────────────────────────────────────────────────────────────────────
def _start(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    """The kernel is ready: a replay now runs the recorded cell."""
    if app.subapp is None:
        if is_replay():
            asyncio.run(play_cells_async(lambda given: _work(app.kernel, given)))
        guard.guarded("the start of a kernel", factory.begin_units)
    return wrapped(*args, **kwargs)


async def _work(kernel: Any, given: Mapping[str, Any]) -> Cell:
    kernel.shell.execution_count = given.get(NUMBER) or 1
    wanted = {"silent": False, "store_history": True, "allow_stdin": True, ID: given.get(ID)}
    accepted = inspect.signature(kernel.do_execute).parameters
    with Cell() as cell:
        await kernel.do_execute(given[SOURCE], **{name: value for name, value in wanted.items() if name in accepted})
    return check_cell(cell)
