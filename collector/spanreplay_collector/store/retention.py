"""Remove runs: those that are older than a limit, unless pinned, and those that somebody asks to erase.

Removing is physical: a mutation rewrites the parts that hold the run; a day without a pinned run is dropped as a whole.
The run goes first from where it is found, last from where its content is, so that no reader finds half of it.
An erased run leaves its id behind, and nothing else: a record of it that arrives later is not stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, Final, TypeVar

from clickhouse_connect.driver.client import Client

from spanreplay_collector.store.cluster import alter, find_cluster
from spanreplay_collector.store.rows import NO_DAY, day_of_run, derive_run_id

__all__ = ["Retained", "erase", "erase_again", "find_erased", "find_related", "pin", "remove_older"]

T = TypeVar("T")

TABLES: Final = ("boundaries", "runs", "spans_apart", "spans", "blobs")
"""In the order of removal."""
RUNS_PER_STATEMENT: Final = 1_000
GENERATIONS_MAX: Final = 16
"""Limit for following runs to the runs that their processes started, and to their replays."""
ERASED_AGAIN_S: Final = 2 * 86_400
"""For so long erased runs are removed again: a load that was under way in another process may store a record later."""
FAILED: Final = "failed"
NEEDED: Final = "needed by a pinned run"

_WAIT: Final = " SETTINGS mutations_sync = 2"
_BYTES: Final = {"String": "bytes", "FixedString": "bytes"}
_RUNS: Final = "SELECT toFixedString(unhex(arrayJoin({runs:Array(String)})), 16)"
_PINNED: Final = "SELECT tenant, run_id FROM pins FINAL WHERE is_pinned = 1"
_ACTIVE: Final = """
SELECT tenant, run_id
FROM spans
WHERE day = {day}
GROUP BY tenant, run_id
HAVING max(greatest(start_ns, end_ns)) >= {before_ns}
"""
_DAYS: Final = """
SELECT DISTINCT day
FROM spans
WHERE day < {day:Date}
ORDER BY day
"""
_PIN_FAILED: Final = """
INSERT INTO pins (tenant, run_id, is_pinned, reason, version)
SELECT tenant, run_id, 1, {reason:String}, {version:UInt64}
FROM runs
WHERE day < {day:Date} AND (tenant, run_id) NOT IN (SELECT tenant, run_id FROM pins)
GROUP BY tenant, run_id
HAVING max(is_error) = 1 AND max(replay_of) = ''
"""
_PIN_NEEDED: Final = f"""
INSERT INTO pins (tenant, run_id, is_pinned, reason, version)
SELECT DISTINCT tenant, toFixedString(unhex(needed), 16), 1, {{reason:String}}, {{version:UInt64}}
FROM (
    SELECT
        tenant,
        arrayJoin([JSONExtractString(env, 'unit', 'process'), JSONExtractString(env, 'unit', 'worker')]) AS needed
    FROM boundaries
    WHERE kind = 'run' AND (tenant, run_id) IN ({_PINNED})
)
WHERE match(needed, '^[0-9a-f]{{32}}$')
    AND (tenant, toFixedString(unhex(needed), 16)) NOT IN (SELECT tenant, run_id FROM pins FINAL WHERE is_pinned = 1)
"""  # noqa: S608 -- constant text
_COUNT: Final = "SELECT uniqExact(tenant, run_id) FROM spans WHERE {where}"
_PAIR: Final = "concat(hex(tenant), '/', hex(run_id))"
_PAIRS: Final = "SELECT DISTINCT hex(tenant), hex(run_id) FROM {table} WHERE {where}"
_OF_PEOPLE: Final = """
SELECT run_id
FROM runs
WHERE tenant = {tenant:String}
GROUP BY run_id
HAVING has({users:Array(String)}, max(user_id)) OR has({sessions:Array(String)}, max(session_id))
"""
_RELATED: Final = f"""
SELECT DISTINCT run_id
FROM boundaries
WHERE tenant = {{tenant:String}} AND kind = 'run'
    AND (
        replay_of IN ({{runs:Array(String)}})
        OR JSONExtractString(env, 'parent', 'run_id') IN ({{runs:Array(String)}})
    )
    AND run_id NOT IN ({_RUNS})
"""  # noqa: S608 -- constant text
_TRACES: Final = f"""
SELECT DISTINCT trace_id, start_ns
FROM boundaries
WHERE tenant = {{tenant:String}} AND kind = 'run' AND run_id IN ({_RUNS})
"""  # noqa: S608 -- constant text
_ERASED: Final = f"""
SELECT run_id
FROM erased
WHERE tenant = {{tenant:String}} AND run_id IN ({_RUNS})
"""  # noqa: S608 -- constant text


@dataclass(frozen=True)
class Retained:
    """What a pass removed."""

    runs: int
    """Runs, and traces of other instrumentors."""
    days: int
    """Days that were looked at."""


def pin(client: Client, tenant: str, run_ids: Iterable[bytes], *, is_pinned: bool, reason: str = "") -> None:
    """Keep runs whatever their age, or no longer."""
    version = time.time_ns()
    rows = [(tenant, run_id, int(is_pinned), reason, version) for run_id in run_ids]
    columns = ["tenant", "run_id", "is_pinned", "reason", "version"]
    kinds = ["LowCardinality(String)", "FixedString(16)", "UInt8", "String", "UInt64"]
    client.insert("pins", rows, column_names=columns, column_type_names=kinds)


def remove_older(client: Client, before_ns: int, *, keep_failures: bool = True) -> Retained:
    """Remove the runs of all tenants whose last span ended before a time, except pinned ones.

    With `keep_failures`, runs that ended in an error are pinned first, unless somebody unpinned them. The runs that a
    pinned one needs (of the process that served it) are pinned with it.
    """
    day = datetime.fromtimestamp(before_ns / 1e9, timezone.utc).date()
    version = time.time_ns()
    if keep_failures:
        client.command(_PIN_FAILED, parameters={"day": day, "reason": FAILED, "version": version})
    client.command(_PIN_NEEDED, parameters={"reason": NEEDED, "version": version})
    removed, days = 0, 0
    for (old,) in client.query(_DAYS, parameters={"day": max(day, date(1970, 1, 2))}).result_rows:
        removed += _remove_day(client, old, before_ns)
        days += 1
    return Retained(removed, days)


def _remove_day(client: Client, day: date, before_ns: int) -> int:
    """Remove the old runs of one day; return how many."""
    literal = f"toDate('{day.isoformat()}')"
    cluster = find_cluster(client, _database(client))
    kept = f"{_PINNED} UNION ALL {_ACTIVE.format(day=literal, before_ns=int(before_ns))}"
    is_old = f"day = {literal} AND (tenant, run_id) NOT IN ({kept})"
    count = int(client.query(_COUNT.format(where=is_old)).result_rows[0][0])
    if not count:
        return 0
    left = int(client.query(_COUNT.format(where=f"day = {literal}")).result_rows[0][0]) - count
    partition = f"'{day.isoformat()}'"
    if not left and day != NO_DAY:
        for table in TABLES:
            client.command(f"{alter(cluster, table)} DROP PARTITION {partition}")
        return count
    named = _name_pairs(client, is_old) if cluster else [is_old]
    for chosen in named:
        for table in TABLES:
            client.command(f"{alter(cluster, table)} DELETE IN PARTITION {partition} WHERE {chosen}{_WAIT}")
    return count


def _database(client: Client) -> str:
    return str(client.query("SELECT currentDatabase()").result_rows[0][0])


def _name_pairs(client: Client, where: str, table: str = "spans") -> list[str]:
    """Conditions that name the runs of a condition one by one: a replicated table takes no subquery in a mutation."""
    found = client.query(_PAIRS.format(table=table, where=where)).result_rows
    names = [f"'{tenant}/{run_id}'" for tenant, run_id in found]
    return [f"{_PAIR} IN ({', '.join(chunk)})" for chunk in _chunks(names)]


def find_related(
    client: Client,
    tenant: str,
    *,
    run_ids: Iterable[bytes] = (),
    users: Sequence[str] = (),
    sessions: Sequence[str] = (),
) -> list[bytes]:
    """Find these runs and those of the users and sessions, with their replays and child processes' runs."""
    found = set(run_ids)
    if users or sessions:
        named = {"tenant": tenant, "users": list(users), "sessions": list(sessions)}
        found |= _ids(client, _OF_PEOPLE, named)
    newest = found
    for _ in range(GENERATIONS_MAX):
        if not newest:
            break
        related: set[bytes] = set()
        for chunk in _chunks(sorted(newest)):
            related |= _ids(client, _RELATED, {"tenant": tenant, "runs": [run_id.hex() for run_id in chunk]})
        newest = related - found
        found |= newest
    return sorted(found)


def erase(client: Client, tenant: str, run_ids: Sequence[bytes]) -> set[bytes]:
    """Remove runs, pinned or not, and the spans of other instrumentors in their traces; later records are refused.

    Return the ids of the traces.
    """
    now = datetime.now(timezone.utc)
    found: set[bytes] = set()
    for chunk in _chunks(run_ids):
        rows = [(tenant, run_id, now) for run_id in chunk]
        kinds = ["LowCardinality(String)", "FixedString(16)", "DateTime64(3, 'UTC')"]
        client.insert("erased", rows, column_names=["tenant", "run_id", "erased_at"], column_type_names=kinds)
        named = {"tenant": tenant, "runs": [run_id.hex() for run_id in chunk]}
        traces = client.query(_TRACES, parameters=named, query_formats=_BYTES).result_rows
        _remove_runs(client, tenant, [*chunk, *(derive_run_id(bytes(trace), int(start)) for trace, start in traces)])
        found |= {bytes(trace) for trace, _ in traces}
    return found


def erase_again(client: Client) -> None:
    """Remove what was stored of recently erased runs by a load that was under way in another process."""
    recent = f"SELECT tenant, run_id FROM erased WHERE erased_at >= now() - {ERASED_AGAIN_S}"  # noqa: S608 -- constant text
    cluster = find_cluster(client, _database(client))
    for table in TABLES:
        where = f"(tenant, run_id) IN ({recent})"
        if client.query(f"SELECT 1 FROM {table} WHERE {where} LIMIT 1").result_rows:  # noqa: S608 -- constant text
            for chosen in _name_pairs(client, where, table) if cluster else [where]:
                client.command(f"{alter(cluster, table)} DELETE WHERE {chosen}{_WAIT}")


def find_erased(client: Client, tenant: str, run_ids: Iterable[bytes]) -> frozenset[bytes]:
    """Those of these runs that were erased, of which nothing may be stored."""
    found: set[bytes] = set()
    for chunk in _chunks(sorted(run_ids)):
        found |= _ids(client, _ERASED, {"tenant": tenant, "runs": [run_id.hex() for run_id in chunk]})
    return frozenset(found)


def _remove_runs(client: Client, tenant: str, run_ids: Sequence[bytes]) -> None:
    owner = f"tenant = unhex('{tenant.encode().hex()}')"
    days = ", ".join(f"toDate('{day.isoformat()}')" for day in sorted({day_of_run(run_id) for run_id in run_ids}))
    runs = ", ".join(f"toFixedString(unhex('{run_id.hex()}'), 16)" for run_id in run_ids)
    cluster = find_cluster(client, _database(client))
    for table in TABLES:
        where = f"{owner} AND day IN ({days}) AND run_id IN ({runs})"
        client.command(f"{alter(cluster, table)} DELETE WHERE {where}{_WAIT}")
    client.command(f"{alter(cluster, 'pins')} DELETE WHERE {owner} AND run_id IN ({runs}){_WAIT}")


def _ids(client: Client, statement: str, parameters: dict[str, Any]) -> set[bytes]:
    return {bytes(row[0]) for row in client.query(statement, parameters=parameters, query_formats=_BYTES).result_rows}


def _chunks(run_ids: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(run_ids), RUNS_PER_STATEMENT):
        yield run_ids[start : start + RUNS_PER_STATEMENT]
