"""Resuming a run that waits for a human, or that was killed: replayed up to its end, then live and recorded.

A fork is resumed in the same way, from a recording that was cut before one of its calls.

The resumed run is a complete recording of its own. The calls served from the old recording become part of it and keep
their numbers (start, completion, chunks, timers, reads); later calls are numbered after them. The new recording can be
replayed and resumed like any other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.attributes import FORKED_AT, RESUMES
from spanreplay.model.call import CallRecord, Effect, Kind, Outcome, Recording
from spanreplay.model.code_state import ABSENT, DIRECTORIES

if TYPE_CHECKING:
    from spanreplay.replayer.index import RecordingIndex
    from spanreplay.runtime.calls.open_call import Crossing

_LASTING: Final = (Effect.WRITE.value, Effect.IRREVERSIBLE.value)
_OPEN: Final = Outcome.OPEN.value
_NOT_THERE: Final = (ABSENT, DIRECTORIES)
"""Members of a manifest: paths where nothing was before the run."""


@dataclass(frozen=True)
class Resume:
    """How a run is resumed: the human's answer, if any, and whether unfinished effects are repeated."""

    answer: Any = None
    has_answer: bool = False
    is_redone: bool = False
    forked_at: int = 0
    """The number of the call before which the recording was cut; 0 if it was not."""
    is_contained: bool = False
    """Whether the live part has no effect: files stay in the replay's own, writing calls are not made."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a plan."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Resume:
        """Read the form that `to_json` returns. Raises: KeyError, TypeError."""
        answered, redone, contained = (bool(value[name]) for name in ("has_answer", "is_redone", "is_contained"))
        return cls(value["answer"], answered, redone, int(value["forked_at"]), contained)


def find_waiting(recording: Recording) -> CallRecord | None:
    """Return the call that waits for a human: where the run was suspended, or during which it was killed."""
    stated = recording.root.manifest.get("suspended")
    seq = stated.get("seq") if isinstance(stated, Mapping) else None
    waiting = [c for c in recording.calls if c.outcome == _OPEN and c.kind == Kind.HUMAN.value]
    return next((c for c in waiting if c.seq == seq), waiting[-1] if waiting else None)


class Continuation:
    """A session's record of where the recording ends and the run continues; the session's lock guards it."""

    def __init__(self, recording: Recording, resume: Resume) -> None:
        manifest = recording.root.manifest
        self.recording = recording
        self.resume = resume
        self.waiting = find_waiting(recording)
        self.lane_ends: dict[str, int] = dict(manifest.get("lane_ends") or {})
        self.timers: dict[str, Any] | None = dict(manifest["timers"]) if "timers" in manifest else None
        self.last_clock = max(self._clocks(), default=0)
        self.has_gone_on = False
        self._is_answered = False

    def _clocks(self) -> list[int]:
        clocks = [c for call in self.recording.calls for c in (call.seq, call.end_seq, *call.clocks)]
        return [*clocks, *self.lane_ends.values(), *(int(fired[0]) for fired in (self.timers or {}).values())]

    def is_beyond(self, lane: str, index: RecordingIndex, covered: set[int]) -> bool:
        """Whether a call missing from the recording comes after all recorded calls, as far as its lane can tell."""
        if self._is_answered:
            return True
        calls = self.recording.calls
        while lane not in {c.lane for c in calls} and "/" in lane:
            lane = lane.rpartition("/")[0]
        return not any(c.lane == lane and c.seq not in index.used and c.seq not in covered for c in calls)

    def find_missing(self, crossing: Crossing, index: RecordingIndex, covered: set[int]) -> CallRecord | None:
        """Return a recorded call of the same lane that should have come before this one but did not."""
        lane = crossing.lane.path
        for call in self.recording.calls:
            is_before = call.lane == lane and call.outcome != _OPEN
            if is_before and call.seq not in index.used and call.seq not in covered:
                return call
        return None

    def refuses(self, crossing: Crossing, call: CallRecord | None) -> str:
        """Return why a call can't be made live: it has an effect, or was begun already; '' if it can."""
        if self.resume.is_contained and crossing.spec.effect in _LASTING and not crossing.spec.is_contained:
            what = f"{crossing.boundary} has an effect ({crossing.spec.effect})"
            return f"{what}, so it was not made live: --effects lets it"
        if call is None or call.effect not in _LASTING or self.resume.is_redone:
            return ""
        return (
            f"call {call.number} ({call.boundary}) was started, and its outcome is unknown: check its effect, then "
            "repeat it with `spanreplay resume --redo`"
        )

    @property
    def acts(self) -> bool:
        """Whether it has gone on, and what it does now counts outside of the replay."""
        return self.has_gone_on and not self.resume.is_contained

    def begin(self, crossing: Crossing, call: CallRecord | None) -> None:
        """Start recording in this process, at the first call beyond the recording."""
        if call is not None:
            crossing.reads = call.reads
        self._is_answered = self._is_answered or (call is not None and call.kind == Kind.HUMAN.value)
        if self.has_gone_on:
            return
        self.has_gone_on = True
        from spanreplay.runtime.order.loops import make_book

        crossing.run.loops = make_book(crossing.run)
        os.environ["SPANREPLAY_MODE"] = "record"  # for its children
        for name in ("SPANREPLAY_REPLAY_SOURCE", "SPANREPLAY_REPLAY_PLAN", "SPANREPLAY_REPLAY_PID"):
            os.environ.pop(name, None)

    def take_answer(self) -> tuple[bool, Any]:
        """Return whether an answer is left that hasn't been taken yet, and the answer."""
        has_answer = self.resume.has_answer
        answer, self.resume = self.resume.answer, replace(self.resume, has_answer=False)
        return has_answer, answer

    def describe_origin(self) -> dict[str, Any]:
        """Return the members of the new run's environment that say where its first calls come from."""
        origin: dict[str, Any] = {RESUMES: self.recording.run_id}
        return {**origin, FORKED_AT: self.resume.forked_at} if self.resume.forked_at else origin

    # ── the new recording ───────────────────────────────────────────────────────────────────────────
    def extend(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the new run's manifest, merged with the old run's."""
        from spanreplay.runtime.order.steps import PACE

        old = self.recording.root.manifest
        merged = {**manifest, "lane_ends": {**manifest.get("lane_ends", {}), **self.lane_ends}}
        if self.timers is None:
            merged.pop("timers", None)
        else:
            merged["timers"] = {**manifest.get("timers", {}), **self.timers}
        for name in _NOT_THERE:  # what a served call made is not made again, and a replay begins without it
            merged[name] = list(dict.fromkeys([*(old.get(name) or ()), *(manifest.get(name) or ())]))
        for name in PACE:
            merged[name] = [*(old.get(name) or ()), *(manifest.get(name) or ())]
        return merged
