"""A process that serves for months drops the runs that have ended."""

from __future__ import annotations

import gc
import os
import weakref

from spanreplay.runtime.order.lock_order import RecordingLockOrder


def test_p8_the_book_of_a_run_is_forgotten_with_it() -> None:
    """Only its run keeps the book alive; a fork still frees the locks of the remaining ones."""
    kept, dropped = RecordingLockOrder(), RecordingLockOrder()
    kept.is_shared = True
    kept.note("stdout", "main")
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert gone() is None
    child = os.fork()
    if child == 0:
        os._exit(0 if not kept._passages else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
