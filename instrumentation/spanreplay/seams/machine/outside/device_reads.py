"""Seam: input from the machine itself, through a descriptor that no other seam watches.

Devices, terminals, named pipes, standard input below `sys.stdin`, and what the kernel tells about itself (`/proc`,
`/sys`). Nothing is recorded: a read is noted as a leak with its place.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard, ids
from spanreplay.model.distributions import find_distribution
from spanreplay.runtime.agent_patches import Patch, install_patch, recorded_run
from spanreplay.runtime.caller.caller import FOREIGN, is_own, who_asks, who_opens
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.outside import leaks
from spanreplay.seams.machine.outside.devices import KERNEL, PIPE, describe_descriptor, describe_path

if TYPE_CHECKING:
    from types import FrameType

    from spanreplay.runtime.run import Run

_getframe: Final = sys._getframe
_INPUT: Final = 0
"""The descriptor of standard input."""


def note_open(run: Run, frame: FrameType | None, file: Any) -> None:
    """Note that the agent, or a library for it, opens such a file or descriptor to read it.

    What a library or an installed program asks the kernel is noted without making the run incomplete: most of it is
    for nobody.
    Raises: ReplayMiss in a replay, before it waits for a pipe into which nobody writes.
    """
    kind, detail = describe_descriptor(file) if isinstance(file, int) else describe_path(os.fsdecode(file))
    if not kind or who_opens(frame) == FOREIGN or _is_own_pipe(run, detail):
        return
    if detail.startswith(PIPE) and not run.resolver.connects:
        run.resolver.leave_out(f"what came through {detail} was not recorded")
    leaks.note(kind, "open", detail, is_hole=not detail.startswith(KERNEL) or _is_written_here(frame))


def _is_written_here(frame: FrameType | None) -> bool:
    """Whether the agent's own code acts, and it is not installed: an installed program asks much that is for nobody."""
    if not is_own(frame):
        return False
    while frame is not None and not ids.is_agent_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and not find_distribution(frame.f_code.co_filename)


def _is_own_pipe(run: Run, detail: str) -> bool:
    """Whether only threads of this process can have written into a named pipe."""
    written = run.written
    if written is None or written.program_ns or run.process_group is not None or not detail.startswith(PIPE):
        return False
    return written.touched.has(detail.removeprefix(PIPE).strip())


def _see(frame: FrameType, descriptor: Any) -> None:
    run = leaks.leaking_run()
    if run is None or not isinstance(descriptor, int):
        return
    kind, detail = describe_descriptor(descriptor)
    is_asked = (
        descriptor == _INPUT or who_asks(frame) != FOREIGN or _is_loop(frame)
    )  # whoever reads what a person types
    if kind and is_asked and not _is_own_pipe(run, detail):
        leaks.note(kind, "os.read", detail)


def _is_loop(frame: FrameType) -> bool:
    """Whether asyncio reads for whoever waits for it."""
    name = frame.f_code.co_filename
    return f"{os.sep}asyncio{os.sep}" in name and ids.is_stdlib_file(name)


def install(module: Any, patches: Patches) -> None:
    """Watch the functions of `os` that read descriptors."""
    for name in ("read", "readv"):
        if hasattr(module, name):
            _watch(patches, module, name)


def install_loops(module: Any, patches: Patches) -> None:
    """Have a replay end where an event loop would wait for standard input, which nobody types there."""
    patches.wrap(module.selector_events.BaseSelectorEventLoop, "add_reader", partial(_wait_for_input, 0))
    patches.wrap(module.base_events.BaseEventLoop, "connect_read_pipe", partial(_wait_for_input, 1))


def _wait_for_input(at: int, wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    run = recorded_run()
    if run is not None and not run.resolver.connects:
        file = args[at] if len(args) > at else kwargs.get("pipe", kwargs.get("fd"))
        descriptor = file if isinstance(file, int) else guard.guarded("watching", lambda: file.fileno())
        if descriptor == _INPUT:
            run.resolver.leave_out("what came through standard input, below sys.stdin, was not recorded")
    return wrapped(*args, **kwargs)


def _watch(patches: Patches, module: Any, name: str) -> None:
    real = getattr(module, name)

    def call(patch: Patch, descriptor: Any, *args: Any) -> Any:
        guard.guarded("watching", _see, _getframe(1), descriptor)
        return real(descriptor, *args)

    install_patch(patches, module, name, call, Patch("os", name, real))
