"""Seam: processes of `multiprocessing`, and with it of process pools. Their calls are recorded nowhere: a hole."""

from __future__ import annotations

from typing import Any

from spanreplay import ids
from spanreplay._patch import Patches
from spanreplay.run import active_run


def install(module: Any, patches: Patches) -> None:
    """Patch `multiprocessing.process`."""
    patches.wrap(module.BaseProcess, "start", _start)


def _start(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    # A fork is noted where it happens, whoever forks
    if run is not None and getattr(process, "_start_method", None) != "fork":
        run.hole(f"a process was started at {ids.find_caller(2)}: its calls are not in this run")
    return wrapped(*args, **kwargs)
