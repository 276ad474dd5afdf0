"""Effects on the world that no other call covers: each becomes a separate call without a result.

A replay must make the same calls in the same order; otherwise it has diverged, for example because a `commit` is
missing or `chmod` or a signal has another value. The effect itself happens after the call: for real while recording, in
the overlay during a replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spanreplay.model.call import Effect, Kind
from spanreplay.model.config import copy_variables
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.caller.places import set_modules
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.process.noted_effects import (
    APPENDED_CONTENT,
    ASYNC_DRIVERS,
    CALLBACKS,
    CODE_OF_MODULES,
    DRIVERS,
    EFFECTS,
    SET_UPS,
    TOLD_APART,
    VERSIONS,
    first_environs,
    sees_effects,
)

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run


def attach(run: Run) -> None:
    """Record the run's effects, or in a replay compare them if the recording has them."""
    first_environs[run] = copy_variables()
    run.resolver.declare(EFFECTS, VERSIONS)
    run.resolver.declare(DRIVERS)
    run.resolver.declare(ASYNC_DRIVERS)
    run.resolver.declare(TOLD_APART)
    run.resolver.declare(SET_UPS)
    run.resolver.declare(CODE_OF_MODULES)
    set_modules(run.resolver.has(CODE_OF_MODULES))
    run.resolver.declare(CALLBACKS)
    run.resolver.declare(APPENDED_CONTENT)


def describe_effect(
    name: str, arguments: Mapping[str, Any], effect: Effect = Effect.IRREVERSIBLE, *, is_contained: bool = False
) -> FunctionCall:
    """Describe an effect as a call."""
    return FunctionCall(Kind.TOOL.value, name, effect.value, arguments, prints=False, is_contained=is_contained)


def effects_run() -> Run | None:
    """Return the run whose effects are calls here; None inside another call.

    Raises: ReplayMiss after the end of the recording: the agent's cleanup at that point is not a new request.
    """
    run = recorded_run()
    if run is None or not sees_effects(run):
        return None
    run.resolver.insist()
    return run


def note_effect(
    name: str, arguments: Mapping[str, Any], effect: Effect = Effect.WRITE, *, is_contained: bool = False
) -> None:
    """Note an effect that is about to happen. Raises: ReplayMiss if it differs from the recorded one.

    `is_contained` says that a replay makes it in files of its own.
    """
    if effects_run() is not None:
        call_sync(lambda: describe_effect(name, arguments, effect, is_contained=is_contained), lambda: None)
