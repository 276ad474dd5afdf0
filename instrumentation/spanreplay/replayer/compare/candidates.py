"""The recorded calls nearest to a call without an answer, and why each of them was rejected."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Final

from spanreplay.model.call import CallRecord
from spanreplay.model.lane_names import name_lane
from spanreplay.replayer.divergence import Candidate, diff_json
from spanreplay.replayer.index import RecordingIndex, Slot

CANDIDATES_MAX: Final = 3
_COMPARED_CHARACTERS_MAX: Final = 4000
_ANOTHER_BOUNDARY: Final = 0.5


def find_candidates(index: RecordingIndex, slot: Slot, key: str, request: str) -> tuple[Candidate, ...]:
    """Return at most three recorded calls, the most similar first; O(1) in the length of the run."""
    rated = [(_rate(call, slot, key, request), call) for call in index.iter_near(slot)]
    rated.sort(key=lambda pair: (-pair[0], pair[1].seq))
    return tuple(
        Candidate(
            seq=call.seq,
            call=call.number,
            boundary=call.boundary,
            lane=call.lane,
            index=call.index,
            score=round(score, 3),
            why_rejected=_why_rejected(index, call, slot, key, request),
            span_id=call.span_id,
        )
        for score, call in rated[:CANDIDATES_MAX]
    )


def _rate(call: CallRecord, slot: Slot, key: str, request: str) -> float:
    if call.boundary == slot[1] and call.key == key:
        return 1.0
    a, b = call.request[:_COMPARED_CHARACTERS_MAX], request[:_COMPARED_CHARACTERS_MAX]
    alike = 1.0 if a == b else SequenceMatcher(None, a, b).quick_ratio()
    score = alike if call.boundary == slot[1] else alike * _ANOTHER_BOUNDARY
    return score if (call.lane, call.boundary, call.index) == slot else score * 0.99


def _why_rejected(index: RecordingIndex, call: CallRecord, slot: Slot, key: str, request: str) -> str:
    """Return the first objection to a call, in the order in which resolution checks."""
    if call.boundary != slot[1]:
        return f"it is {call.boundary}, not {slot[1]}"
    if call.key == key:
        return "it was already served" if index.is_used(call) else f"it is in {name_lane(call.lane)}"
    found = diff_json(call.request, request)
    places = [d.path.removeprefix("body.") for d in found if not d.path.startswith("headers")]
    if not places:
        return "its key differs, but in nothing that the recording still shows"
    differs = f"and {len(places) - 1} more differ" if len(places) > 1 else "differs"
    used = ", and it was already served" if index.is_used(call) else ""
    return f"{places[0]} {differs}{used}"
