"""Whether each message that a program's own loop takes is a run of its own: a setting, and a fact of the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.model import config
from spanreplay.units.stated import MESSAGES

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches
    from spanreplay.runtime.run import Run

__all__ = ["are_chosen", "install"]


def are_chosen() -> bool:
    """Whether the settings say so."""
    return config.read_setting("SPANREPLAY_UNITS") == "messages"


def install(patches: Patches, run: Run) -> None:
    """Let messages be runs, where the settings or, in a replay, its recording say so."""
    if run.resolver.keeps:
        is_on = are_chosen()
        run.environment = {**run.environment, MESSAGES: True} if is_on else run.environment
    else:
        is_on = run.resolver.answers.recording.root.env.get(MESSAGES) is True
    if is_on:
        from spanreplay.units.messages import replayed  # most programs need nothing of it

        replayed.install(patches, run)
