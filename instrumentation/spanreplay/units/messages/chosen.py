"""Whether each message that a program's own loop takes is a run of its own: a setting, and a fact of the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spanreplay.model import config

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches
    from spanreplay.runtime.run import Run

__all__ = ["are_chosen", "install"]

_MESSAGES: Final = "messages"
"""The value of SPANREPLAY_UNITS; also the member of a run's environment that says so."""


def are_chosen() -> bool:
    """Whether the settings say so."""
    return config.read_setting("SPANREPLAY_UNITS") == _MESSAGES


def install(patches: Patches, run: Run) -> None:
    """Let messages be runs, where the settings or, in a replay, its recording say so."""
    if run.resolver.keeps:
        is_on = are_chosen()
        run.environment = {**run.environment, _MESSAGES: True} if is_on else run.environment
    else:
        is_on = run.resolver.answers.recording.root.env.get(_MESSAGES) is True
    if is_on:
        from spanreplay.units.messages import replayed  # most programs need nothing of it

        replayed.install(patches, run)
