"""The values passed around: one call, one root record, one recording."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

IMPORTED = "imported"
"""Member of the environment: the tool whose cassette a recording was made of."""
LOST = "lost_processes"
"""Member of the manifest: the number of the run's processes that ended without reporting their work."""
SHARED = "shared_workers"
"""Member of earlier versions' manifests: the number of processes that took shared items, in an unknown distribution."""
ALONE = "tool_alone"
"""Meta member of a request that fetches something: a reporting tool alone made it, in a thread or task of its own. A
replay, which answers the tool's reports with nothing, may not get as far."""
BIRTHS = "lane_births"
"""Meta member of the first call of a lane: when the lane and those above it were made, on the clock of the run; a
number for each of the last parts of the lane's path. Left out if all are 0."""

__all__ = ["CallRecord", "Completeness", "Effect", "Kind", "Outcome", "Recording", "RootRecord"]


class Kind(str, Enum):
    """The kind of boundary that a call crosses."""

    LLM = "llm"
    EMBEDDING = "embedding"
    TOOL = "tool"
    RETRIEVER = "retriever"
    MCP = "mcp"
    HTTP = "http"
    HUMAN = "human"
    CLOCK = "clock"
    RANDOM = "random"
    COMPUTE = "compute"


class Effect(str, Enum):
    """The effect that a call may have on the world."""

    PURE = "pure"
    READ = "read"
    WRITE = "write"
    IRREVERSIBLE = "irreversible"


class Outcome(str, Enum):
    """The outcome of a call; `open` means that its end was never recorded."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    OPEN = "open"


_AT_CALL: Final = re.compile(r"call (\d+) \(")
"""Start of a hole that was noted at a call, which only knows its Lamport clock value."""


@dataclass(frozen=True)
class CallRecord:
    """One recorded call: a boundary span as data.

    Ids are lower-case hexadecimal: run_id 32, trace_id 32, span_id 16, key 64 characters.
    Times are nanoseconds since the Unix epoch. `request` and `response` are JSON text.
    """

    run_id: str
    seq: int
    kind: str
    name: str
    lane: str
    index: int
    key: str
    keyspec: str
    request: str
    response: str = ""
    outcome: str = Outcome.OPEN.value
    effect: str = Effect.READ.value
    end_seq: int = -1
    parent: int = -1
    call_id: str = ""
    code: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    redactions: Mapping[str, int] = field(default_factory=dict)
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    start_ns: int = 0
    end_ns: int = 0
    reads: str = ""
    """JSON text: the lane's reads of clock and random sources before this call."""
    joint: int = -1
    """`end_seq` of the first call that completed in the same event loop iteration, if that is another call."""
    digests: str = ""
    """JSON text: keyed digests of the request's parts (`digests.py`)."""
    clocks: tuple[int, ...] = ()
    """When each part of a stream arrived, on the run's Lamport clock; empty for a call that answers in one piece."""
    number: int = field(default=0, compare=False)
    """The call's number in its run, by start, from 1, as shown to people. 0 until it is part of a `Recording`."""

    @classmethod
    def assemble(cls, **fields: Any) -> CallRecord:
        """Make a record of these fields, unchecked; a frozen class's own `__init__` takes four times as long."""
        record = object.__new__(cls)
        record.__dict__.update(fields)
        return record

    @property
    def boundary(self) -> str:
        """Kind and name, as written in plans and reports: `tool:delete_accounts`."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class RootRecord:
    """The run's root span as data; `manifest` is empty until the run has ended."""

    run_id: str
    app: str = ""
    trace_id: str = ""
    span_id: str = ""
    start_ns: int = 0
    end_ns: int = 0
    outcome: str = Outcome.OPEN.value
    env: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    replay_of: str = ""
    user_id: str = ""
    session_id: str = ""
    apart: int = 0
    """Records that reached the store later with other content; they are not part of the run."""


@dataclass(frozen=True)
class Completeness:
    """Whether a recording can be replayed completely; `reasons` lists the holes."""

    is_complete: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recording:
    """All calls of one run in start order, with its root record."""

    root: RootRecord
    calls: tuple[CallRecord, ...]

    def __post_init__(self) -> None:
        """Number the calls; a call that already has a number in its run keeps it."""
        for number, call in enumerate(self.calls, 1):
            if not call.number:
                object.__setattr__(call, "number", number)

    @property
    def run_id(self) -> str:
        """The run's id, 32 hexadecimal characters."""
        return self.root.run_id

    @property
    def is_imported(self) -> bool:
        """Whether it was made of a cassette: it holds HTTP requests, and nothing else that the program did."""
        return bool(self.root.env.get(IMPORTED))

    def completeness(self) -> Completeness:
        """Compare the calls with the root's manifest; pure, O(calls)."""
        reasons: list[str] = []
        manifest = self.root.manifest
        if not manifest:
            reasons.append("the run did not end: its process was killed or is still running")
        suspended = manifest.get("suspended")
        waiting: Any = suspended.get("seq") if isinstance(suspended, Mapping) else None
        numbers = {c.seq: c.number for c in self.calls}
        if isinstance(suspended, Mapping):
            reasons.append(
                f"suspended at call {numbers.get(waiting, waiting)}, "
                f"which waits for an answer to {suspended.get('prompt')!r}: "
                f"spanreplay resume {self.run_id} --input ANSWER"
            )
        reasons.extend(
            f"call {c.number} ({c.boundary}) was started and never finished"
            for c in self.calls
            if c.outcome == Outcome.OPEN.value and c.seq != waiting and not self._was_ended(c.lane)
        )
        expected = manifest.get("calls")
        # A process that could not report its work may have left calls here that were not counted
        is_short = isinstance(expected, int) and expected > len(self.calls)
        if isinstance(expected, int) and (is_short or (expected < len(self.calls) and not manifest.get(LOST))):
            reasons.append(f"{len(self.calls)} of {expected} calls are here")
        for name in ("dropped", "truncated"):
            count = manifest.get(name, 0)
            if isinstance(count, int) and count:
                reasons.append(f"{count} calls {name}")
        unredacted = manifest.get("redaction_errors", 0)
        if isinstance(unredacted, int) and unredacted:
            reasons.append(f"{unredacted} values could not be redacted and were left out")
        holes = manifest.get("holes", ())
        if isinstance(holes, list):
            reasons.extend(_with_number(str(hole), numbers) for hole in holes)
        return Completeness(not reasons, tuple(reasons))

    def _was_ended(self, lane: str) -> bool:
        """Whether a pool ended the worker process of this lane: nobody has seen the calls it did not finish."""
        workers = self.root.manifest.get("workers")
        ended = workers.get("ended", ()) if isinstance(workers, Mapping) else ()
        return any(lane == each or lane.startswith(f"{each}/") for each in ended)


def _with_number(hole: str, numbers: Mapping[int, int]) -> str:
    """Replace the Lamport clock value in a hole with the number by which people know the call."""
    match = _AT_CALL.match(hole)
    number = None if match is None else numbers.get(int(match[1]))
    return hole if match is None or number is None else f"call {number} ({hole[match.end() :]}"
