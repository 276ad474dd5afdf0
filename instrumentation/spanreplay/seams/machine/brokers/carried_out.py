"""A recorded answer that a client's own code carries out in a replay: to the run, it is inside the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spanreplay.model.call import Kind
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.lanes import Lane, current_lane, enter_crossing, leave_crossing
from spanreplay.runtime.run import Run, active_run

__all__ = ["carrying_out", "refuse"]


def refuse(name: str) -> Exception:
    """Return the error of a call that a plan lets go live, on a connection that was never made."""
    return OSError(f"this connection is replayed: {name} can't run live on it")


class _Spec:
    kind = Kind.TOOL.value


class _CarriedOut:
    """In place of a call that has been answered."""

    parent: Any = None
    body_lane: Any = None
    served: Any = None
    spec = _Spec
    index = 0
    is_live_by_plan = is_reused = False

    def __init__(self, run: Run, boundary: str) -> None:
        self.run = run
        self.boundary = boundary
        self.lane: Lane = current_lane(run.root_lane)


@contextmanager
def carrying_out(boundary: str) -> Iterator[None]:
    """A block whose reads and tasks are not the program's, as in a call's body while recording."""
    run = active_run()
    if run is None:
        yield
        return
    made = _CarriedOut(run, boundary)
    tokens = enter_crossing(made)
    try:
        with plumbing():
            yield
    finally:
        leave_crossing(made, tokens)
