"""Seam: the agent's code waits with a timeout for results of a `multiprocessing.Pool`, or polls for them.

`get` and `next` with a timeout may end without a result, and the answer of `ready` depends on timing: as with futures,
each such end takes a value of the run's Lamport clock, and each answer of a poll is a read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spanreplay.runtime.order.wait_ends import Timed
from spanreplay.runtime.reads import source
from spanreplay.seams.concurrency.thread_polls import install_look
from spanreplay.seams.concurrency.thread_waits import wrap_timed

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

READY: Final = source("thread", "AsyncResult.ready", is_loose=True)


def install(module: Any, patches: Patches) -> None:
    """Patch `multiprocessing.pool`."""
    result, expired = module.ApplyResult, module.TimeoutError
    for timed in (
        Timed(result, "get", 0, expired),
        Timed(result, "wait", 0, is_done=result.ready),
        Timed(module.IMapIterator, "next", 0, expired),
    ):
        patches.wrap(timed.owner, timed.name, wrap_timed(timed))
    install_look(patches, result, "ready", READY, over=True)
