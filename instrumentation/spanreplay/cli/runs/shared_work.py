"""Detect units that shared work: a unit made a call for others too, so one alone can't be replayed in full.

Concurrent requests may share work: the first one calls the model for all that are waiting, or the end of one starts
work that another one has queued. The call is in the recording of the unit that made it. Replayed alone, that unit does
not ask for the others, and each of the others makes the call itself: both diverge although the program has not
changed. Shared work is detected by a value from one unit's input that occurs in a call of the other unit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_plus

from spanreplay.model.call import CallRecord, Kind, Recording, RootRecord
from spanreplay.model.errors import SourceError
from spanreplay.model.json_text import iter_texts
from spanreplay.recording.catalog import RUNS_MAX, Catalog, RunQuery
from spanreplay.report.shape import Divergence, Verdict, first_cause
from spanreplay.units.stated import GIVEN, LANE, find_unit

__all__ = ["explain", "explain_file", "explain_in_catalog"]

_EXTRA, _CHANGED, _MISSING, _STALL = "extra_call", "changed_call", "missing_call", "order_stall"
_KINDS: Final = frozenset({_EXTRA, _CHANGED, _MISSING, _STALL})
_FOR_OTHER: Final = "call {} ({}) was also made for run {}, which its process served at the same time"
_BY_OTHER: Final = "run {}, which its process served at the same time, also made {} for this one"

_INPUTS: Final = frozenset({"http:request", "http:body", "http:websocket.receive", GIVEN})
_OF_UNITS: Final = frozenset({"request", "body", "response", "raised", "disconnect", "cancelled"})
"""Names of calls of kind http by which a unit receives its input and sends its output."""
_WEBSOCKET: Final = "websocket."
_OURS: Final = frozenset({Kind.COMPUTE.value, Kind.CLOCK.value, Kind.RANDOM.value})
_NO_VALUES: Final = frozenset({"headers", "client", "server", "method", "scheme", "http_version", "root_path"})
"""Members of an input that don't describe what is requested."""
_NO_VALUES_OF_MESSAGES: Final = _NO_VALUES | {"consumer_tag", "exchange", "routing_key", "subject", "topic"}
"""These, and where a message came from."""
_VALUE_CHARACTERS_MIN: Final = 3
_VALUES_MAX: Final = 1000
_OTHERS_MAX: Final = 100
_FOR_EVER: Final = 2**63 - 1
_LONG_NS: Final = 3_600_000_000_000
"""How long before a unit a concurrent one may have started."""
_PART: Final = re.compile(r"[^/?&=#]+")


def explain(verdict: Verdict, unit: Recording, others: Iterable[Recording]) -> Verdict:
    """The verdict of a unit; incomplete if its first difference is work that it shared with another unit.

    `others`: the units that its process served at the same time; only iterated over if the unit has diverged.
    """
    first = first_cause(verdict)
    reason = _find(first, unit, others) if first is not None and _may_be_shared(verdict) else ""
    if not reason:
        return verdict
    return {**verdict, "verdict": "incomplete", "stopped": reason, "reasons": [reason, *verdict.get("reasons", ())]}


def _may_be_shared(verdict: Verdict) -> bool:
    """Whether a replay diverged because of a missing, extra or changed call, or a stall."""
    first = first_cause(verdict)
    return verdict["verdict"] == "diverged" and first is not None and first.get("kind") in _KINDS


def _find(first: Divergence, unit: Recording, others: Iterable[Recording]) -> str:
    """Describe the shared work in one sentence; empty if none is found."""
    own, kind, boundary = _read_values(unit), first.get("kind"), first.get("boundary")
    texts = list(_iter_left_out(first, unit))
    for other in others:
        its = _read_values(other)
        for call, recorded, now in texts:
            if call.start_ns < other.root.start_ns:  # it may have begun with what this call sent
                continue
            if any(_is_in(value, recorded) and not _is_in(value, now) for value in its - own):
                return _FOR_OTHER.format(call.number, call.boundary, other.run_id)
        for made in _iter_asked(other) if kind in {_EXTRA, _STALL} else ():
            is_before = made.start_ns < unit.root.start_ns  # this unit may have begun with what it sent
            if not is_before and (kind == _STALL or made.boundary == boundary):
                text = _join(made.request)
                if any(_is_in(value, text) for value in own - its):
                    return _BY_OTHER.format(other.run_id, made.boundary)
    return ""


def _iter_left_out(first: Divergence, unit: Recording) -> Iterator[tuple[CallRecord, str, str]]:
    """The recorded calls that may have included input of other units, each with its recorded and its present request.

    After a stall these are all calls, because the program may wait for any of them.
    """
    kind, number = first.get("kind"), first.get("call")
    for call in _iter_asked(unit):
        if kind == _STALL or (kind == _MISSING and call.number == number):
            yield call, _join(call.request), ""
        elif kind == _CHANGED and call.number == number:
            rows = first.get("diff", [])
            yield call, _join([row.get("recorded") for row in rows]), _join([row.get("now") for row in rows])


def _iter_asked(unit: Recording) -> Iterator[CallRecord]:
    """The calls that a unit made to others, without those for its own input and output."""
    for call in unit.calls:
        is_units = call.kind == Kind.HTTP.value and (call.name in _OF_UNITS or call.name.startswith(_WEBSOCKET))
        if not is_units and call.kind not in _OURS:
            yield call


def _read_values(unit: Recording) -> frozenset[str]:
    """The values in a unit's input: its strings, those inside JSON text, and the parts of path and query.

    The name of a job is not a value: it says what is done, not for whom.
    """
    found: set[str] = set()
    for call in unit.calls:
        if call.lane == LANE and call.boundary in _INPUTS:
            for text in (call.request, call.response):
                found.update(islice(_iter_values(_parse(text)), _VALUES_MAX))
    return frozenset(found - {unit.root.app})


def _iter_values(value: Any) -> Iterator[str]:
    for text in iter_texts(value, _NO_VALUES_OF_MESSAGES):
        inner = _parse(text)
        parts = (
            iter_texts(inner, _NO_VALUES)
            if isinstance(inner, (dict, list))
            else (text, *map(unquote_plus, _split(text)))
        )
        yield from (part.strip() for part in parts if len(part.strip()) >= _VALUE_CHARACTERS_MIN)


def _split(text: str) -> list[str]:
    """The parts of a path or a query."""
    return [] if any(each.isspace() for each in text) else _PART.findall(text)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _join(value: Any) -> str:
    return "\n".join(iter_texts(_parse(value) if isinstance(value, str) else value, _NO_VALUES))


def _is_in(value: str, text: str) -> bool:
    """Whether a text contains a value as whole words."""
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


# ── where the other units are ────────────────────────────────────────────────────────────────────────
def explain_in_catalog(verdict: Verdict, catalog: Catalog) -> Verdict:
    """`explain` for a unit in a catalog. Raises: SourceError, ServiceError."""
    if not _may_be_shared(verdict):
        return verdict
    unit = catalog.load(verdict["run_id"])
    query = RunQuery(since_ns=unit.root.start_ns - _LONG_NS, until_ns=_find_end(unit.root), limit=RUNS_MAX)
    near = _take_nearest([Recording(each.root, ()) for each in catalog.search(query)], unit)
    return explain(verdict, unit, (catalog.load(each.run_id) for each in near))


def explain_file(verdict: Verdict, path: Path) -> Verdict:
    """`explain` for a `.replay` file, with the others in its folder. Raises: SourceError."""
    from spanreplay.recording.bundle import load_file

    if not _may_be_shared(verdict):
        return verdict
    unit = load_file(path)
    found = []
    for each in sorted(path.parent.glob("*.replay"), reverse=True)[:RUNS_MAX]:
        with suppress(SourceError):
            found.append(load_file(each))
    return explain(verdict, unit, _take_nearest(found, unit))


def _take_nearest(found: Iterable[Recording], unit: Recording) -> list[Recording]:
    """The concurrent units of the same process, nearest start first."""
    near = [each for each in found if each.run_id != unit.run_id and _is_beside(each.root, unit.root)]
    return sorted(near, key=lambda each: abs(each.root.start_ns - unit.root.start_ns))[:_OTHERS_MAX]


def _is_beside(other: RootRecord, unit: RootRecord) -> bool:
    its, start = find_unit(other.env), find_unit(unit.env)
    if its is None or start is None or its.process != start.process:
        return False
    return other.start_ns <= _find_end(unit) and unit.start_ns <= _find_end(other)


def _find_end(root: RootRecord) -> int:
    return root.end_ns if root.manifest else _FOR_EVER
