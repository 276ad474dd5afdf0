"""Whether a client of a store or broker is used here by the agent or for it, or by plumbing for itself.

A worker keeps its queue and its results there, a model's SDK its cache, with times of its own that are not recorded.
What the agent asks a worker's package, such as the result of a job, is the agent's.
Where nothing below the client can be seen, because it is native code, a framework's use is the run's as well.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

from spanreplay.model import ids, owners
from spanreplay.model.distributions import find_distribution
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.caller.caller import AGENT, FRAMES_MAX, LIBRARY, PASS, handed, is_ours, origin_of, serves_agent
from spanreplay.runtime.calls.open_call import is_plumbing
from spanreplay.runtime.run import Run

_REPORTS: Final = (owners.TELEMETRY,)
"""Distributions that wrap their caller's use of a client, or report with one of their own."""
_CARRIERS: Final = (*_REPORTS, owners.TRANSPORTS)
"""These and those that only carry their caller's use."""


def asking_run(clients: frozenset[str], *, is_unseen_below: bool = False, is_kept: bool = False) -> Run | None:
    """Return the run that a use of a client belongs to; None for plumbing's own, and inside another call.

    `clients` are the distributions of the client itself. With `is_unseen_below` only the use of a reporting tool, or
    in a library's own thread, is plumbing's. What a worker's package keeps for all its callers (`is_kept`: a
    subscription, a connection) is its own.
    """
    run = recorded_run()
    if run is None or is_plumbing(run):
        return None
    return run if _is_asked(sys._getframe(1), clients, is_unseen_below=is_unseen_below, is_kept=is_kept) else None


def _is_asked(frame: FrameType | None, clients: frozenset[str], *, is_unseen_below: bool, is_kept: bool) -> bool:
    """Whether the first code above the client that acts by itself is neither plumbing's nor a library's own thread."""
    carriers, is_reported = _REPORTS if is_unseen_below else _CARRIERS, False
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        filename, origin = frame.f_code.co_filename, origin_of(frame)
        if origin == AGENT:
            return True
        if origin != PASS and not is_ours(filename) and not ids.is_stdlib_file(filename):
            distribution = find_distribution(filename)
            is_carrier = owners.is_among(distribution, carriers)
            if distribution not in clients and not is_carrier:
                is_asked = is_unseen_below or origin == LIBRARY or (not is_kept and serves_agent(frame))
                return is_asked and not handed.is_background
            is_reported = is_reported or (is_carrier and is_unseen_below)
        frame = frame.f_back
    return not (is_reported or handed.is_background)
