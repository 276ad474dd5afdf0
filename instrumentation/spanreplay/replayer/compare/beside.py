"""Compares the parts of a request outside its key: a program's variables, application headers; each in its own way.

An equal key finds the recorded call. The rest of the request is compared with that call here: a different application
header makes a different request; an id, a time or a version that is generated anew is only listed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spanreplay.model.errors import ReplayMiss
from spanreplay.replayer.compare.ignored import ignored_of_equal
from spanreplay.replayer.compare.timeouts import compare_timeouts, describe_limits, has_other_timeout
from spanreplay.replayer.compare.variables import compare_variables
from spanreplay.replayer.divergence import Diff, diff_json
from spanreplay.runtime.process.noted_effects import EFFECTS
from spanreplay.runtime.wire.http_headers import DRAWN, LISTED
from spanreplay.runtime.wire.timeouts import TIMEOUT

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.calls.open_call import Crossing

ENV, HEADERS = "env", "headers"


def compare(session: SharedState, crossing: Crossing, call: CallRecord, *, is_stopping: bool) -> None:
    """Note the differences between two requests with one key. Raises: ReplayMiss if they make a different request."""
    changed, rest = _compare_requests(session, crossing, call)
    limits, others = compare_timeouts(call, crossing.spec.meta.get(TIMEOUT))
    session.findings.note_ignored(crossing, call, (*rest, *others))
    if not changed and not limits:
        return
    session.counts["changed"] += 1
    detail = "" if changed else describe_limits(call, limits)
    miss = session.findings.note_call(crossing, "changed_call", call, detail, (*changed, *limits))
    if is_stopping:
        session.is_stopped = True
        raise ReplayMiss(miss.message)


def is_other(crossing: Crossing, call: CallRecord) -> bool:
    """Whether a request with the key of a recorded one may be another one."""
    spec = crossing.spec
    is_same = call.request == spec.request and not has_other_timeout(call, spec.meta.get(TIMEOUT))
    return not is_same and call.key == crossing.key_hex


def _compare_requests(
    session: SharedState, crossing: Crossing, call: CallRecord
) -> tuple[tuple[Diff, ...], tuple[Diff, ...]]:
    if call.request == crossing.spec.request:
        return (), ()
    has_all = bool(session.recording.root.env.get(EFFECTS))
    is_of_file = session.recorded_env.is_of_file
    changed, rest = split_requests(call.request, crossing.spec.request, has_all=has_all, is_of_file=is_of_file)
    if (changed or rest) and session.relocation:
        moved = session.relocation.spec(crossing.spec).request
        if session.relocation.is_number_away(call.request, moved):
            return (), ()
        changed, rest = split_requests(call.request, moved, has_all=has_all, is_of_file=is_of_file)
    return changed, rest


def split_requests(
    then: str, now: str, *, has_all: bool, is_of_file: Callable[[str], bool] = lambda name: False
) -> tuple[tuple[Diff, ...], tuple[Diff, ...]]:
    """Split the differences of two requests with one key: (those that make a different request, those only listed)."""
    old, new = _read(then), _read(now)
    if not has_all or old is None or new is None:
        return (), ignored_of_equal(diff_json(then, now))
    headers, listed = _compare_headers(old.pop(HEADERS, None), new.pop(HEADERS, None))
    variables, machine = compare_variables(old.pop(ENV, None) or {}, new.pop(ENV, None) or {}, is_of_file)
    rest = ignored_of_equal(diff_json(json.dumps(old), json.dumps(new)))
    return (*headers, *variables), (*rest, *listed, *machine)


def _read(request: str) -> dict[str, Any] | None:
    try:
        value = json.loads(request)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _compare_headers(then: Any, now: Any) -> tuple[list[Diff], list[Diff]]:
    old, new = (each if isinstance(each, Mapping) else {} for each in (then, now))
    changed: list[Diff] = []
    listed: list[Diff] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = str(old.get(name, "(absent)")), str(new.get(name, "(absent)"))
        if before == after:
            continue
        is_listed = name in LISTED or DRAWN.sub("*", before) == DRAWN.sub("*", after)
        (listed if is_listed else changed).append(Diff(f"{HEADERS}.{name}", before, after))
    return changed, listed
