"""The start of a process, which all its units share: its last call, and how a unit's recording is joined with it.

The last call carries what no other call of the start does: reads of clock and random sources since the last call in
each lane, the order of concurrent events, and the environment variables used. A replay of a unit repeats the calls of
the start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import CallRecord, Kind, Recording, RootRecord
from spanreplay.model.code_state import ABSENT
from spanreplay.model.errors import DamagedRecording, SourceError, SpanreplayError
from spanreplay.model.json_text import dump
from spanreplay.model.lane_names import is_within, process_of
from spanreplay.model.levels import MEMBER
from spanreplay.recording.seal.check import find_tampering
from spanreplay.runtime.calls.function_calls import FunctionCall, begin_function_call, call_async, finish_sync
from spanreplay.runtime.calls.open_call import Crossing
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.order.steps import PACE
from spanreplay.runtime.order.worker_book import MEMBER as WORKERS
from spanreplay.runtime.order.worker_book import merge
from spanreplay.runtime.process.noted_effects import first_environs
from spanreplay.runtime.process.used_variables import ENV_FILES, VARIABLES
from spanreplay.runtime.reads import SOURCES, left_of
from spanreplay.seams.machine.reads_and_files import begin_files
from spanreplay.units.stated import MAIN, MESSAGES, READS, UNIT, WORKER, Start, find_unit

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.background import Past
    from spanreplay.runtime.run import Run

__all__ = ["Started", "end_start", "find_past", "has_units", "look_at_forked", "only_start", "with_start"]

_NAME: Final = "start"
ORDER: Final = "order"
"""Meta member of a start's last call: parts of a manifest."""
_MAPS: Final = ("lane_ends", "timers", "environment_read", VARIABLES)
_LISTS: Final = (*PACE, ENV_FILES)
_LOCK_ORDER: Final = ("handovers", WORKERS)
_FORKED_LATER: Final = (
    "a worker's process made calls or read clock or random values before its first unit: they are not replayed"
)
_SEALED: Final = ("root", "leaves")


# ── in the process ──────────────────────────────────────────────────────────────────────────────────
def end_start(process: Run) -> Start:
    """Make the last call of a process's start, only once in a replay; return the `Start` that its units refer to.

    Raises: ReplayMiss if the start differs from the recorded one.
    """
    root = process.root_lane.path
    extent = None if process.resolver.keeps else process.resolver.answers.extent
    if extent is not None and extent.has_started:
        return Start(process.run_id, 0, 0, root)
    with inside_lane(_lane_of(process)):
        crossing = begin_function_call(_describe_end)
        if crossing is None:
            return Start(process.run_id, process.tick(), process.calls, root)
        if process.resolver.keeps:
            _carry(process, crossing)
            if process.written is not None and process.written.state is not None:
                process.written.state.is_shared = True  # units read what its tasks write from now on
        finish_sync(crossing, lambda: None)
    _note_started(process)
    with process._lock:
        return Start(process.run_id, process.tick(), process.calls, root, tuple(process._holes))


def look_at_forked(start: Start, forked: Run) -> Start:
    """Return the start that a forked process shares, plus a hole if it acted on its own before its first unit."""
    return replace(start, holes=(*start.holes, _FORKED_LATER)) if has_acted(forked) else start


def has_acted(process: Run) -> bool:
    """Whether a process has made calls, or read clock or random values that its replay needs; consumes those reads."""
    left = [] if process.reads is None else process.reads.finish().get("reads", {}).get("left", [])
    sources = [SOURCES.get(row[0]) for _, rows in left for row in rows]
    return bool(process.calls) or any(source is not None and not source.is_loose for source in sources)


def _lane_of(process: Run) -> Lane:
    """Return the separate lane for the end of the start, whichever thread or task begins the first unit."""
    return Lane(f"{process.root_lane.path}/{_NAME}")


async def await_start(process: Run) -> None:
    """`end_start` for replays on a loop: waits until background tasks have done their part of the start; idempotent.

    Raises: ReplayMiss if the start differs from the recorded one.
    """
    extent = process.resolver.answers.extent
    if extent is not None and extent.has_started:
        return
    with inside_lane(_lane_of(process)):
        await call_async(_describe_end, _nothing)
    _note_started(process)


def _note_started(process: Run) -> None:
    extent = None if process.resolver.keeps else process.resolver.answers.extent
    if extent is not None:
        extent.note_started()
        first_environs.pop(process, None)  # a unit inherits the environment that the start has set
        begin_files(process)


async def _nothing() -> None:
    """No-op: in a replay the end of the start is never live."""


def _describe_end() -> FunctionCall:
    return FunctionCall(Kind.COMPUTE.value, _NAME, "pure", {}, prints=False)


def _carry(process: Run, crossing: Crossing) -> None:
    left = [] if process.reads is None else process.reads.finish().get("reads", {}).get("left", [])
    if left:
        crossing.reads = dump([*(json.loads(crossing.reads) if crossing.reads else []), *left])
    order = {
        "lane_ends": dict(process._lane_ends),
        "timers": dict(process._timers or {}),
        **({} if process.loops is None else process.loops.describe()),
        **process.lock_order.describe(),
        **({} if process.environment_read is None else process.environment_read.for_manifest({})),
    }
    crossing.spec.meta[ORDER] = {name: value for name, value in order.items() if value}


# ── for a replay ────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Started:
    """A unit's recording joined with the start of its process, and evidence of tampering with either."""

    recording: Recording
    tampering: str = ""
    in_flight: frozenset[tuple[str, str, int]] = frozenset()
    """Lane, boundary and index of calls still in flight when the start ended: no unit has their end."""
    is_unit: bool = True
    is_start_lost: bool = False
    launching: tuple[CallRecord, ...] = ()
    """What the processes above the unit's own had called before it began: a replay is all of them in one."""
    left: Sequence[Any] = ()
    """Segments of reads of these processes that none of their calls carries."""
    lasted_ns: int = 0
    """How long the start took; 0 if that is unknown."""


def with_start(unit: Recording, load: Callable[[str], Recording]) -> Started:
    """Join a unit's recording with the start of its process; a recording of another kind is returned unchanged.

    `load` returns the recording of a run id. Raises: any error of `load` except SourceError, which becomes a hole.
    """
    start = find_unit(unit.root.env)
    if start is None:
        return Started(unit, is_unit=False)
    wanted = start.process
    try:
        process = load(wanted)
        wanted = start.origin
        origin = load(wanted) if wanted else None
    except SourceError:
        lost = f"the start of its process, run {wanted}, is not here"
        return Started(_join(unit, (), start, {}, lost), find_tampering(unit), is_start_lost=True)
    calls = [_move(c, start.root) for c in process.calls if c.seq <= start.clock and is_within(c.lane, start.root)]
    order: Any = next((c.meta[ORDER] for c in reversed(calls) if c.name == _NAME and ORDER in c.meta), {})
    in_flight = {
        id(call): (call.lane, call.boundary, call.index) for call in calls if not 0 <= call.end_seq <= start.clock
    }
    ended = [call for call in calls if id(call) not in in_flight]
    numbered = tuple(replace(call, number=-call.number) for call in ended)  # `name_number` knows
    is_whole = len(calls) == start.calls
    lost = "" if is_whole else f"{len(calls)} of {start.calls} calls of the start of its process are here"
    reads = [segment for call in calls if id(call) in in_flight for segment in _read_segments(call)]
    joined = _join(unit, numbered, start, order if isinstance(order, Mapping) else {}, lost, reads)
    tampering = find_tampering(unit) or find_tampering(process)
    lasted_ns = max((call.end_ns for call in ended), default=0) - process.root.start_ns
    found = Started(joined, tampering, frozenset(in_flight.values()), lasted_ns=lasted_ns)
    if origin is not None:
        return _with_origin(found, origin, process.root.start_ns)
    return found if start.root == MAIN else _with_launch(found, process, start)


def _with_origin(found: Started, origin: Recording, forked_ns: int) -> Started:
    """Add what the program did before it forked the process, and what it read at any time."""
    above = tuple(call for call in origin.calls if call.start_ns < forked_ns)
    later = [segment for call in origin.calls if call.start_ns >= forked_ns for segment in _read_segments(call)]
    tampering = found.tampering or find_tampering(origin)
    return replace(found, launching=above, left=[*later, *left_of(origin.root.manifest)], tampering=tampering)


def _with_launch(found: Started, process: Recording, start: Start) -> Started:
    """Add what the processes above a worker had done before its first call, and what they had read at any time."""

    def is_above(lane: str) -> bool:
        return start.root.startswith(process_of(lane) + "/")

    began = min((c.seq for c in process.calls if is_within(c.lane, start.root)), default=start.clock)
    above = tuple(call for call in process.calls if call.seq < began and is_above(call.lane))
    later = [segment for call in process.calls if call.seq > began for segment in _read_segments(call)]
    left = [segment for segment in (*later, *left_of(process.root.manifest)) if is_above(str(segment[0]))]
    return replace(found, launching=above, left=left)


def find_past(unit: Recording, load: Callable[[str], Recording], oldest: RootRecord | None = None) -> Past | None:
    """Return the run of the process a unit ran in, for its background work; None if it is missing or was tampered with.

    `oldest`: the root of the first warm-up unit.
    """
    from spanreplay.replayer.resolve.background import Past  # not loaded while recording

    start, first = find_unit(unit.root.env), oldest or unit.root
    if start is None:
        return None
    worker, pending = unit.root.env[UNIT].get(WORKER), first.env[UNIT].get(READS)
    try:
        process = load(start.process if not isinstance(worker, str) else worker)
    except SpanreplayError:  # treated as missing: anything that waits for its work reports that
        return None
    if isinstance(worker, str):
        if find_tampering(process):  # for the start's process, `with_start` checks it
            return None
    else:
        calls = (_move(c, start.root) if is_within(c.lane, start.root) else c for c in process.calls)
        process = Recording(process.root, tuple(calls))
    end_ns = unit.root.end_ns or max((call.end_ns for call in unit.calls), default=0)
    is_loop = unit.root.env.get(MESSAGES) is True
    return Past(process, first.start_ns, end_ns, _read_pending(pending), is_loop)


def _read_pending(stated: Any) -> dict[str, dict[str, int]]:
    found = stated.items() if isinstance(stated, Mapping) else ()
    return {
        str(lane): {str(name): count for name, count in counts.items() if isinstance(count, int)}
        for lane, counts in found
        if isinstance(counts, Mapping)
    }


def only_start(unit: Recording) -> Recording:
    """Return a unit without its calls; joined with the start, it is the part that all units of the process share."""
    stated = unit.root.manifest
    kept: dict[str, Any] = {name: {} for name in ("timers", VARIABLES) if isinstance(stated.get(name), Mapping)}
    same = {name: stated[name] for name in (MEMBER, ABSENT) if name in stated}  # absent: what the start made
    return Recording(replace(unit.root, manifest={"calls": 0, **kept, **same}), ())


def _move(call: CallRecord, root: str) -> CallRecord:
    """Rename a worker's lanes to those of a standalone process."""
    if root == MAIN:
        return call
    order = json.loads(dump(call.meta.get(ORDER, {})).replace(root, MAIN))
    meta = {**call.meta, ORDER: order} if order else call.meta
    return replace(call, lane=call.lane.replace(root, MAIN, 1), reads=call.reads.replace(root, MAIN), meta=meta)


def _read_segments(call: CallRecord) -> list[Any]:
    """Return the reads that a call carries. Raises: DamagedRecording."""
    try:
        found: list[Any] = json.loads(call.reads) if call.reads else []
    except ValueError as exc:
        raise DamagedRecording("the recorded reads of clock and random sources are damaged") from exc
    return found


def has_units(recording: Recording) -> bool:
    """Whether this is the run of a process whose units have their own runs."""
    return any(call.kind == Kind.COMPUTE.value and call.name == _NAME for call in recording.calls)


def _join(
    unit: Recording,
    calls: tuple[CallRecord, ...],
    start: Start,
    order: Mapping[str, Any],
    lost: str,
    reads: Sequence[Any] = (),
) -> Recording:
    manifest: dict[str, Any] = {k: v for k, v in unit.root.manifest.items() if k not in _SEALED}
    if manifest:
        manifest["calls"] = manifest.get("calls", 0) + len(calls)
        for name in _MAPS:
            if isinstance(order.get(name), Mapping) and isinstance(manifest.get(name, {}), Mapping):
                manifest[name] = {**order[name], **manifest.get(name, {})}
        for name in _LISTS:
            if isinstance(order.get(name), list):
                manifest[name] = [*order[name], *manifest.get(name, [])]
        for name in _LOCK_ORDER:
            if order.get(name) and name not in manifest:
                manifest[name] = order[name]
            elif name == WORKERS and isinstance(order.get(name), dict):
                merge(manifest, order)
        if reads:
            stated = manifest.get("reads", {})
            manifest["reads"] = {**stated, "left": [*stated.get("left", []), *reads]}
        if lost:
            manifest["holes"] = [*manifest.get("holes", []), lost]
    return Recording(replace(unit.root, manifest=manifest), (*calls, *unit.calls))
