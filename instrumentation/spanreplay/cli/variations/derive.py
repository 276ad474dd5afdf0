"""Write what a replay did as a recording of its own, after that recording has replayed as it says."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spanreplay.cli.replay import Source
from spanreplay.cli.variations.trials import Trial, Trials
from spanreplay.model.call import Recording
from spanreplay.model.errors import SpanreplayError
from spanreplay.recording.derived import derive, pack_recording
from spanreplay.recording.whole_file import write_atomically

__all__ = ["derive_trial", "open_trials", "write_recording"]

_AS_RECORDED = ("identical", "incomplete")


def open_trials(trials: Trials, recording: Recording) -> Trials:
    """Replays of another recording with the same agent."""
    path = Path(tempfile.mkdtemp(dir=trials.folder)) / f"{recording.run_id}.replay"
    path.write_bytes(pack_recording(recording))
    return replace(trials, found=Source(str(path), recording))


def derive_trial(answers: Recording, trial: Trial, origin: Mapping[str, Any]) -> Recording:
    """The recording of a trial, with the answers that it was served. Raises: SpanreplayError if it has none."""
    if trial.made is None:
        raise SpanreplayError(trial.why or "the replay recorded nothing")
    return derive(answers, trial.made, origin)


def write_recording(trials: Trials, recording: Recording, path: Path) -> Trial:
    """Write a derived recording and return its replay. Raises: SpanreplayError if it does not replay as it says."""
    trial = open_trials(trials, recording).replay(())
    word = trial.why if trial.verdict is None else trial.verdict["verdict"]
    if word not in _AS_RECORDED or not trial.verdict:
        found = [] if trial.verdict is None else trial.verdict.get("divergences", [])
        why = f": {found[0]['message']}" if found else ""
        raise SpanreplayError(f"its own replay is not identical ({word}){why}")
    write_atomically(path, pack_recording(recording), hint="name another place", makes_folder=True)
    return trial
