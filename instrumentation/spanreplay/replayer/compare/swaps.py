"""Which lanes may have made each other's calls: nobody knows who took what, or the level leaves it open."""

from __future__ import annotations

import re
from typing import Final

from spanreplay.model.call import LOST, SHARED, Recording
from spanreplay.model.levels import level_of_recording
from spanreplay.runtime.processes import is_of_process

_NUMBER: Final = re.compile(r"#\d+")


def has_any_workers(recording: Recording) -> bool:
    """Whether there were processes of which nobody knows what they made, or which of them made it."""
    manifest = recording.root.manifest
    return bool(manifest.get(LOST) or manifest.get(SHARED))


def may_swap(recording: Recording, lane: str, other: str) -> bool:
    """Whether a call of one lane in the other one is no difference.

    Without the order of threads, of several threads or tasks that do the same any may take the next piece of work.
    """
    if is_of_process(lane) and is_of_process(other) and has_any_workers(recording):
        return True
    is_open = "waits of threads" not in level_of_recording(recording.root)
    return is_open and _NUMBER.sub("", lane) == _NUMBER.sub("", other)
