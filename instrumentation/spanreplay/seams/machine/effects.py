"""Effects on the world that no other call holds: each is a call of its own, without a result.

A replay makes the same calls in the same order, or has diverged: a `commit` that is dropped, another mode in `chmod`,
another signal. What the effect changes is done behind the call: for real while recording, in a replay's overlay later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spanreplay.model.call import Effect, Kind
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import Leaf, call_sync
from spanreplay.runtime.process.noted_effects import EFFECTS, VERSIONS, first_environs, sees_effects

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run


def attach(run: Run) -> None:
    """Have the run's effects recorded, or compared where its recording has them."""
    first_environs[run] = dict(os.environ)
    if run.session is None:
        run.environment = {**run.environment, EFFECTS: VERSIONS}


def describe_effect(name: str, arguments: Mapping[str, Any], effect: Effect = Effect.IRREVERSIBLE) -> Leaf:
    """An effect as a call."""
    return Leaf(Kind.TOOL.value, name, effect.value, arguments, prints=False)


def effects_run() -> Run | None:
    """The run whose effects are calls here; None inside of another call.

    Raises: ReplayMiss behind the end of what was recorded: what the agent tidies up then is no other request.
    """
    run = recorded_run()
    if run is None or not sees_effects(run):
        return None
    if run.session is not None and run.session.has_reached_frontier and run.session.is_stopped:
        raise ReplayMiss("the replay has ended before this")
    return run


def note_effect(name: str, arguments: Mapping[str, Any], effect: Effect = Effect.WRITE) -> None:
    """An effect is about to happen. Raises: ReplayMiss if it is not the recorded one."""
    if effects_run() is not None:
        call_sync(lambda: describe_effect(name, arguments, effect), lambda: None)
