"""Checks of a run as a whole; pure. Each yields what it finds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.call import LOST, CallRecord, Outcome, Recording
from spanreplay.model.errors import SpanreplayError
from spanreplay.recording.conformance.exported import RUN_ID, ExportedRun, ExportedSpan
from spanreplay.recording.conformance.finding import Finding, parse, shown
from spanreplay.recording.conformance.request_key import REQUEST_KEYSPEC, canonical_request, request_key
from spanreplay.recording.otlp.otlp import read_call, read_root
from spanreplay.recording.seal.check import find_tampering

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_KEYSPEC: Final = re.compile(r"[A-Za-z0-9._-]+/[0-9]+")
_ENDED: Final = (Outcome.OK.value, Outcome.ERROR.value, Outcome.CANCELLED.value)
_CANNOT_READ: Final = (SpanreplayError, ValueError, TypeError, AttributeError)


def _of_run(run: ExportedRun, attribute: str, what: str) -> Finding:
    return Finding(f"run {run.run_id or '(no id)'}", attribute, what)


def _int(each: ExportedSpan, name: str) -> int | None:
    value = each.attributes.get(name)
    return value if type(value) is int else None


def _calls(run: ExportedRun) -> list[ExportedSpan]:
    """Calls with a start order, sorted by it."""
    found = [each for each in run.calls if _int(each, names.SEQ) is not None]
    return sorted(found, key=lambda each: each.attributes[names.SEQ])


def check_run(run: ExportedRun) -> Iterator[Finding]:
    for each in run.spans:
        if not each.run_id:
            yield Finding(each.place, names.RUN_ID, "missing, on the span and on its resource")
        elif not RUN_ID.fullmatch(each.run_id):
            yield Finding(each.place, names.RUN_ID, f"{shown(each.run_id)} is not a UUIDv7 in hexadecimal")


def check_whole(run: ExportedRun) -> Iterator[Finding]:
    seen: set[bytes] = set()
    for each in run.spans:
        span = each.span
        if len(span.span_id) != 8 or not any(span.span_id) or len(span.trace_id) != 16 or not any(span.trace_id):
            yield Finding(each.place, "", "has no valid trace id and span id")
        elif span.span_id in seen:
            yield Finding(each.place, "", "its id is that of another span of the run")
        seen.add(span.span_id)
        if span.dropped_attributes_count:
            yield Finding(each.place, "", f"the SDK dropped {span.dropped_attributes_count} of its attributes")
        if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
            yield Finding(each.place, "", "it ends before it starts, or has no time")


def check_trace(run: ExportedRun) -> Iterator[Finding]:
    traces = {each.span.trace_id for each in run.spans}
    if len(traces) > 1:
        shown_traces = ", ".join(sorted(trace.hex() for trace in traces)[:3])
        yield _of_run(run, "", f"its spans are of {len(traces)} traces: {shown_traces}")


def check_root(run: ExportedRun) -> Iterator[Finding]:
    if len(run.roots) != 1:
        yield _of_run(run, names.KIND, f"{len(run.roots)} spans of kind run, expected 1")
    for each in run.roots:
        if not each.attributes.get(names.APP):
            yield Finding(each.place, names.APP, "missing or empty")
        if each.attributes.get(names.SEQ) != 0:
            yield Finding(each.place, names.SEQ, f"{shown(each.attributes.get(names.SEQ))}, expected 0")
        if each.attributes.get(names.OUTCOME) not in _ENDED:
            yield Finding(each.place, names.OUTCOME, shown(each.attributes.get(names.OUTCOME)))


def check_manifest(run: ExportedRun) -> Iterator[Finding]:
    for each in run.roots:
        try:
            manifest = parse(each.attributes, names.MANIFEST)
        except ValueError:
            continue  # the rule of objects names it
        if not isinstance(manifest, dict):
            if manifest is None:
                yield Finding(each.place, names.MANIFEST, "missing: the run did not end, or states nothing about it")
            continue
        count = manifest.get("calls")
        if type(count) is not int:
            yield Finding(each.place, names.MANIFEST, f"its member calls is {shown(count)}, expected an integer")
        elif count != len(run.calls) and not manifest.get(LOST):
            yield Finding(each.place, names.MANIFEST, f"it states {count} calls, {len(run.calls)} are here")


def check_complete(run: ExportedRun) -> Iterator[Finding]:
    recording = _read(run)
    if recording is None or not recording.root.manifest:
        return
    stated = {**recording.root.manifest, "calls": len(recording.calls)}  # the rule of the manifest counts them
    ended = [call for call in recording.calls if call.outcome != Outcome.OPEN.value]  # the rule of outcomes names them
    root = type(recording.root)(recording.run_id, manifest={**stated, "calls": len(ended)})
    for reason in Recording(root, tuple(ended)).completeness().reasons:
        yield _of_run(run, names.MANIFEST, reason)


def check_clock(run: ExportedRun) -> Iterator[Finding]:
    taken: dict[int, str] = {}
    for each in run.calls:
        seq, end_seq, joint = (_int(each, name) for name in (names.SEQ, names.END_SEQ, names.JOINT))
        if seq is None or seq < 1:
            yield Finding(each.place, names.SEQ, f"{shown(each.attributes.get(names.SEQ))}, expected 1 or more")
        if end_seq is None:
            if each.attributes.get(names.OUTCOME) in _ENDED:
                yield Finding(each.place, names.END_SEQ, "missing, although the call has ended")
        elif seq is not None and end_seq <= seq:
            yield Finding(each.place, names.END_SEQ, f"{end_seq}, but the call started at {seq}")
        if joint is not None and (end_seq is None or not 0 < joint < end_seq):
            yield Finding(each.place, names.JOINT, f"{joint} is no earlier value than its end_seq, {end_seq}")
        for name, value in ((names.SEQ, seq), (names.END_SEQ, end_seq)):
            if value is not None and value in taken:
                yield Finding(each.place, name, f"{value} is also {taken[value]}")
            elif value is not None:
                taken[value] = f"{name} of {each.place}"


def check_place(run: ExportedRun) -> Iterator[Finding]:
    counts: dict[tuple[str, str, str], int] = {}
    for each in run.calls:
        if not each.attributes.get(names.LANE):
            yield Finding(each.place, names.LANE, "missing or empty")
    for each in _calls(run):
        get = each.attributes.get
        slot = (str(get(names.LANE)), str(get(names.KIND)), str(get(names.NAME)))
        expected = counts.get(slot, 0)
        counts[slot] = expected + 1
        if get(names.INDEX) != expected:
            what = f"{shown(get(names.INDEX))}, but {expected} earlier calls of it are in lane {shown(slot[0])}"
            yield Finding(each.place, names.INDEX, what)


def check_parent(run: ExportedRun) -> Iterator[Finding]:
    starts = {_int(each, names.SEQ): each for each in _calls(run)}
    for each in run.calls:
        parent, seq = _int(each, names.PARENT), _int(each, names.SEQ)
        if parent is None or seq is None:
            continue
        around = starts.get(parent)
        if around is None or parent >= seq:
            yield Finding(each.place, names.PARENT, f"{parent} is not the seq of a call that started before")


def check_key(run: ExportedRun) -> Iterator[Finding]:
    known: dict[tuple[str, bytes], tuple[str, str]] = {}
    for each in run.calls:
        key, keyspec = (each.attributes.get(name) for name in (names.KEY, names.KEYSPEC))
        if not isinstance(keyspec, str) or not _KEYSPEC.fullmatch(keyspec):
            yield Finding(each.place, names.KEYSPEC, f"{shown(keyspec)} is not of the form NAME/NUMBER")
            continue
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            yield Finding(each.place, names.KEY, f"{shown(key)} is not 64 lower-case hexadecimal characters")
            continue
        kind, name, text = (str(each.attributes.get(n, "")) for n in (names.KIND, names.NAME, names.REQUEST))
        request = canonical_request(kind, name, text)
        if request is None:
            continue  # the rule of payloads names it
        if keyspec == REQUEST_KEYSPEC and key != request_key(request):
            yield Finding(each.place, names.KEY, f"is not that of its request, which is {request_key(request)}")
        other, where = known.setdefault((keyspec, request), (key, each.place))
        if other != key:
            yield Finding(each.place, names.KEY, f"differs from that of {where}, which has an equal request")


def check_seal(run: ExportedRun) -> Iterator[Finding]:
    recording = _read(run)
    found = "" if recording is None else find_tampering(recording)
    if found:
        yield _of_run(run, names.MANIFEST, found)


def _read(run: ExportedRun) -> Recording | None:
    """The run as readers see it; None if it can't be read, which other rules explain."""
    if len(run.roots) != 1:
        return None
    calls: list[CallRecord] = []
    try:
        root = read_root(run.roots[0].span, _attributes(run.roots[0], run))
        for each in run.calls:
            calls.append(read_call(each.span, _attributes(each, run)))
    except _CANNOT_READ:
        return None
    return Recording(root, tuple(sorted(calls, key=lambda call: call.seq)))


def _attributes(each: ExportedSpan, run: ExportedRun) -> dict[str, Any]:
    return {**each.attributes, names.RUN_ID: each.attributes.get(names.RUN_ID, run.run_id)}
