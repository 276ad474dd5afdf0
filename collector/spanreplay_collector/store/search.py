"""Find runs: the `runs` table selects them, `boundaries` provides their root spans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clickhouse_connect.driver.client import Client

from spanreplay.model.call import Outcome, RootRecord
from spanreplay.model.errors import AmbiguousRun, RunNotFound
from spanreplay.recording.catalog import RUNS_MAX, RunQuery, RunSummary

__all__ = ["find_run_id", "find_runs"]

LIST_HINT: Final = "`spanreplay ls` lists the newest runs"
PREFIX_CHARS_MIN: Final = 6
CANDIDATES_MAX: Final = 5
_HEX: Final = frozenset("0123456789abcdef")

# toFixedString throughout: `FixedString IN (set of String)` can miss values that end in zero bytes (26.9).
_STATUS: Final = """multiIf(
    max(has_manifest) = 0 OR max(has_holes) = 1
        OR uniqExactIfMerge(finished_calls) < uniqExactIfMerge(calls)
        OR (max(expected_calls) >= 0 AND max(expected_calls) != uniqExactIfMerge(calls)), 'incomplete',
    max(is_error) = 1, 'error', 'ok')"""
_PAGE_FILTER: Final = """
    FROM runs
    WHERE tenant = {tenant:String}
        AND run_id >= toFixedString(unhex({first_run:String}), 16)
        AND run_id <= toFixedString(unhex({last_run:String}), 16)
    GROUP BY run_id
    HAVING ({user_id:String} = '' OR max(user_id) = {user_id:String})
        AND ({session_id:String} = '' OR max(session_id) = {session_id:String})
        AND ({app:String} = '' OR max(app) = {app:String})
        AND ({tool:String} = '' OR has(groupUniqArrayArray(tools), {tool:String}))
        AND ({include_replays:UInt8} = 1 OR max(replay_of) = '')
        AND min(start_ns) >= {since_ns:UInt64}
        AND ({until_ns:UInt64} = 0 OR min(start_ns) <= {until_ns:UInt64})
"""
_OF_TRACE: Final = """
        AND run_id IN (
            SELECT run_id
            FROM boundaries
            WHERE tenant = {tenant:String}
                AND run_id >= toFixedString(unhex({first_run:String}), 16)
                AND run_id <= toFixedString(unhex({last_run:String}), 16)
                AND kind = 'run'
                AND (hex(trace_id) = upper({trace_id:String})
                    OR JSONExtractString(env, 'unit', 'trace') = {trace_id:String}))
"""
_PAGE_ORDER: Final = """
    ORDER BY min(start_ns) DESC, run_id DESC
    LIMIT {limit:UInt32}
"""
# The page is found from a few narrow columns; the counts, a set for each run, are merged only for its runs.
_COUNTS: Final = (
    """
SELECT
    hex(run_id),
    min(start_ns) AS started,
    uniqExactIfMerge(calls),
    uniqExactIfMerge(llm_calls),
    uniqExactIfMerge(errors),
    arraySum(maxMap(tokens_in).2),
    arraySum(maxMap(tokens_out).2),
    """
    + _STATUS
    + """,
    arraySort(groupUniqArrayArray(tools)),
    max(app), max(user_id), max(session_id), max(replay_of)
FROM runs
WHERE tenant = {tenant:String}
    AND run_id IN (SELECT toFixedString(unhex(arrayJoin({runs:Array(String)})), 16))
GROUP BY run_id
ORDER BY started DESC, run_id DESC
"""
)
_ROOTS: Final = """
SELECT
    hex(run_id), hex(trace_id), hex(span_id), start_ns, end_ns, outcome,
    app, user_id, session_id, replay_of, env, manifest
FROM boundaries FINAL
WHERE tenant = {tenant:String}
    AND run_id IN (SELECT toFixedString(unhex(arrayJoin({runs:Array(String)})), 16))
    AND kind = 'run'
ORDER BY manifest != '', version
"""
_PREFIX: Final = """
SELECT DISTINCT hex(run_id)
FROM spans
WHERE tenant = {tenant:String}
    AND run_id >= toFixedString(unhex({first_run:String}), 16)
    AND run_id <= toFixedString(unhex({last_run:String}), 16)
LIMIT {limit:UInt32}
"""


def find_runs(client: Client, tenant: str, query: RunQuery) -> list[RunSummary]:
    """Find matching runs, newest first, up to `query.limit` (at most 1000)."""
    bounds = _prefix_bounds(query.run_id_prefix)
    if bounds is None:
        return []
    parameters = {
        "tenant": tenant,
        "first_run": bounds[0],
        "last_run": bounds[1],
        "user_id": query.user_id,
        "session_id": query.session_id,
        "app": query.app,
        "tool": query.tool,
        "status": query.status,
        "trace_id": query.trace_id,
        "include_replays": int(query.include_replays),
        "since_ns": max(query.since_ns, 0),
        "until_ns": max(query.until_ns, 0),
        "limit": min(max(query.limit, 0), RUNS_MAX),
    }
    page = client.query(_build_page(query), parameters=parameters).result_rows
    runs = [bytes(row[0]).hex() for row in page]
    if not runs:
        return []
    named = {"tenant": tenant, "runs": runs}
    counts = client.query(_COUNTS, parameters=named).result_rows
    # Ordered by manifest and version: if a run has several root rows, the last one is used.
    roots = {row[0]: row for row in client.query(_ROOTS, parameters=named).result_rows}
    return [_summary(row, roots.get(row[0])) for row in counts]


def _build_page(query: RunQuery) -> str:
    """Build the statement that finds the run ids; filters that are not set cost nothing."""
    of_trace = _OF_TRACE if query.trace_id else ""
    of_status = f"AND {_STATUS} = {{status:String}}" if query.status else ""
    return "SELECT run_id" + _PAGE_FILTER + of_trace + of_status + _PAGE_ORDER


def find_run_id(client: Client, tenant: str, prefix: str) -> str:
    """Find the one run whose id starts with a prefix. Raises: RunNotFound, AmbiguousRun."""
    text = prefix.strip().lower()
    bounds = _prefix_bounds(text)
    if bounds is None or len(text) < PREFIX_CHARS_MIN:
        raise RunNotFound(
            f"{prefix!r} is not a run id",
            hint=f"a run id has 32 hexadecimal digits; at least {PREFIX_CHARS_MIN} of them name a run",
        )
    parameters = {
        "tenant": tenant,
        "first_run": bounds[0],
        "last_run": bounds[1],
        "limit": CANDIDATES_MAX + 1,
    }
    found = sorted(str(row[0]).lower() for row in client.query(_PREFIX, parameters=parameters).result_rows)
    if not found:
        raise RunNotFound(f"no run {text} in the store", hint=LIST_HINT)
    if len(found) > 1:
        more = "" if len(found) <= CANDIDATES_MAX else " and more"
        raise AmbiguousRun(
            f"{text} names more than one run: {', '.join(found[:CANDIDATES_MAX])}{more}",
            hint="give more digits of the run id",
        )
    return found[0]


def _prefix_bounds(prefix: str) -> tuple[str, str] | None:
    text = prefix.strip().lower()
    if len(text) > 32 or not _HEX.issuperset(text):
        return None
    return text.ljust(32, "0"), text.ljust(32, "f")


def _summary(counts: Sequence[Any], root: Sequence[Any] | None) -> RunSummary:
    run_id, _, calls, llm_calls, errors, tokens_in, tokens_out, status, tools, app, user, session, replay = counts
    if root is None:
        record = RootRecord(run_id=run_id.lower(), app=app, user_id=user, session_id=session, replay_of=replay)
    else:
        record = _root_record(root)
    return RunSummary(
        root=record,
        calls=int(calls),
        llm_calls=int(llm_calls),
        errors=int(errors),
        tokens_in=int(tokens_in),
        tokens_out=int(tokens_out),
        status=str(status),
        tools=tuple(tools),
    )


def _root_record(row: Sequence[Any]) -> RootRecord:
    run_id, trace_id, span_id, start_ns, end_ns, outcome, app, user, session, replay_of, env, manifest = row
    return RootRecord(
        run_id=run_id.lower(),
        app=app,
        trace_id=trace_id.lower(),
        span_id=span_id.lower(),
        start_ns=int(start_ns),
        end_ns=int(end_ns),
        outcome=outcome or Outcome.OPEN.value,
        env=_json_object(env),
        manifest=_json_object(manifest),
        replay_of=replay_of,
        user_id=user,
        session_id=session,
    )


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
