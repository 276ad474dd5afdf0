"""Calls of a replay made by hand: resolves an agent's calls without an agent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spanreplay.model.call import CallRecord, Outcome, Recording, RootRecord
from spanreplay.model.keys import compute_key
from spanreplay.recording.seal.tree import LEAF_VERSION, hash_leaf, hash_root
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.resolve.session import Session
from spanreplay.runtime.caller.running import entered
from spanreplay.runtime.calls.open_call import Crossing, open_crossing
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import Run
from support.in_process import MemoryProcessor, make_run
from support.runs import make_run_id

KEYSPEC = "tool/1"


@dataclass(frozen=True)
class Asked:
    """One call as an agent makes it."""

    argument: Any
    name: str = "f"
    lane: str = "main"
    kind: str = "tool"
    call_id: str = ""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of its key."""
        return {"name": self.name, "arguments": {"x": self.argument}}

    @property
    def request(self) -> str:
        """Its request as recorded."""
        return json.dumps({"arguments": {"x": self.argument}}, separators=(",", ":"))


def record_calls(asked: Iterable[Asked], manifest: Mapping[str, Any] | None = None, **changes: Any) -> Recording:
    """Return a recording of calls that answered `{"value": seq}`; complete unless a manifest says otherwise."""
    run_id = make_run_id(7)
    counters: dict[tuple[str, str], int] = {}
    calls: list[CallRecord] = []
    for seq, one in enumerate(asked, start=1):
        slot = (one.lane, f"{one.kind}:{one.name}")
        index = counters.get(slot, 0)
        counters[slot] = index + 1
        calls.append(
            CallRecord(
                run_id=run_id,
                seq=seq,
                end_seq=seq,
                kind=one.kind,
                name=one.name,
                lane=one.lane,
                index=index,
                key=compute_key(KEYSPEC, one.fields).hex,
                keyspec=KEYSPEC,
                request=one.request,
                response=json.dumps({"value": seq}),
                outcome=Outcome.OK.value,
                call_id=one.call_id,
                span_id=f"{seq:016x}",
                **changes,
            )
        )
    return seal(Recording(RootRecord(run_id, app="test"), tuple(calls)), manifest)


def seal(recording: Recording, manifest: Mapping[str, Any] | None = None) -> Recording:
    """Return the recording with a correct manifest, or with `manifest` instead; `{}` means a run that was killed."""
    finished = [c for c in recording.calls if c.outcome != Outcome.OPEN.value]
    stated = {
        "calls": len(recording.calls),
        "root": hash_root(map(hash_leaf, finished)),
        "leaf_version": LEAF_VERSION,
        "leaves": len(finished),
        "dropped": 0,
    }
    root = RootRecord(recording.run_id, app="test", manifest=stated if manifest is None else manifest)
    return Recording(root, recording.calls)


class Asker:
    """A replay whose calls are made one by one."""

    def __init__(self, recording: Recording, plan: Plan | None = None) -> None:
        self.session = Session(recording, plan or Plan())
        self.run: Run = make_run(MemoryProcessor(), self.session)
        self._lanes: dict[str, Lane] = {"main": self.run.root_lane}

    def ask(self, asked: Asked) -> Crossing:
        """Open one call. Raises: ReplayMiss."""
        lane = self._lanes.setdefault(asked.lane, Lane(asked.lane))
        spec = Spec(
            kind=asked.kind,
            name=asked.name,
            effect="read",
            keyspec=KEYSPEC,
            key_fields=asked.fields,
            request=asked.request,
            call_id=asked.call_id,
        )
        with entered(self.run), inside_lane(lane):
            return open_crossing(self.run, spec)


def served(asker: Asker, asked: Asked) -> int:
    """Return the seq of the recorded call that answers."""
    crossing = asker.ask(asked)
    assert crossing.served is not None
    return crossing.served.seq
