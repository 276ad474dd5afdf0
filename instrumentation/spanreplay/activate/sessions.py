"""Builds the session of a replaying process: its recording, the start of the recorded process, and warm-up units."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from spanreplay.model import config, guard
from spanreplay.model.call import Recording
from spanreplay.recording.source import load_beside, load_newest, load_source
from spanreplay.replayer.resolve.background import Background
from spanreplay.replayer.resolve.directions import check_keys
from spanreplay.replayer.resolve.extent import Extent
from spanreplay.replayer.resolve.launch import Launch
from spanreplay.replayer.resolve.plan import Plan, read_plan
from spanreplay.replayer.resolve.session import Session
from spanreplay.replayer.resolve.warm_up import WarmUp
from spanreplay.runtime import processes as process_group
from spanreplay.runtime.process import inherited_sockets
from spanreplay.runtime.process.environment import find_folders
from spanreplay.units import given
from spanreplay.units.earlier import with_earlier
from spanreplay.units.start import find_past, only_start, with_start
from spanreplay.units.stated import count_before

__all__ = ["load_session", "make_session", "read_folders"]

_FOLDERS: Final = "SPANREPLAY_REPLAY_FOLDERS"


def load_session(folders: Mapping[str, str], *, is_start: bool = False) -> Session:
    """Load the session that the settings name; `is_start`: only the start of a unit's process, which all units share.

    Raises: SpanreplayError.
    """
    source = config.read_setting("SPANREPLAY_REPLAY_SOURCE")
    if source:
        recording = load_source(source)
    else:
        app = config.read_app_name(sys.argv[0] if sys.argv else "")
        recording = load_newest(app)
        guard.write_stderr(f"spanreplay: replaying the newest run of {app}, {recording.run_id}")
    inherited_sockets.give(recording.root.env)
    plan = read_plan(config.read_setting("SPANREPLAY_REPLAY_PLAN"))
    earlier = [each for each in config.read_setting("SPANREPLAY_REPLAY_WARM").split(",") if each]
    return make_session(only_start(recording) if is_start else recording, source, plan, folders, earlier)


@lru_cache(maxsize=2)
def _load_process(source: str, run_id: str) -> Recording:
    """Load the run of a process; cached, so that forks for units don't read it again."""
    return load_beside(source, run_id)


def make_session(
    recording: Recording, source: str, plan: Plan, folders: Mapping[str, str], earlier: Sequence[str] = ()
) -> Session:
    """Build the session of a recording from `source`, preceded by these earlier units. Raises: SpanreplayError."""
    given.load()
    check_keys(recording)
    started = with_start(recording, lambda run_id: _load_process(source, run_id))
    warm = with_earlier(started.recording, earlier, lambda run_id: load_beside(source, run_id))
    session = Session(warm.recording, plan, folders)
    session.completeness = warm.completeness
    session.tampering = session.tampering or started.tampering or warm.tampering
    warm_up = WarmUp(session, warm.units, warm.clock, count_before(recording)) if earlier else None
    lost = started.is_start_lost
    background = Background(lambda: find_past(recording, lambda run_id: _load_process(source, run_id), warm.oldest))
    extent = Extent(
        session,
        started.in_flight,
        is_start_lost=lost,
        warm_up=warm_up,
        background=background,
        launch=Launch(started.launching, started.left),
        lasted_ns=started.lasted_ns,
    )
    session.extent = extent if started.is_unit else None
    return session


def read_folders(argv: list[str]) -> dict[str, str]:
    """Return the agent's folders in this replay; child processes, which may work elsewhere, inherit the setting."""
    stated = config.read_setting(_FOLDERS)
    folders: dict[str, str] = json.loads(stated) if stated else find_folders(argv)
    process_group.settings[_FOLDERS] = json.dumps(folders)
    return folders
