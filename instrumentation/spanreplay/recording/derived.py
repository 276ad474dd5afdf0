"""Recordings derived from others: fewer calls, other answers; built so that equal inputs give equal bytes.

A derived recording does not show what happened. It says so: its environment names the recording that it was made of,
that recording's root hash, what made it and what was changed (`derived`). It has a run id and a root hash of its own,
and no signature.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.call import CallRecord, Outcome, Recording, RootRecord
from spanreplay.model.errors import SpanreplayError
from spanreplay.model.json_text import dump
from spanreplay.recording.bundle import pack
from spanreplay.recording.seal.tree import LEAF_VERSION, hash_leaf, hash_root

__all__ = ["ANONYMOUS", "DERIVED", "derive", "describe_origin", "encode_root", "pack_recording", "with_calls"]

DERIVED: Final = "derived"
"""Member of the environment: what a derived recording was made of."""
ANONYMOUS: Final = "anonymous"
"""Member of the environment of an anonymous recording (`anonymous.py`): how many texts are pseudonyms."""
_OF_ANOTHER_RUN: Final = ("signature", "failures")
"""Members of a manifest that speak for the recording that was made, and for no other."""
_ENDS: Final = ("exit", "stdout", "stderr", "files")
"""Members of a manifest that say how the run ended."""


def describe_origin(recording: Recording) -> str:
    """What a derived or an anonymous recording was made of, in words; '' for one that is as it was recorded."""
    hidden = recording.root.env.get(ANONYMOUS)
    if isinstance(hidden, int):
        return f"anonymous: {hidden:,} texts are pseudonyms"
    told = recording.root.env.get(DERIVED)
    if not isinstance(told, Mapping):
        return ""
    return f"derived from {told.get('from')} by {told.get('by')}: it does not show what happened"


def derive(recording: Recording, made: Recording, origin: Mapping[str, Any]) -> Recording:
    """The recording of a replay's calls: with the requests that it made and the answers that `recording` has.

    `origin` is kept as provenance. Equal arguments give equal recordings. Raises: SpanreplayError if a call that the
    replay made has no counterpart.
    """
    pairs = _pair(recording.calls, made.calls)
    run_id = _name(recording.run_id, pairs, origin)
    slots = sorted((old.seq, old.end_seq) for old, _ in pairs)
    seqs = {new.seq: seq for (_, new), (seq, _) in zip(pairs, slots, strict=True)}
    calls = tuple(
        replace(
            old,
            run_id=run_id,
            seq=seq,
            end_seq=end_seq,
            parent=seqs.get(new.parent, -1),
            joint=-1 if old.joint not in {end for _, end in slots} else old.joint,
            index=new.index,
            lane=new.lane,
            key=str(new.key),
            keyspec=new.keyspec,
            request=new.request,
            digests=new.digests,
            code=new.code,
            number=0,
        )
        for (old, new), (seq, end_seq) in zip(pairs, slots, strict=True)
    )
    return Recording(_derive_root(recording, made, calls, run_id, origin), calls)


def _pair(recorded: Sequence[CallRecord], made: Sequence[CallRecord]) -> list[tuple[CallRecord, CallRecord]]:
    """The recorded call that answered each call of a replay: that of the same place, or an equal one elsewhere."""
    places = {(call.lane, call.boundary, call.index): call for call in recorded}
    equal: dict[tuple[str, str], deque[CallRecord]] = {}
    for call in recorded:
        equal.setdefault((call.boundary, str(call.key)), deque()).append(call)
    used: set[int] = set()
    pairs = []
    for new in made:
        own = places.get((new.lane, new.boundary, new.index))
        alike = [each for each in equal.get((new.boundary, str(new.key)), ()) if each.seq not in used]
        is_free = own is not None and own.seq not in used
        found = own if is_free and (own in alike or not alike) else (alike[0] if alike else None)
        if found is None:
            raise SpanreplayError(f"call {new.number} of the replay ({new.boundary}) has no recorded answer")
        used.add(found.seq)
        pairs.append((found, new))
    return pairs


def _name(run_id: str, pairs: Sequence[tuple[CallRecord, CallRecord]], origin: Mapping[str, Any]) -> str:
    """A run id, UUIDv7, with the time of the original and a hash of what is derived from it."""
    content = dump([run_id, origin, [[old.seq, new.request, old.response, old.outcome] for old, new in pairs]])
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{run_id[:12]}7{digest[:3]}8{digest[3:18]}"


def _derive_root(
    recording: Recording, made: Recording, calls: Sequence[CallRecord], run_id: str, origin: Mapping[str, Any]
) -> RootRecord:
    root, now = recording.root, made.root.manifest
    manifest = {name: value for name, value in root.manifest.items() if name not in (*_OF_ANOTHER_RUN, *_ENDS)}
    manifest |= {name: now[name] for name in _ENDS if name in now}
    manifest |= _count(calls)
    told = {"from": recording.run_id, "root": root.manifest.get("root", ""), **origin}
    env = {**root.env, DERIVED: told}
    return replace(root, run_id=run_id, env=env, manifest=manifest, outcome=made.root.outcome, apart=0)


def _count(calls: Sequence[CallRecord]) -> dict[str, Any]:
    """The members of a manifest that count and hash its calls."""
    finished = [call for call in calls if call.outcome != Outcome.OPEN.value]
    return {
        "calls": len(calls),
        "lanes": dict(Counter(call.lane for call in calls)),
        "root": hash_root(map(hash_leaf, finished)),
        "leaves": len(finished),
        "leaf_version": LEAF_VERSION,
    }


def with_calls(recording: Recording, calls: Sequence[CallRecord]) -> Recording:
    """The recording with these calls instead, counted anew within each boundary and lane."""
    places: Counter[tuple[str, str]] = Counter()
    counted = []
    for call in calls:
        place = (call.lane, call.boundary)
        counted.append(replace(call, run_id=recording.run_id, index=places[place], number=0))
        places[place] += 1
    manifest = {**recording.root.manifest, **_count(counted)}
    return Recording(replace(recording.root, manifest=manifest), tuple(counted))


def pack_recording(recording: Recording) -> bytes:
    """A recording as the bytes of a `.replay` file. Raises: SourceError if it is too large."""
    from opentelemetry.sdk.resources import Resource

    from spanreplay.recording.spans import build_span
    from spanreplay.recording.spool.encode import encode_span

    root = recording.root
    resource = Resource({names.RUN_ID: root.run_id, names.APP: root.app, names.PROJECT: root.app})
    payloads = [encode_root(root, resource)]
    for call in recording.calls:
        span = build_span(call, is_shown=False, is_parent_remote=False, resource=resource)
        payloads.append(encode_span(span))
    return pack(root.run_id, payloads)


def encode_root(root: RootRecord, resource: Any) -> bytes:
    """A run's root as an ExportTraceServiceRequest."""
    from spanreplay.recording.spool.encode import encode_span

    return encode_span(_build_root(root, resource))


def _build_root(root: RootRecord, resource: Any) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    from spanreplay.recording.spans import make_span

    attributes: dict[str, Any] = {
        names.SCHEMA: names.SCHEMA_VERSION,
        names.RUN_ID: root.run_id,
        names.SEQ: 0,
        names.KIND: names.KIND_RUN,
        names.NAME: root.app,
        names.APP: root.app,
        names.OUTCOME: root.outcome,
        names.ENV: dump(dict(root.env)),
        names.MANIFEST: dump(dict(root.manifest)),
    }
    attributes |= {names.USER_ID: root.user_id} if root.user_id else {}
    attributes |= {names.SESSION_ID: root.session_id} if root.session_id else {}
    sampled = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(int(root.trace_id, 16), int(root.span_id, 16), is_remote=False, trace_flags=sampled)
    is_error = root.outcome == Outcome.ERROR.value
    return make_span(
        root.app,
        context,
        None,
        attributes,
        start_ns=root.start_ns,
        end_ns=root.end_ns,
        is_error=is_error,
        resource=resource,
    )
