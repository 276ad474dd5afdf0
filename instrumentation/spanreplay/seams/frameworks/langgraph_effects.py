"""Seam: what a tool's body does to the graph that runs it: changes of a store in memory, interrupts for a person.

Records no calls; both are kept with the tool's call (`runtime/calls/passed.py`). Searches by meaning ask a model for
embeddings: what is put into such a store is not kept.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from types import ModuleType
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.calls import passed
from spanreplay.runtime.lanes import is_in_call
from spanreplay.runtime.patches import Patches

_INTERRUPT: Final = "interrupt"
_getframe: Final = sys._getframe


def install(module: ModuleType, patches: Patches) -> None:
    """Patch `langgraph.store.memory` or `langgraph.types`."""
    if module.__name__ == "langgraph.types":
        _install_interrupt(module, patches)
        return
    kind, put_type = module.InMemoryStore, module.PutOp
    real_init, batch, abatch = kind.__init__, kind.batch, kind.abatch

    @functools.wraps(real_init)
    def init(store: Any, *args: Any, **kwargs: Any) -> None:
        real_init(store, *args, **kwargs)
        guard.guarded("naming a store", passed.name_queue, store, _getframe(1))

    def note(store: Any, ops: list[Any]) -> None:
        puts = [each for each in ops if isinstance(each, put_type)]
        if puts and not store.index_config:
            passed.note(store, puts, passed.BATCH)

    @functools.wraps(batch)
    def watched(store: Any, ops: Any) -> Any:
        if is_in_call():
            ops = list(ops)
            guard.guarded("keeping what a call passes on", note, store, ops)
        return batch(store, ops)

    @functools.wraps(abatch)
    async def watched_async(store: Any, ops: Any) -> Any:
        if is_in_call():
            ops = list(ops)
            guard.guarded("keeping what a call passes on", note, store, ops)
        return await abatch(store, ops)

    patches.replace(kind, "__init__", init)
    patches.replace(kind, "batch", watched)
    patches.replace(kind, "abatch", watched_async)


def _install_interrupt(module: ModuleType, patches: Patches) -> None:
    real = module.interrupt

    @functools.wraps(real)
    def interrupt(value: Any) -> Any:
        if is_in_call():
            guard.guarded("keeping an interrupt", passed.note_done, _INTERRUPT, value)
        return real(value)

    def repeat(value: Any) -> None:
        """Have the graph note the interrupt, or that it was answered; the tool's recorded outcome follows."""
        with contextlib.suppress(Exception):
            real(value)

    passed.repeaters[_INTERRUPT] = repeat
    patches.replace(module, "interrupt", interrupt)
