"""Find equal model requests in the store that have more than one serving stack or output."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final

from clickhouse_connect.driver.client import Client

from spanreplay.recording.model_drift import (
    FIRSTS_MAX,
    KEYS_FOUND_MAX,
    STACKS_MAX,
    Answer,
    DriftQuery,
    DriftScan,
    StackAnswers,
)

__all__ = ["scan_drift"]

RUNS_AT_ONCE: Final = 100
"""Runs whose calls are counted in one query."""
GROUP_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes that the engine groups in memory before it spills to disk."""

# No call of a run starts before the run itself, so the root's start is the minimum.
_ANSWERS: Final = """
    FROM boundaries FINAL
    WHERE tenant = {tenant:String}
        AND kind IN ('llm', 'embedding') AND outcome = 'ok' AND key != ''
        AND start_ns >= {since_ns:UInt64}
        AND run_id IN (
            SELECT run_id FROM runs
            WHERE tenant = {tenant:String}
            GROUP BY run_id
            HAVING min(start_ns) >= {since_ns:UInt64}
                AND ({until_ns:UInt64} = 0 OR min(start_ns) <= {until_ns:UInt64})
                AND ({app:String} = '' OR max(app) = {app:String})
                AND ({include_replays:UInt8} = 1 OR max(replay_of) = '')
        )
"""
_TOTALS: Final = "SELECT uniqExact(run_id), count(), uniqExact(key)" + _ANSWERS
_STACK: Final = "(response_model, fingerprint, meta['determinism'])"
_OUTPUT: Final = "meta['output_hash']"
_DIFFERS: Final = f"""
    GROUP BY key
    HAVING uniqExact{_STACK} > 1 OR uniqExactIf({_OUTPUT}, {_OUTPUT} != '') > 1
"""
_KEYS_FOUND: Final = "SELECT count() FROM (SELECT key" + _ANSWERS + _DIFFERS + ")"  # noqa: S608 -- constants alone
_FOUND: Final = (
    f"""
SELECT
    key, any(boundary), any(asked), any(temperature), response_model, fingerprint, determinism,
    sum(n), countIf(output != ''), groupArraySorted({FIRSTS_MAX})((first, output)), min(first) AS oldest
FROM (
    SELECT
        key, any(concat(kind, ':', name)) AS boundary, any(model) AS asked, any(temperature) AS temperature,
        response_model, fingerprint, meta['determinism'] AS determinism, {_OUTPUT} AS output,
        count() AS n, min((start_ns, lower(hex(run_id)), seq, lower(hex(span_id)))) AS first
"""  # noqa: S608 -- constants alone
    + _ANSWERS
    + "AND key IN (SELECT key"
    + _ANSWERS
    + _DIFFERS
    + f"""
    ORDER BY uniqExact{_STACK} > 1 DESC, max(start_ns) DESC
    LIMIT {{keys:UInt32}})
    GROUP BY key, response_model, fingerprint, determinism, output
)
GROUP BY key, response_model, fingerprint, determinism
ORDER BY key, oldest
LIMIT {STACKS_MAX} BY key
"""
)
_CALLS: Final = """
SELECT lower(hex(run_id)), arraySort(groupUniqArray(seq))
FROM boundaries
WHERE tenant = {tenant:String} AND kind != 'run'
    AND run_id IN (SELECT toFixedString(unhex(arrayJoin({runs:Array(String)})), 16))
GROUP BY run_id
"""


def scan_drift(client: Client, tenant: str, query: DriftQuery) -> DriftScan:
    """Find every key with more than one serving stack or output, at most KEYS_FOUND_MAX.

    Keys with more than one stack take precedence, then the newest.
    """
    parameters = {
        "tenant": tenant,
        "since_ns": max(query.since_ns, 0),
        "until_ns": max(query.until_ns, 0),
        "app": query.app,
        "include_replays": int(query.include_replays),
        "keys": KEYS_FOUND_MAX,
    }
    settings = {"max_bytes_before_external_group_by": GROUP_BYTES_MAX}
    runs, answers, keys = client.query(_TOTALS, parameters=parameters, settings=settings).result_rows[0]
    if not answers:
        return DriftScan()
    found = int(client.query(_KEYS_FOUND, parameters=parameters, settings=settings).result_rows[0][0])
    rows = client.query(_FOUND, parameters=parameters, settings=settings).result_rows if found else []
    numbers = _number_calls(client, tenant, rows)
    stacks = tuple(_stack(row, numbers) for row in rows)
    return DriftScan(int(runs), int(answers), int(keys), stacks, max(0, found - KEYS_FOUND_MAX))


def _firsts(row: Sequence[Any]) -> Iterable[tuple[int, str, int, str, str]]:
    for (start_ns, run_id, seq, span_id), output in row[9]:
        yield int(start_ns), run_id, int(seq), span_id, output


def _number_calls(client: Client, tenant: str, rows: Sequence[Sequence[Any]]) -> dict[tuple[str, int], int]:
    """Map (run, Lamport clock) to the number of the call in its run, in start order, from 1."""
    wanted: dict[str, set[int]] = {}
    for row in rows:
        for _, run_id, seq, _, _ in _firsts(row):
            wanted.setdefault(run_id, set()).add(seq)
    numbers: dict[tuple[str, int], int] = {}
    names = sorted(wanted)
    for start in range(0, len(names), RUNS_AT_ONCE):
        parameters = {"tenant": tenant, "runs": names[start : start + RUNS_AT_ONCE]}
        for run_id, clocks in client.query(_CALLS, parameters=parameters).result_rows:
            numbers.update({(run_id, seq): bisect_right(clocks, seq) for seq in wanted[run_id]})
    return numbers


def _stack(row: Sequence[Any], numbers: dict[tuple[str, int], int]) -> StackAnswers:
    key, boundary, model, temperature, response_model, fingerprint, determinism, answers, outputs = row[:9]
    return StackAnswers(
        key=key,
        boundary=boundary,
        model=model,
        temperature=None if temperature is None else float(temperature),
        response_model=response_model,
        fingerprint=fingerprint,
        determinism=determinism,
        answers=int(answers),
        outputs=int(outputs),
        firsts=tuple(
            Answer(run_id, numbers.get((run_id, seq), 0), span_id, start_ns, output)
            for start_ns, run_id, seq, span_id, output in _firsts(row)
        ),
    )
