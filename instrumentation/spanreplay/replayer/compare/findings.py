"""The findings of a replay so far: divergences, with place, kind and nearest candidates, and ignored differences."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spanreplay.model import attributes as names
from spanreplay.model import ids
from spanreplay.model.call import CallRecord, Kind, Recording
from spanreplay.model.digests import differing_paths
from spanreplay.model.lane_names import OF_EARLIER, name_call, name_number
from spanreplay.replayer.compare import ignored, moving_parts
from spanreplay.replayer.compare.candidates import find_candidates
from spanreplay.replayer.compare.conversation import Comparison, compare
from spanreplay.replayer.compare.ignored import IgnoredDiff
from spanreplay.replayer.compare.kinds import CHANGED, TYPE_CHANGED, find_kind, find_unserializable
from spanreplay.replayer.compare.lane_order import LaneOrder
from spanreplay.replayer.compare.native_code import find_native
from spanreplay.replayer.compare.retrieval import compare_chunks
from spanreplay.replayer.compare.swaps import may_swap, name_alike
from spanreplay.replayer.compare.taint import Taint
from spanreplay.replayer.divergence import (
    DIFFS_MAX,
    NOT_KEPT,
    Cause,
    Diff,
    Divergence,
    comparable_response,
    diff_json,
    find_value,
    leaf_strings,
    with_causes,
)
from spanreplay.replayer.index import RecordingIndex

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing

DIVERGENCES_MAX = 1000
EXPLAINED_MAX: Final = 20
"""The number of divergences that get candidates and a stack."""
TEXT_CHARACTERS_MIN: Final = 8
"""A shorter text says nothing about where it comes from."""
_WITH_CANDIDATES: Final = frozenset(
    {"changed_call", "extra_call", "ambiguous", "boundary_renamed", "type_changed", "unserializable"}
)
_WITH_DIFF: Final = frozenset({"changed_call", "type_changed", "unserializable", "boundary_renamed"})


class Findings:
    """Divergences and ignored differences. Not thread-safe: the session's lock guards it."""

    def __init__(self, recording: Recording, index: RecordingIndex) -> None:
        self.divergences: list[Divergence] = []
        self.divergences_total = 0
        self.ignored: list[IgnoredDiff] = []
        self.ignored_total = 0
        self.outputs: dict[int, tuple[int, str, str, str]] = {}
        """Live calls whose output is different or new: seq → number, boundary, recorded response, response now."""
        self.moves: list[tuple[int, CallRecord, int]] = []
        """(position in `divergences`, recorded call, index now) of every call that moved."""
        self.exchanged: set[str] = set()
        """The lanes that have made calls of other lanes, where that is no difference by itself."""
        self.reordered: list[Divergence] = []
        """Calls that their lane, or one like it, made behind a later one."""
        self._order = LaneOrder(recording.calls)
        self.taint = Taint()
        self.native: dict[int, str] = {}
        """Calls that differ → libraries with native code between the agent and them."""
        self.doubt = ""
        """An unrecorded read of the recorded run that may be the cause of everything; '' if something else may be."""
        self.loaded: frozenset[str] | None = None
        """The names of the modules that were loaded when something first differed; None if nothing has."""
        self.on_first: Callable[[], None] | None = None
        """Called before the first call diverges: it may know what happened before."""
        self._recording = recording
        self._index = index
        self._known_messages: set[str] = set()
        self._explained = 0

    def follow(self, recording: Recording, index: RecordingIndex) -> None:
        """Switch to a longer recording; the findings stay."""
        self._recording, self._index = recording, index
        self._order.learn(recording.calls)

    def note_move(self, crossing: Crossing, call: CallRecord, detail: str, *, is_ambiguous: bool) -> None:
        """Note a call that was made at another place, unless one lane may make calls of the other."""
        lane, other = call.lane, crossing.lane.path
        if is_ambiguous or not may_swap(self._recording, lane, other):
            self.note_call(crossing, "ambiguous" if is_ambiguous else "moved", call, detail)
            return
        self.exchanged.update((lane, other))
        births = crossing.lane.births
        before = self._order.note_exchange(name_alike(lane), other, call, crossing.seq, births)
        self._note_order(crossing, call, before)

    def note_made(self, crossing: Crossing, call: CallRecord) -> None:
        """Note a call that is made at its own place, perhaps behind one that came after it when recorded."""
        lane = crossing.lane
        self._note_order(crossing, call, self._order.note(lane.path, call, crossing.seq, lane.births))

    def _note_order(self, crossing: Crossing, call: CallRecord, before: CallRecord | None) -> None:
        if before is not None and len(self.reordered) < DIVERGENCES_MAX:
            places = [name_call(each.number, each.lane) for each in (call, before)]
            detail = f"{places[0]} came before {places[1]} ({before.boundary}), now behind it"
            self.reordered.append(self._describe(crossing, "moved", call, detail, ()))

    def note_call(
        self,
        crossing: Crossing,
        kind: str,
        call: CallRecord | None,
        detail: str = "",
        diff: tuple[Diff, ...] = (),
        cause: str = "",
    ) -> Divergence:
        """Note a call that differs; `call` is the recorded one in its place, `cause` is what the plan changed in it."""
        if self.on_first is not None and not self.divergences:
            self.on_first()
        if call is not None and not diff:
            diff = self._diff(crossing, call)
        if kind == CHANGED:
            kind = find_kind(diff, crossing.spec.request)
        if kind == TYPE_CHANGED:
            detail = detail or f"{diff[0].path} was {_type(diff[0].recorded)}, now it is {_type(diff[0].now)}"
        if kind == "unserializable":
            detail = f"the argument at {find_unserializable(crossing.spec.request)} has no codec"
        found = self._describe(crossing, kind, call, detail or first_place(diff), diff)
        if cause:
            found = replace(with_causes(found, [_planned(cause)]), is_downstream=False, downstream_of=0)
        self.add(found)
        texts = {d.now for d in diff if isinstance(d.now, str) and len(d.now) >= TEXT_CHARACTERS_MIN}
        self.taint.note(crossing.lane.path, crossing.seq, texts)
        if kind == "moved" and call is not None:
            self.moves.append((len(self.divergences) - 1, call, crossing.index))
        return found

    def _diff(self, crossing: Crossing, call: CallRecord) -> tuple[Diff, ...]:
        """Return where the requests differ, using digests if the recorded one wasn't kept or shows no difference."""
        diff: tuple[Diff, ...] = ()
        if call.request:
            diff, _ = ignored.split(call.keyspec, diff_json(call.request, crossing.spec.request))
        is_same = call.boundary != crossing.boundary or call.key == crossing.key.hex
        if diff or is_same or not call.digests or self._is_keyed_otherwise(crossing):
            return diff
        fields = crossing.key_fields
        paths = differing_paths(call.digests, crossing.run.digester.describe(crossing.key, fields))
        return tuple(Diff(path, NOT_KEPT, find_value(fields, path)) for path in paths[:DIFFS_MAX])

    def _is_keyed_otherwise(self, crossing: Crossing) -> bool:
        key = self._recording.root.env.get(names.REDACTION_KEY)
        return bool(key) and key != crossing.run.redactor.fingerprint

    def _describe(
        self, crossing: Crossing, kind: str, call: CallRecord | None, detail: str, diff: tuple[Diff, ...]
    ) -> Divergence:
        root = self.taint.find(crossing.lane.path, diff)
        found = Divergence(
            kind=kind,
            boundary=crossing.boundary,
            message=f"{kind.replace('_', ' ')} at {place(crossing)}: {detail}",
            lane=crossing.lane.path,
            index=crossing.index,
            seq=crossing.seq,
            call=crossing.number,
            code=crossing.code,
            diff=diff if kind in _WITH_DIFF else (),
            hint=self._hint(crossing, kind, call, diff),
            is_downstream=root is not None,
            downstream_of=root or 0,
            recorded_span_id=call.span_id if call is not None else "",
            replay_span_id=f"{crossing.span_context.span_id:016x}",
            part=self._part(crossing, kind, call, diff),
        )
        if call is not None and crossing.spec.kind == Kind.LLM.value and kind in _WITH_DIFF:
            found = self._with_turn(found, compare(call.request, crossing.spec.request))
        if root is None and self._explained < EXPLAINED_MAX:
            self._explained += 1
            native = find_native(sys._getframe(1), crossing.spec.name)
            if native:
                self.native[crossing.seq] = native
            slot = (crossing.lane.path, crossing.boundary, crossing.index)
            near = find_candidates(self._index, slot, crossing.key.hex, crossing.spec.request)
            found = replace(
                found, candidates=near if kind in _WITH_CANDIDATES else (), stack=ids.find_stack(4) or found.stack
            )
        return found

    def _with_turn(self, found: Divergence, comparison: Comparison) -> Divergence:
        """Add the messages that this call itself changed; changes from earlier calls are only counted."""
        changed = [c for c in comparison.changes if c.change != "dropped"]
        own = [c for c, text in zip(changed, comparison.texts, strict=False) if text not in self._known_messages]
        own += [c for c in comparison.changes if c.change == "dropped"]
        if len(self._known_messages) < DIVERGENCES_MAX:
            self._known_messages.update(comparison.texts)
        message = found.message
        if found.is_downstream and comparison.changes and not own:
            message += f"; turn {comparison.turn} brought that; this call adds no other change"
        return replace(found, turn=comparison.turn, context=tuple(own), message=message)

    @staticmethod
    def _part(crossing: Crossing, kind: str, call: CallRecord | None, diff: tuple[Diff, ...]) -> str:
        if call is not None and kind in _WITH_DIFF:
            return moving_parts.part_of_request(crossing.spec.kind, diff, call.request, crossing.spec.request)
        return moving_parts.part_of_kind(crossing.spec.kind) if kind in ("extra_call", "missing_call") else ""

    def _hint(self, crossing: Crossing, kind: str, call: CallRecord | None, diff: tuple[Diff, ...]) -> str:
        hint = f"spanreplay show {self._recording.run_id}" if call is None else show_call(call, self._recording.run_id)
        if kind in _WITH_DIFF and self._has_other_key(crossing, diff):
            return "the recording was made with another redaction key: set SPANREPLAY_REDACT_KEY to its file"
        if kind == "unserializable":
            return "pass plain data, a pydantic model or a dataclass across this boundary"
        if kind in _WITH_DIFF or kind == "ambiguous":
            hint += ", or serve it by position with --on-change serve"
        return hint

    def _has_other_key(self, crossing: Crossing, diff: tuple[Diff, ...]) -> bool:
        return self._is_keyed_otherwise(crossing) and any(
            "rdx-" in str(d.recorded) and "rdx-" in str(d.now) for d in diff
        )

    def note_output(self, crossing: Crossing, call: CallRecord, outcome: str, response: str, cause: str = "") -> None:
        """Note the output of a live or overridden call if it differs from the recorded one."""
        if call.outcome == outcome and call.response == response:
            return
        is_model = crossing.spec.kind in moving_parts.MODELS
        diff = diff_json(comparable_response(call.response), comparable_response(response), is_model=is_model)
        if call.outcome != outcome:
            diff = (Diff("outcome", call.outcome, outcome), *diff)
        if not diff:
            return
        chunks = compare_chunks(call.response, response) if crossing.spec.kind == Kind.RETRIEVER.value else ()
        detail = first_place(diff)
        if chunks:
            detail = "chunks " + ", ".join(f"{c.name!r} {c.change}" for c in chunks[:3])
            detail += f" and {len(chunks) - 3} more" if len(chunks) > 3 else ""
        root = None if cause else self.taint.find(crossing.lane.path, diff)
        causes = (_planned(cause),) if cause else ()
        self.add(
            Divergence(
                kind="output_changed",
                boundary=crossing.boundary,
                message=f"output changed at {place(crossing)}: {detail}",
                lane=crossing.lane.path,
                index=crossing.index,
                seq=crossing.seq,
                call=crossing.number,
                code=crossing.code,
                diff=diff,
                cause=cause,
                causes=causes,
                hint=show_call(call, call.run_id),
                is_downstream=root is not None,
                downstream_of=root or 0,
                recorded_span_id=call.span_id,
                replay_span_id=f"{crossing.span_context.span_id:016x}",
                part=moving_parts.part_of_output(crossing.spec.kind, call.meta, crossing.spec.meta),
                serving=moving_parts.stated_by(crossing.spec.kind, call.meta, crossing.spec.meta),
                chunks=chunks,
            )
        )
        self.keep_output(crossing, call.response, response)
        self.taint.note(crossing.lane.path, crossing.seq, leaf_strings(response) - leaf_strings(call.response))

    def keep_output(self, crossing: Crossing, recorded: str, response: str) -> None:
        """Remember a live call's output, to recognise it where it is used."""
        if len(self.outputs) < DIVERGENCES_MAX:
            self.outputs[crossing.seq] = (crossing.number, crossing.boundary, recorded, response)

    def note_ignored(self, crossing: Crossing, call: CallRecord, diff: tuple[Diff, ...]) -> None:
        """Note a served call whose request differs in parts outside its key."""
        if len(self.ignored) >= ignored.IGNORED_MAX:
            self.ignored_total += 1
            return
        if not diff:
            return
        self.ignored_total += 1
        self.ignored.append(
            IgnoredDiff(
                boundary=crossing.boundary,
                lane=crossing.lane.path,
                seq=crossing.seq,
                call=crossing.number,
                code=crossing.code,
                recorded_span_id=call.span_id,
                replay_span_id=f"{crossing.span_context.span_id:016x}",
                diff=diff,
            )
        )

    def add_outside(self, divergence: Divergence) -> None:
        """Add a difference found outside a call."""
        root = self.taint.find(divergence.lane) if divergence.lane else None
        self.add(replace(divergence, is_downstream=root is not None, downstream_of=root or 0))
        if divergence.lane:
            self.taint.note(divergence.lane, divergence.seq)

    def add(self, divergence: Divergence) -> None:
        """Keep a divergence; beyond DIVERGENCES_MAX they are only counted."""
        self.divergences_total += 1
        if self.loaded is None:
            self.loaded = frozenset(sys.modules)
        if len(self.divergences) < DIVERGENCES_MAX:
            self.divergences.append(divergence)


def _planned(cause: str) -> Cause:
    return Cause("plan", cause, "value", "plan")


def show_call(call: CallRecord, run_id: str) -> str:
    """The command that shows a recorded call of this run, or of the start of its process."""
    if call.number == OF_EARLIER:
        return f"spanreplay show {call.run_id}"
    return f"spanreplay show {run_id if call.number >= 0 else call.run_id} --call {abs(call.number)}"


def place(crossing: Crossing) -> str:
    """Return where a call is, in the form that every message uses."""
    where = f"{name_number(crossing.number)} ({crossing.boundary}, lane {crossing.lane.path})"
    return f"{where}, {crossing.code}" if crossing.code else where


def first_place(diff: tuple[Diff, ...]) -> str:
    """Return the first differing place in words."""
    if not diff:
        return "it differs in fields that are not shown"
    first = diff[0]
    where = f"{first.path} differs" + (f" at character {first.at}" if first.at >= 0 else "")
    if len(diff) == 1:
        return where
    rest = "1 more field differs" if len(diff) == 2 else f"{len(diff) - 1} more fields differ"
    return f"{where}, and {rest}"


def _type(value: object) -> str:
    if isinstance(value, dict) and "$type" in value:
        return f"a {value['$type']}"
    words = {
        str: "a text",
        bool: "a boolean",
        int: "an integer",
        float: "a float",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else words.get(type(value), type(value).__name__)
