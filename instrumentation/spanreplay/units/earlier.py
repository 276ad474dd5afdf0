"""Joins a unit's recording with earlier units of its process, which a replay runs first to warm up.

The Lamport clocks of units overlap, because each one continues from the clock of the process. Joining shifts the ticks
of each unit above those of the previous one. Each earlier unit has its own root lane.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from spanreplay.model import config
from spanreplay.model.call import CallRecord, Completeness, Recording, RootRecord
from spanreplay.model.errors import DamagedRecording, SourceError
from spanreplay.model.json_text import dump
from spanreplay.model.lane_names import EARLIER_LANE, OF_EARLIER
from spanreplay.recording.seal.check import find_tampering
from spanreplay.replayer.resolve.warm_up import EarlierUnit
from spanreplay.runtime.order.lock_order import MEMBER as LOCK_ORDER
from spanreplay.runtime.order.steps import PACE
from spanreplay.runtime.order.worker_book import MEMBER as WORKERS
from spanreplay.runtime.order.worker_book import merge
from spanreplay.runtime.process.used_variables import ENV_FILES, VARIABLES
from spanreplay.units.http_exchange import DISCONNECT, KIND
from spanreplay.units.stated import LANE, Start, count_before, find_unit, is_before

__all__ = ["WarmRecording", "with_earlier"]

_STEPS: Final = "steps"
_CLIENT_LEFT: Final = f"{KIND}:{DISCONNECT}"
_STILL_THERE: Final = "its client was still connected at this unit's last call"
_BY_NAME: Final = ("environment_read", VARIABLES)


@dataclass(frozen=True)
class WarmRecording:
    """A recording in which the calls of earlier units precede those of the judged unit."""

    recording: Recording
    units: tuple[EarlierUnit, ...]
    clock: int
    """All ticks of the judged unit are greater."""
    completeness: Completeness
    """The completeness of the recording without the earlier units."""
    tampering: str = ""
    oldest: RootRecord | None = None
    """The root of the first earlier unit; None if there are none."""


def with_earlier(joined: Recording, run_ids: Iterable[str], load: Callable[[str], Recording]) -> WarmRecording:
    """Join the given earlier units between the start of the process and the unit itself.

    Uses only the latest `config.WARM_UP_UNITS_MAX` units within `config.WARM_UP_BYTES_MAX`. Raises: DamagedRecording.
    """
    start = find_unit(joined.root.env)
    if start is None:
        return WarmRecording(joined, (), 0, joined.completeness())
    units = _load(joined, run_ids, load)
    until = max((call.start_ns for call in joined.calls if call.seq > start.clock), default=joined.root.end_ns)
    tampering = ""
    clock, calls, made = start.clock, [], []
    manifest: dict[str, Any] = {}
    for number, unit in enumerate(units, 1):
        lane = f"{EARLIER_LANE}{number}"
        move = _Move(lane, start, clock - start.clock)
        made.append(_make_unit(unit, lane, clock, until))
        tampering = tampering or find_tampering(unit)
        calls += [move.call(call) for call in unit.calls]
        manifest = _merge(manifest, move.manifest(unit.root.manifest))
        clock = max(clock, move.top)
    own = _Move(LANE, start, clock - start.clock)
    before = [call for call in joined.calls if call.seq <= start.clock]
    judged = [own.call(call) for call in joined.calls if call.seq > start.clock]
    merged = _merge(manifest, own.manifest(joined.root.manifest)) if joined.root.manifest else {}
    if "timers" not in joined.root.manifest:  # the unit's own timers are lost
        merged.pop("timers", None)
    if merged:
        merged["calls"] = merged.get("calls", 0) + len(calls)
    earlier = [replace(call, number=OF_EARLIER) for call in calls]
    recording = Recording(replace(joined.root, manifest=merged), (*before, *earlier, *judged))
    oldest = units[0].root if units else None
    return WarmRecording(recording, tuple(made), clock, joined.completeness(), tampering, oldest)


def _make_unit(unit: Recording, lane: str, clock: int, until_ns: int) -> EarlierUnit:
    """Describe an earlier unit; an exchange whose client left only after the judged unit's last call is left out."""
    reasons = unit.completeness().reasons
    made = EarlierUnit(unit.run_id, lane, clock, f"incomplete: {reasons[0]}" if reasons else "")
    if any(call.boundary == _CLIENT_LEFT and 0 < until_ns < call.end_ns for call in unit.calls):
        made.is_left_out, made.reason, made.why = True, _STILL_THERE, _STILL_THERE
    return made


def _load(joined: Recording, run_ids: Iterable[str], load: Callable[[str], Recording]) -> list[Recording]:
    found: list[Recording] = []
    left = config.WARM_UP_BYTES_MAX
    for run_id in list(run_ids)[: -config.WARM_UP_UNITS_MAX - 1 : -1]:
        try:
            unit = load(run_id)
        except SourceError:
            continue  # the verdict reports how many are missing
        left -= sum(len(call.request) + len(call.response) + len(call.reads) for call in unit.calls)
        if left < 0:
            break
        if is_before(unit, joined):
            found.append(unit)
    return sorted(found, key=count_before)


class _Move:
    """Shifts the ticks of a unit, which are greater than those of the start, and renames its lanes."""

    def __init__(self, lane: str, start: Start, by: int) -> None:
        self._lane = lane
        self._floor, self._by = start.clock, by
        self.top = start.clock + by
        """The highest shifted tick so far."""

    def clock(self, value: int) -> int:
        if value <= self._floor:
            return value
        self.top = max(self.top, value + self._by)
        return value + self._by

    def name(self, name: str) -> str:
        """Rename a lane, or a name that begins with one."""
        rest = name[len(LANE) :]
        return self._lane + rest if name.startswith(LANE) and rest[:1] in ("", "/", "|") else name

    def call(self, call: CallRecord) -> CallRecord:
        """Return a call with shifted ticks and renamed lanes. Raises: DamagedRecording."""
        return replace(
            call,
            seq=self.clock(call.seq),
            end_seq=self.clock(call.end_seq),
            parent=self.clock(call.parent),
            joint=self.clock(call.joint),
            clocks=tuple(map(self.clock, call.clocks)),
            lane=self.name(call.lane),
            reads=self._reads(call.reads),
        )

    def _reads(self, text: str) -> str:
        if not text or self._lane == LANE:
            return text
        try:
            return dump(self._segments(json.loads(text)))
        except (ValueError, TypeError) as exc:
            raise DamagedRecording("the recorded reads of clock and random sources are damaged") from exc

    def _segments(self, segments: Any) -> list[Any]:
        return [[self.name(lane), rows] for lane, rows in segments]

    def manifest(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the manifest members about order and process state; for the judged unit, all other members too."""
        moved: dict[str, Any] = dict(manifest) if self._lane == LANE else {}
        ends, timers, reads = (manifest.get(name) for name in ("lane_ends", "timers", "reads"))
        if isinstance(ends, Mapping):
            moved["lane_ends"] = {self.name(lane): self.clock(clock) for lane, clock in ends.items()}
        if isinstance(timers, Mapping):
            moved["timers"] = {self.name(name): [*map(self.clock, fired)] for name, fired in timers.items()}
        if isinstance(reads, Mapping) and isinstance(reads.get("left"), list):
            moved["reads"] = {**reads, "left": self._segments(reads["left"])}
        for name in PACE:
            if isinstance(manifest.get(name), list):
                moved[name] = self._steps(manifest[name]) if name == _STEPS else [*map(self.clock, manifest[name])]
        shared = manifest.get(LOCK_ORDER)
        if isinstance(shared, Mapping) and isinstance(shared.get("lanes"), list):
            moved[LOCK_ORDER] = {**shared, "lanes": [*map(self.name, shared["lanes"])]}
        workers = manifest.get(WORKERS)
        if isinstance(workers, Mapping):
            moved[WORKERS] = {name: self._lanes(each) for name, each in workers.items()}
        moved.update({name: manifest[name] for name in (*_BY_NAME, ENV_FILES) if name in manifest})
        return moved

    def _lanes(self, stated: Any) -> Any:
        return {self.name(lane): each for lane, each in stated.items()} if isinstance(stated, Mapping) else stated

    def _steps(self, flat: Sequence[int]) -> list[int]:
        """Shift flat triples of a tick, the tick it is counted from, and a number of callbacks."""
        return [value if at % 3 == 2 else self.clock(value) for at, value in enumerate(flat)]


def _merge(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two manifests; where only one value can stand, the second manifest's wins."""
    merged = {**first, **then}
    for name in ("lane_ends", "timers", *_BY_NAME):
        if isinstance(first.get(name), Mapping) and isinstance(then.get(name), Mapping):
            merged[name] = {**first[name], **then[name]}
    for name in PACE:
        if isinstance(first.get(name), list) and isinstance(then.get(name), list):
            merged[name] = [*first[name], *then[name]]
    if isinstance(first.get(ENV_FILES), list) and isinstance(then.get(ENV_FILES), list):
        merged[ENV_FILES] = [*then[ENV_FILES], *(each for each in first[ENV_FILES] if each not in then[ENV_FILES])]
    left = [*_left(first), *_left(then)]
    if left:
        merged["reads"] = {**then.get("reads", {}), "left": left}
    if first.get(LOCK_ORDER) and then.get(LOCK_ORDER):
        merged[LOCK_ORDER] = _chain(first[LOCK_ORDER], then[LOCK_ORDER])
    if isinstance(first.get(WORKERS), dict) and isinstance(then.get(WORKERS), dict):
        merged[WORKERS] = first[WORKERS]
        merge(merged, then)
    return merged


def _left(manifest: Mapping[str, Any]) -> list[Any]:
    reads = manifest.get("reads")
    found = reads.get("left") if isinstance(reads, Mapping) else None
    return found if isinstance(found, list) else []


def _chain(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Concatenate the lock acquisition order of two units, per place."""
    shift = len(first["lanes"])
    later = {
        name: [value if at % 2 else value + shift for at, value in enumerate(flat)]
        for name, flat in then["places"].items()
    }
    places = {name: [*first["places"].get(name, ()), *later.get(name, ())] for name in {**first["places"], **later}}
    return {"lanes": [*first["lanes"], *then["lanes"]], "places": places}
