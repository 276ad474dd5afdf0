"""Going on with a run that waits for a human, or that was killed: replayed up to its end, then live and recorded.

The run that goes on is a recording of its own, whole: what it is served from the old one becomes part of it, with the
old one's numbers (start, completion, chunks, timers, reads), and what it does then is numbered behind them. It can be
replayed, and resumed, like any other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import CallRecord, Effect, Kind, Outcome, Recording
from spanreplay.runtime.order.loops import make_book
from spanreplay.runtime.order.steps import PACE

if TYPE_CHECKING:
    from spanreplay.replayer.index import RecordingIndex
    from spanreplay.runtime.calls.open_call import Crossing
    from spanreplay.runtime.run import Run

_LASTING: Final = (Effect.WRITE.value, Effect.IRREVERSIBLE.value)
_OPEN: Final = Outcome.OPEN.value


@dataclass(frozen=True)
class Resume:
    """How a run goes on: the human's answer, if there is one, and whether unfinished effects are made again."""

    answer: Any = None
    has_answer: bool = False
    is_redone: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON, for a plan."""
        return {"answer": self.answer, "has_answer": self.has_answer, "is_redone": self.is_redone}

    @classmethod
    def from_json(cls, value: Any) -> Resume:
        """What `to_json` gave. Raises: KeyError, TypeError."""
        return cls(value["answer"], bool(value["has_answer"]), bool(value["is_redone"]))


def find_waiting(recording: Recording) -> CallRecord | None:
    """The call that waits for a human: the one that the run was suspended at, or was killed in."""
    stated = recording.root.manifest.get("suspended")
    seq = stated.get("seq") if isinstance(stated, Mapping) else None
    waiting = [c for c in recording.calls if c.outcome == _OPEN and c.kind == Kind.HUMAN.value]
    return next((c for c in waiting if c.seq == seq), waiting[-1] if waiting else None)


class Continuation:
    """What a session keeps about where the recording ends and the run goes on; the session's lock guards it."""

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
        """Whether a call that the recording does not have comes after all that it has, as far as its lane can tell."""
        if self._is_answered:
            return True
        calls = self.recording.calls
        while lane not in {c.lane for c in calls} and "/" in lane:
            lane = lane.rpartition("/")[0]
        return not any(c.lane == lane and c.seq not in index.used and c.seq not in covered for c in calls)

    def find_missing(self, crossing: Crossing, index: RecordingIndex, covered: set[int]) -> CallRecord | None:
        """A recorded call that had to come before this one in its lane, and did not."""
        lane = crossing.lane.path
        for call in self.recording.calls:
            is_before = call.lane == lane and call.outcome != _OPEN
            if is_before and call.seq not in index.used and call.seq not in covered:
                return call
        return None

    def refuses(self, call: CallRecord | None) -> str:
        """Why an unfinished call can't be made again; '' if it can."""
        if call is None or call.effect not in _LASTING or self.resume.is_redone:
            return ""
        return (
            f"call {call.number} ({call.boundary}) was started, and its outcome is unknown: check its effect, then "
            "repeat it with `spanreplay resume --redo`"
        )

    def begin(self, run: Run, call: CallRecord | None) -> None:
        """The first call beyond the recording: from here on this process records."""
        self._is_answered = self._is_answered or (call is not None and call.kind == Kind.HUMAN.value)
        if self.has_gone_on:
            return
        self.has_gone_on = True
        run.loops = make_book(run)
        os.environ["SPANREPLAY_MODE"] = "record"  # for its children
        for name in ("SPANREPLAY_REPLAY_SOURCE", "SPANREPLAY_REPLAY_PLAN", "SPANREPLAY_REPLAY_PID"):
            os.environ.pop(name, None)

    def take_answer(self) -> tuple[bool, Any]:
        """Whether there is an answer that nobody has taken yet, and the answer."""
        has_answer = self.resume.has_answer
        answer, self.resume = self.resume.answer, replace(self.resume, has_answer=False)
        return has_answer, answer

    # ── the new recording ───────────────────────────────────────────────────────────────────────────
    def extend(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest of the new run, with what the old one says about its part."""
        old = self.recording.root.manifest
        merged = {**manifest, "lane_ends": {**manifest.get("lane_ends", {}), **self.lane_ends}}
        if self.timers is None:
            merged.pop("timers", None)
        else:
            merged["timers"] = {**manifest.get("timers", {}), **self.timers}
        for name in PACE:
            merged[name] = [*(old.get(name) or ()), *(manifest.get(name) or ())]
        return merged
