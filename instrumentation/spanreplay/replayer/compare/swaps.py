"""Decides which lanes may have made each other's calls: if workers are unknown, or if the level leaves it open."""

from __future__ import annotations

import re
from typing import Final

from spanreplay.model.call import LOST, SHARED, Recording
from spanreplay.model.levels import level_of_recording
from spanreplay.runtime.processes import is_of_process

_NUMBER: Final = re.compile(r"#\d+")


def has_any_workers(recording: Recording) -> bool:
    """Whether there were processes whose calls were lost, or whose calls can't be told apart."""
    manifest = recording.root.manifest
    return bool(manifest.get(LOST) or manifest.get(SHARED))


def may_swap(recording: Recording, lane: str, other: str) -> bool:
    """Whether it is no difference if one lane makes a call of the other.

    If the order of threads is not recorded, any of several threads or tasks with the same job may take the next piece
    of work. The order within one lane is always recorded.
    """
    if recording.is_imported:  # which task or thread made a request is not recorded
        return True
    if is_of_process(lane) and is_of_process(other) and has_any_workers(recording):
        return True
    is_open = "waits of threads" not in level_of_recording(recording.root)
    return is_open and lane != other and name_alike(lane) == name_alike(other)


def name_alike(lane: str) -> str:
    """The name that a lane has in common with those of the same job."""
    return _NUMBER.sub("", lane)
