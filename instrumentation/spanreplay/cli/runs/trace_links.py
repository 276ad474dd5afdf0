"""Match the runs of a trace to the calls that caused them; pure functions.

A service knows the trace of a request, but hardly ever the call that made it: `traceparent` may be passed on by an
instrumentor, a mesh or the application. A run belongs to a call with the same method, path and query during which it
began; if there are several, to the first one that has no run yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from spanreplay.model.call import CallRecord, Kind, Recording
from spanreplay.runtime.edits.selector import Selector
from spanreplay.units.asgi_messages import BASE64, TEXT, cut_body
from spanreplay.units.given import Answer
from spanreplay.units.http_exchange import FIRST_CALL, RESPONSE
from spanreplay.units.stated import LANE, find_unit

__all__ = ["Link", "answer_of", "find_links", "sort_called_first"]

_ANSWER: Final = f"{Kind.HTTP.value}:{RESPONSE}"


@dataclass(frozen=True)
class Link:
    """The call that caused a run."""

    caller: Recording
    call: CallRecord

    @property
    def selector(self) -> Selector:
        """The plan's selector for this call; for a unit it does not count calls made at its process's start."""
        is_unit = find_unit(self.caller.root.env) is not None
        boundary, lane = f"{Kind.HTTP.value}:*", f"{LANE}*" if is_unit else ""
        https = [c for c in self.caller.calls if c.kind == Kind.HTTP.value and (not lane or c.lane.startswith(LANE))]
        place = https.index(self.call) + 1
        return Selector(boundary, lane, place, place)


@dataclass(frozen=True)
class _Target:
    method: str
    path: str
    query: str


def find_links(runs: Sequence[Recording]) -> dict[str, Link]:
    """Run id → the call that caused it; runs without such a call are left out."""
    left = [(run, call, target) for run in runs for call, target in _iter_requests(run)]
    left.sort(key=lambda each: each[1].start_ns)
    found: dict[str, Link] = {}
    for run in sorted(runs, key=lambda each: each.root.start_ns):
        wanted = _find_given(run)
        for each in left:
            caller, call, target = each
            if caller is not run and target == wanted and call.start_ns <= run.root.start_ns <= (call.end_ns or 0):
                found[run.run_id] = Link(caller, call)
                left.remove(each)
                break
    return found


def sort_called_first(runs: Sequence[Recording], links: Mapping[str, Link]) -> list[Recording]:
    """Sort the runs so that each comes after the runs that it called."""

    def depth(run: Recording) -> int:
        link = links.get(run.run_id)
        return 0 if link is None else 1 + depth(link.caller)

    return sorted(runs, key=lambda run: (-depth(run), run.root.start_ns))


def answer_of(run: Recording) -> Answer | None:
    """The recorded answer of a request's run, with its body decoded; None if it has none or its body is not kept."""
    call = next((each for each in run.calls if each.boundary == _ANSWER), None)
    given = {} if call is None else _read(call.request).get("arguments")
    if not isinstance(given, dict) or not isinstance(given.get("status"), int):
        return None
    body = given.get("body", {TEXT: ""})
    if not isinstance(body, dict) or not (isinstance(body.get(TEXT), str) or isinstance(body.get(BASE64), str)):
        return None
    headers = [(str(name), str(value)) for each in given.get("headers", ()) for name, value in each.items()]
    return Answer(given["status"], headers, b"".join(cut_body(body)))


def _iter_requests(run: Recording) -> Iterator[tuple[CallRecord, _Target]]:
    """The HTTP requests that a run made, with their targets."""
    for call in run.calls:
        request = _read(call.request) if call.kind == Kind.HTTP.value else {}
        url, method = request.get("url"), request.get("method")
        if isinstance(url, str) and isinstance(method, str):
            parts = urlsplit(url)
            yield call, _Target(method.upper(), unquote(parts.path) or "/", parts.query)


def _find_given(run: Recording) -> _Target | None:
    """The target of the request that a run served."""
    call = next((each for each in run.calls if each.boundary == FIRST_CALL), None)
    given = {} if call is None else _read(call.response).get("value")
    if not isinstance(given, dict):
        return None
    path = given.get("raw_path") or given.get("path") or "/"
    return _Target(str(given.get("method", "")).upper(), unquote(str(path)), str(given.get("query_string") or ""))


def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
